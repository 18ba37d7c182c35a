package metadata

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/workload"
)

// standalone is a container of a runtime without Pod objects, as the creator
// registers it.
func (s *scene) standalone(name, given string, request map[string]string) *endpoint.Endpoint {
	e, err := endpoint.New(s.cfg, endpoint.Row{
		ID: 1, Pod: endpoint.Pod{Namespace: s.r.PodNamespace(given, request), Name: name}, RequestLabels: request, Standalone: true,
		Link: endpoint.Link{ContainerID: "c", ContainerInterface: "eth0", IPv4: netip.MustParseAddr("10.0.0.1")},
	})
	require.NoError(s.t, err)
	s.t.Cleanup(e.Close)
	return e
}

func TestN13AContainerOfNoPodHasANamespaceWithItsLabels(t *testing.T) {
	for name, c := range map[string]struct {
		given, want string
		request     map[string]string
	}{
		"the configured one":         {want: "lone", request: map[string]string{"app": "web"}},
		"no labels at all":           {want: "lone"},
		"one among the labels":       {want: "shop", request: map[string]string{labels.KeyPodNamespace: "shop"}},
		"one that the runtime names": {given: "shop", want: "shop", request: map[string]string{labels.KeyPodNamespace: "other"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newScene(t)
			s.r.InNamespace("lone")
			s.write(func(w *workload.Txn) {
				w.PutNamespace(&workload.Namespace{Name: c.want, Labels: map[string]string{"team": "red"}})
			})
			e := s.standalone("", c.given, c.request)
			start := time.Now()
			require.NoError(t, s.r.Attach(t.Context(), e))
			require.Zero(t, time.Since(start), name+": nothing is waited for")
			require.False(t, isInit(e), name)
			require.Equal(t, c.want, value(e, labels.KeyPodNamespace), name)
			require.Equal(t, "east", value(e, labels.KeyCluster), name)
			require.Equal(t, "red", value(e, labels.KeyNamespaceLabels+".team"), name)
			require.Equal(t, c.request["app"], value(e, "app"), name)
		})
	}
}

func TestN40APodObjectOfTheNameCountsFromWhenItComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.r.InNamespace("shop")
		e := s.standalone("api", "", map[string]string{"app": "of the request"})
		require.NoError(t, s.r.Attach(t.Context(), e))
		require.Equal(t, "of the request", value(e, "app"))
		s.pod("u1", "api", "Running")
		require.Equal(t, "api", value(e, "app"))
		s.write(func(w *workload.Txn) { w.DeletePod("shop", "api") })
		require.Equal(t, "api", value(e, "app"), "an object that goes opens nothing")
	})
}

func TestN42OnlyAPodOfKubernetesWaitsForItsObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		e := s.endpoint("u1", nil)
		start := time.Now()
		require.NoError(t, s.r.Attach(t.Context(), e))
		require.Equal(t, Patience, time.Since(start))
		require.True(t, isInit(e))
	})
}
