package endpointmanager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/id"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
)

// hands stands for everything below the manager.
type hands struct {
	mu      sync.Mutex
	fails   int // removals that fail
	removed []uint16
	adopted []uint16
	resumed []uint16
	bumped  []uint16
	links   map[int]bool
	linkErr error
	known   []int // how many numbers the policy had been told of, at each Resume
	told    int
}

func (h *hands) Remove(_ context.Context, e *endpoint.Endpoint, free func()) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fails > 0 {
		h.fails--
		return errors.New("the kernel says no")
	}
	if err := e.RemoveRecord(); err != nil {
		return err
	}
	h.removed = append(h.removed, e.ID)
	free()
	return nil
}

func (h *hands) Adopt(e *endpoint.Endpoint) error {
	h.adopted = append(h.adopted, e.ID)
	return nil
}

func (h *hands) Resume(e *endpoint.Endpoint, _ <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.resumed, h.known = append(h.resumed, e.ID), append(h.known, h.told)
}

func (h *hands) LinkExists(l endpoint.Link) (bool, error) { return h.links[l.IfIndex], h.linkErr }

func (h *hands) BumpRevision(ids ...uint16) (uint32, error) {
	h.bumped = append(h.bumped, ids...)
	return 1, nil
}

func (h *hands) Allocate(_ context.Context, ls labels.LabelArray) (*identity.Identity, bool, error) {
	return identity.New(1001, ls), false, nil
}
func (h *hands) Release(context.Context, identity.NumericIdentity) (bool, error) { return false, nil }
func (h *hands) UpdateIdentities(context.Context, identity.IdentityMap, identity.IdentityMap) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.told++
	return nil
}

func newScene(t *testing.T, dir string) (*Manager, *hands) {
	h := &hands{links: map[int]bool{}}
	log := slog.New(slog.DiscardHandler)
	keeper := endpoint.NewIdentityKeeper(log, h, h)
	m := New(Config{
		Logger: log, Remover: h, Metadata: h, Links: h, Words: h,
		Endpoint: endpoint.Config{Logger: log, StateDir: dir, Queue: endpoint.NewBuildQueue(2), Identities: keeper},
	})
	t.Cleanup(func() { m.Close(); keeper.Close() })
	return m, h
}

func row(i byte) endpoint.Row {
	return endpoint.Row{
		Link: endpoint.Link{
			ContainerID: fmt.Sprintf("c%d", i), ContainerInterface: "eth0", HostInterface: fmt.Sprintf("lxc%d", i), IfIndex: 100 + int(i),
			IPv4: netip.AddrFrom4([4]byte{10, 0, 0, i}), IPv6: netip.MustParseAddr(fmt.Sprintf("fd00::%d", i)),
		},
		Pod: endpoint.Pod{Namespace: "shop", Name: fmt.Sprintf("pod-%d", i), UID: fmt.Sprint(i)},
	}
}

func create(t *testing.T, m *Manager, h *hands, r endpoint.Row) *endpoint.Endpoint {
	t.Helper()
	h.links[r.IfIndex] = true
	e, created, err := m.Create(t.Context(), r)
	require.NoError(t, err)
	require.True(t, created)
	return e
}

func TestLookup(t *testing.T) {
	m, h := newScene(t, t.TempDir())
	e := create(t, m, h, row(1))
	second := row(2)
	second.ContainerID, second.ContainerInterface, second.Pod = "c1", "net1", e.Row().Pod
	create(t, m, h, second)
	for _, s := range []string{"1", "cilium-local:1", "cni-attachment-id:c1:eth0", "ipv4:10.0.0.1", "ipv6:fd00::1"} {
		ref, err := id.Parse(s)
		require.NoError(t, err)
		got, err := m.Lookup(ref)
		require.NoError(t, err, s)
		require.Same(t, e, got, s)
	}
	for s, want := range map[string]error{
		"7": ErrNotFound, "ipv4:10.0.0.9": ErrNotFound, "cni-attachment-id:c9:eth0": ErrNotFound, "pod-name:shop/x": ErrNotFound,
		"container-id:c1": ErrAmbiguous, "pod-name:shop/pod-1": ErrAmbiguous,
	} {
		ref, err := id.Parse(s)
		require.NoError(t, err)
		_, err = m.Lookup(ref)
		require.ErrorIs(t, err, want, s)
	}
	require.Len(t, m.ByContainer("c1"), 2)
	require.Len(t, m.Rows(), 2)
}

func TestDuplicatesAreRefusedAndLeaveNothing(t *testing.T) {
	m, h := newScene(t, t.TempDir())
	e := create(t, m, h, row(1))
	same, created, err := m.Create(t.Context(), row(1))
	require.NoError(t, err)
	require.False(t, created)
	require.Same(t, e, same)
	for what, spoil := range map[string]func(*endpoint.Row){
		"container interface": func(r *endpoint.Row) { *r = row(1); r.Pod.UID = "other" },
		"host interface":      func(r *endpoint.Row) { r.HostInterface = e.Row().HostInterface },
		"address":             func(r *endpoint.Row) { r.IPv6 = e.Row().IPv6 },
	} {
		r := row(2)
		spoil(&r)
		_, _, err := m.Create(t.Context(), r)
		var dup *DuplicateError
		require.ErrorAs(t, err, &dup)
		require.Equal(t, what, dup.What)
		require.Equal(t, e.ID, dup.ID)
	}
	require.Equal(t, 1, m.pool.InUse())
	recs, _, err := endpoint.ReadAll(m.cfg.Endpoint.StateDir, "")
	require.NoError(t, err)
	require.Len(t, recs, 1)
}

func TestTheSameRequestAtOnceMakesOneEndpoint(t *testing.T) {
	m, _ := newScene(t, t.TempDir())
	var wg sync.WaitGroup
	got := make([]*endpoint.Endpoint, 16)
	made := make([]bool, 16)
	for i := range got {
		wg.Add(1)
		go func() {
			defer wg.Done()
			e, created, err := m.Create(context.Background(), row(1))
			if err != nil {
				t.Error(err)
			}
			got[i], made[i] = e, created
		}()
	}
	wg.Wait()
	n := 0
	for i := range got {
		require.Same(t, got[0], got[i])
		if made[i] {
			n++
		}
	}
	require.Equal(t, 1, n)
}

func TestARecordThatCannotBeWrittenLeavesNothing(t *testing.T) {
	m, _ := newScene(t, "/proc/no-such-directory")
	_, _, err := m.Create(t.Context(), row(1))
	require.ErrorContains(t, err, "check the state directory")
	require.Empty(t, m.List())
	require.Zero(t, m.pool.InUse())
	require.Empty(t, m.refs)
}

func TestADeletionThatFailsIsFinishedByTheSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h := newScene(t, t.TempDir())
		e := create(t, m, h, row(1))
		h.fails = deleteAttempts
		require.ErrorContains(t, m.Delete(t.Context(), e, "test"), "next sweep")
		require.Equal(t, regeneration.StateDisconnecting, e.Row().State)
		require.Same(t, e, m.ByID(e.ID), "it is still known")
		require.Equal(t, 1, m.Sweep(t.Context()))
		require.Empty(t, m.List())
		require.Zero(t, m.pool.InUse())
		again := create(t, m, h, row(1))
		require.NotEqual(t, e.ID, again.ID, "a freed number rests")
	})
}

func TestSweepNeedsTwoPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h := newScene(t, t.TempDir())
		create(t, m, h, row(1))
		gone := create(t, m, h, row(2))
		flapping := create(t, m, h, row(3))
		h.links[102], h.links[103] = false, false
		require.Zero(t, m.Sweep(t.Context()))
		h.links[103] = true
		h.linkErr = errors.New("netlink is busy")
		require.Zero(t, m.Sweep(t.Context()), "not knowing is no reason to delete")
		h.linkErr = nil
		require.Equal(t, 1, m.Sweep(t.Context()))
		require.Nil(t, m.ByID(gone.ID))
		h.links[103] = false
		require.Zero(t, m.Sweep(t.Context()), "a link that came back counts from the start")
		require.Same(t, flapping, m.ByID(flapping.ID))

		ctx, cancel := context.WithTimeout(t.Context(), 11*time.Minute)
		defer cancel()
		m.RunSweeps(ctx, 0)
		require.Nil(t, m.ByID(flapping.ID), "swept by the timer")
		require.Len(t, m.List(), 1)
	})
}

func TestEventsComeInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h := newScene(t, t.TempDir())
		var kinds []EventKind
		var seq uint64
		m.Observe(func(ev Event) {
			kinds = append(kinds, ev.Kind)
			if ev.New.Seq <= seq {
				t.Errorf("%s tells row %d after row %d", ev.Kind, ev.New.Seq, seq)
			}
			seq = ev.New.Seq
		})
		e := create(t, m, h, row(1))
		require.NoError(t, e.SetLabels(labels.NewLabelArray(labels.New("k8s", "app", "x")), nil, nil))
		synctest.Wait()
		require.NoError(t, m.Delete(t.Context(), e, "test"))
		synctest.Wait()
		require.Equal(t, EventCreated, kinds[0])
		require.Equal(t, EventDeleted, kinds[len(kinds)-1])
		require.True(t, slices.Contains(kinds, EventState))
	})
}

func TestRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		m, h := newScene(t, dir)
		keep := create(t, m, h, row(1)).Row()
		gone := create(t, m, h, row(2)) // its link goes away (B36)
		half := create(t, m, h, row(3)) // its deletion is interrupted
		half.BeginDelete("test")
		m.Close()

		again, h2 := newScene(t, dir)
		h2.links[101], h2.links[103] = true, true
		var created []uint16
		again.Observe(func(ev Event) {
			if ev.Kind == EventCreated {
				created = append(created, ev.New.ID)
				if len(h2.resumed) > 0 {
					t.Error("an endpoint goes on before all are registered")
				}
			}
		})
		recs, _, err := endpoint.ReadAll(again.cfg.Endpoint.StateDir, "")
		require.NoError(t, err)
		rep := again.Restore(t.Context(), recs)
		require.Equal(t, []uint16{1, 2, 3}, created)
		require.Equal(t, []uint16{1, 2, 3}, h2.adopted)
		require.Equal(t, []uint16{gone.ID, half.ID}, rep.Removed)
		require.Len(t, rep.Restored, 1)
		require.Equal(t, []uint16{keep.ID}, h2.resumed)
		r := again.ByAddr(keep.IPv4).Row()
		require.Equal(t, keep.ID, r.ID)
		require.Equal(t, keep.Pod, r.Pod)
		_, isNew, err := again.Create(t.Context(), row(1))
		require.NoError(t, err)
		require.False(t, isNew, "the same request after the restart")

		for range 4 { // B36: nothing fails again and again
			recs, bad, err := endpoint.ReadAll(dir, "")
			require.NoError(t, err)
			require.Empty(t, bad)
			require.Len(t, recs, 1)
		}
		left, err := filepath.Glob(filepath.Join(dir, "*"))
		require.NoError(t, err)
		require.Len(t, left, 1)
	})
}

func TestRestoredEndpointsAreAwaitedUntilTheyAreBuilt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		m, h := newScene(t, dir)
		for i := range byte(2) {
			require.NoError(t, create(t, m, h, row(i+1)).SetLabels(labels.NewLabelArray(labels.New("k8s", "app", fmt.Sprint(i))), nil, nil))
		}
		synctest.Wait()
		m.Close()
		again, h2 := newScene(t, dir)
		h2.links[101], h2.links[102] = true, true
		recs, _, err := endpoint.ReadAll(again.cfg.Endpoint.StateDir, "")
		require.NoError(t, err)
		rep := again.Restore(t.Context(), recs)
		require.Len(t, rep.Restored, 2)
		require.GreaterOrEqual(t, h2.known[0], 2, "the policy knows all restored identities before the first endpoint goes on")
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, again.WaitRestored(short, rep.Restored), context.DeadlineExceeded, "none was built")
		rep.Restored[0].FailBuild(errors.New("the kernel says no"), regeneration.LevelLoad, 1)
		rep.Restored[1].BeginDelete("test")
		require.NoError(t, again.WaitRestored(t.Context(), rep.Restored), "one was tried, one goes away")
	})
}

func TestRevisionsOfLivingEndpointsAreBumped(t *testing.T) {
	m, h := newScene(t, t.TempDir())
	require.NoError(t, m.BumpRevisions())
	a := create(t, m, h, row(1))
	b := create(t, m, h, row(2))
	b.BeginDelete("test")
	require.NoError(t, m.BumpRevisions())
	require.Equal(t, []uint16{a.ID}, h.bumped)
	m.PolicyChanged(nil, 5)(t.Context()) // nothing is in force: nothing to wait for
	require.NoError(t, m.WaitForPolicyRevision(t.Context(), 5))
	m.AddressChanged(a.Row().IPv4, 9)
	m.AddressChanged(netip.MustParseAddr("192.0.2.1"), 9)
}
