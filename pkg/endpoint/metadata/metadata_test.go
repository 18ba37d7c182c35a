package metadata

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/types"
	"github.com/weirnet/weir/pkg/workload"
)

// anyIdentity gives every label set the same number; only the labels matter here.
type anyIdentity struct{}

func (anyIdentity) Allocate(_ context.Context, ls labels.LabelArray) (*identity.Identity, bool, error) {
	return identity.New(1001, ls), false, nil
}
func (anyIdentity) Release(context.Context, identity.NumericIdentity) (bool, error) {
	return false, nil
}
func (anyIdentity) UpdateIdentities(context.Context, identity.IdentityMap, identity.IdentityMap) error {
	return nil
}

type scene struct {
	t      *testing.T
	tables *workload.Tables
	r      *Resolver
	cfg    endpoint.Config
}

func newScene(t *testing.T) *scene {
	tables, err := workload.NewTables(statedb.New())
	require.NoError(t, err)
	log := slog.New(slog.DiscardHandler)
	keeper := endpoint.NewIdentityKeeper(log, anyIdentity{}, anyIdentity{})
	t.Cleanup(keeper.Close)
	return &scene{t: t, tables: tables, r: New(log, tables, labels.DefaultFilter(), "east"), cfg: endpoint.Config{
		Logger: log, StateDir: t.TempDir(), Queue: endpoint.NewBuildQueue(2), Identities: keeper,
	}}
}

func (s *scene) write(f func(*workload.Txn)) {
	txn := s.tables.Write()
	f(txn)
	txn.Commit()
	synctest.Wait()
}

func (s *scene) pod(uid, app, phase string) {
	s.write(func(w *workload.Txn) {
		w.PutPod(&workload.Pod{
			Namespace: "shop", Name: "api", UID: uid, Phase: phase, Labels: map[string]string{"app": app}, ServiceAccount: "robot",
			NamedPorts: []workload.NamedPort{{Name: "http", Proto: types.ProtoTCP, Port: 8080}},
		})
	})
}

func (s *scene) namespace(team string) {
	s.write(func(w *workload.Txn) {
		w.PutNamespace(&workload.Namespace{Name: "shop", Labels: map[string]string{"team": team}})
	})
}

func (s *scene) endpoint(uid string, request map[string]string) *endpoint.Endpoint {
	e, err := endpoint.New(s.cfg, endpoint.Row{
		ID: 1, Pod: endpoint.Pod{Namespace: "shop", Name: "api", UID: uid}, RequestLabels: request,
		Link: endpoint.Link{ContainerID: "c", ContainerInterface: "eth0", IPv4: netip.MustParseAddr("10.0.0.1")},
	})
	require.NoError(s.t, err)
	s.t.Cleanup(e.Close)
	return e
}

func value(e *endpoint.Endpoint, key string) string {
	v, _ := e.Row().Labels.Get(labels.SourceK8s, key)
	return v
}

func isInit(e *endpoint.Endpoint) bool { return e.Row().Labels.HasReserved(labels.NameInit) }

func TestLabelsOfThePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.namespace("red")
		s.pod("u1", "api", "Running")
		e := s.endpoint("u1", map[string]string{"app": "of the request"})
		start := time.Now()
		require.NoError(t, s.r.Attach(t.Context(), e))
		require.Zero(t, time.Since(start), "nothing to wait for")
		require.Equal(t, "api", value(e, "app"), "the Pod object wins over the request")
		require.Equal(t, "shop", value(e, labels.KeyPodNamespace))
		require.Equal(t, "robot", value(e, labels.KeyServiceAccount))
		require.Equal(t, "east", value(e, labels.KeyCluster))
		require.Equal(t, "red", value(e, labels.KeyNamespaceLabels+".team"))
		require.Equal(t, policytypes.NamedPorts{{Name: "http", Proto: types.ProtoTCP}: 8080}, e.Row().NamedPorts)
	})
}

func TestPodsAndNamespacesThatChangeAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.namespace("red")
		s.pod("u1", "api", "Running")
		e := s.endpoint("u1", nil)
		require.NoError(t, s.r.Attach(t.Context(), e))
		s.pod("u1", "web", "Running")
		require.Equal(t, "web", value(e, "app"))
		s.namespace("blue")
		require.Equal(t, "blue", value(e, labels.KeyNamespaceLabels+".team"))
		s.write(func(w *workload.Txn) { w.PutNamespace(&workload.Namespace{Name: "shop"}) })
		require.Empty(t, value(e, labels.KeyNamespaceLabels+".team"), "a removed label goes (B17)")
		s.write(func(w *workload.Txn) { w.DeletePod("shop", "api") })
		require.Equal(t, "web", value(e, "app"), "a pod that went away changes nothing")
	})
}

func TestAPodThatComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		e := s.endpoint("u1", nil)
		start := time.Now()
		require.NoError(t, s.r.Attach(t.Context(), e))
		require.Equal(t, Patience, time.Since(start), "fake time")
		require.True(t, isInit(e))
		log := e.StatusLog()
		said := false
		for _, l := range log {
			said = said || l.Message == "pod not in cache after 2s; continuing as init"
		}
		require.True(t, said, "%v", log)
		s.pod("u1", "api", "Pending")
		require.False(t, isInit(e))
		require.Equal(t, "api", value(e, "app"))
	})
}

func TestAPodThatComesWithinThePatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		e := s.endpoint("u1", nil)
		go func() {
			time.Sleep(time.Second)
			txn := s.tables.Write()
			txn.PutPod(&workload.Pod{Namespace: "shop", Name: "api", UID: "u1", Labels: map[string]string{"app": "api"}})
			txn.Commit()
		}()
		start := time.Now()
		require.NoError(t, s.r.Attach(t.Context(), e))
		require.Equal(t, time.Second, time.Since(start))
		require.Equal(t, "api", value(e, "app"))
	})
}

func TestAPodOfAnotherUIDIsNotOurs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.pod("old", "before", "Running")
		e := s.endpoint("new", nil)
		require.NoError(t, s.r.Attach(t.Context(), e))
		require.True(t, isInit(e))
		s.pod("new", "after", "Running")
		require.Equal(t, "after", value(e, "app"))
		s.pod("newer", "again", "Running")
		require.Equal(t, "after", value(e, "app"), "the next pod of that name has an endpoint of its own")
	})
}

func TestB19APodThatHasEndedGivesNoLabels(t *testing.T) {
	for _, phase := range []string{"Succeeded", "Failed"} {
		synctest.Test(t, func(t *testing.T) {
			s := newScene(t)
			s.pod("", "done", phase)
			e := s.endpoint("", nil)
			require.NoError(t, s.r.Attach(t.Context(), e))
			require.True(t, isInit(e), phase)
			s.pod("", "next", "Running")
			require.Equal(t, "next", value(e, "app"))
			s.pod("", "next", phase)
			require.Equal(t, "next", value(e, "app"), "the end of the pod changes nothing")
		})
	}
}

func TestRuntimesWithoutAPodObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.namespace("red")
		e := s.endpoint("", map[string]string{"app": "given", labels.KeyPodNamespace: "smuggled"})
		start := time.Now()
		require.NoError(t, s.r.Attach(t.Context(), e))
		require.Zero(t, time.Since(start), "they are not kept waiting")
		require.Equal(t, "given", value(e, "app"))
		require.Equal(t, "shop", value(e, labels.KeyPodNamespace), "the namespace cannot be smuggled in")
		s.namespace("blue")
		require.Equal(t, "blue", value(e, labels.KeyNamespaceLabels+".team"))
	})
}

func TestADeletionEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		e := s.endpoint("", nil)
		got := make(chan error)
		go func() { got <- s.r.Attach(t.Context(), e) }()
		synctest.Wait()
		e.BeginDelete("test")
		require.ErrorIs(t, <-got, endpoint.ErrNotAlive)
	})
}

func TestARestoredEndpointKeepsItsLabelsUntilThePodIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.namespace("red")
		s.pod("u1", "api", "Running")
		e := s.endpoint("u1", nil)
		require.NoError(t, s.r.Attach(t.Context(), e))
		synctest.Wait()
		e.Close()

		after := newScene(t) // empty tables: the source has said nothing yet
		recs, _, err := endpoint.ReadAll(s.cfg.StateDir, "")
		require.NoError(t, err)
		again := endpoint.Restore(after.cfg, recs[0])
		t.Cleanup(again.Close)
		after.r.Resume(again, built())
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, e.Row().Labels, again.Row().Labels)
		after.pod("u1", "web", "Running")
		require.Equal(t, "api", value(again, "app"), "the namespace is not there yet")
		after.namespace("red")
		require.Equal(t, "web", value(again, "app"))
		require.Equal(t, regeneration.StateRestoring, again.Row().State)
	})
}

// built is the channel of a node whose restored endpoints are all built.
func built() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// restored is an endpoint from a record with the labels, in new tables.
func (s *scene) restored(ls labels.LabelArray, request map[string]string) *endpoint.Endpoint {
	before := s.endpoint("u1", request)
	require.NoError(s.t, before.SetLabels(ls, nil, nil))
	synctest.Wait()
	before.Close()
	recs, _, err := endpoint.ReadAll(s.cfg.StateDir, "")
	require.NoError(s.t, err)
	e := endpoint.Restore(s.cfg, recs[0])
	s.t.Cleanup(e.Close)
	return e
}

func TestN24AChangeWhileTheAgentWasAwayNeedsNoNamespaceObject(t *testing.T) {
	old := labels.PodLabels(labels.Pod{Namespace: "shop", Cluster: "east", Labels: map[string]string{"app": "api"},
		NamespaceLabels: map[string]string{"team": "red"}})
	for what, request := range map[string]map[string]string{"a Pod object": nil, "labels of the runtime": {"app": "web"}} {
		synctest.Test(t, func(t *testing.T) {
			s := newScene(t)
			e := s.restored(old, request)
			if request == nil {
				s.pod("u1", "web", "Running")
			}
			all := make(chan struct{})
			s.r.Resume(e, all)
			s.write((*workload.Txn).MarkSynced)
			require.Equal(t, "api", value(e, "app"), "others are not built again yet")
			close(all)
			synctest.Wait()
			require.Equal(t, "web", value(e, "app"), what)
			require.Empty(t, value(e, labels.KeyNamespaceLabels+".team"), "the Namespace object went meanwhile")
			require.Equal(t, "shop", value(e, labels.KeyNamespaceName))
		})
		synctest.Test(t, func(t *testing.T) {
			s := newScene(t)
			e := s.restored(old, request)
			if request == nil {
				s.pod("u1", "web", "Running")
			}
			s.r.Resume(e, built())
			synctest.Wait()
			require.Equal(t, "api", value(e, "app"), "the source has not said all yet: "+what)
			s.write((*workload.Txn).MarkSynced)
			require.Equal(t, "web", value(e, "app"), what)
		})
	}
}

func TestN05EveryEndpointHasTheNameOfItsNamespaceAsALabel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.pod("u1", "api", "Running")
		e := s.endpoint("u1", nil)
		require.NoError(t, s.r.Attach(t.Context(), e))
		require.Equal(t, "shop", value(e, labels.KeyNamespaceName), "without a Namespace object")
		for _, written := range []map[string]string{nil, {labels.NamespaceName: "shop"}, {labels.NamespaceName: "kube-system"}, {labels.NamespaceName: ""}} {
			s.write(func(w *workload.Txn) { w.PutNamespace(&workload.Namespace{Name: "shop", Labels: written}) })
			require.Equal(t, "shop", value(e, labels.KeyNamespaceName), "%v", written)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		e := s.restored(labels.NewLabelArray(labels.New(labels.SourceK8s, labels.KeyPodNamespace, "shop"), labels.New(labels.SourceK8s, "app", "api")), nil)
		s.r.Resume(e, built())
		synctest.Wait()
		require.Equal(t, "shop", value(e, labels.KeyNamespaceName), "the record of a version that did not know the label, and no Pod object")
		require.Equal(t, "api", value(e, "app"))
	})
}

// Who is refused gets no labels, so that nothing is built.
func TestN01WhoIsNotAdmittedIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.namespace("red")
		s.pod("u1", "api", "Running")
		why := errors.New("it may be selected by what cannot be read")
		s.r.Admit(func(p endpoint.Pod, ls labels.LabelArray) error {
			if v, _ := ls.Get(labels.SourceK8s, "app"); v == "api" && p.Name == "api" {
				return why
			}
			return nil
		})
		e := s.endpoint("u1", nil)
		require.ErrorIs(t, s.r.Attach(t.Context(), e), why)
		require.Empty(t, e.Row().Labels)
		s.pod("u1", "web", "Running")
		require.NoError(t, s.r.Attach(t.Context(), e))
	})
}
