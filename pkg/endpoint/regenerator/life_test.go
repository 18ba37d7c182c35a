package regenerator_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/creator"
	"github.com/weirnet/weir/pkg/endpoint/metadata"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	"github.com/weirnet/weir/pkg/endpoint/regenerator"
	"github.com/weirnet/weir/pkg/endpointmanager"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/types"
	"github.com/weirnet/weir/pkg/workload"
)

// node is an agent's endpoint machinery over a fake kernel.
type node struct {
	t       *testing.T
	k       *kernel
	dir     string
	ids     *identities
	pol     *policies
	keeper  *endpoint.IdentityKeeper
	queue   *endpoint.BuildQueue
	mgr     *endpointmanager.Manager
	regen   *regenerator.Regenerator
	creator *creator.Creator
	tables  *workload.Tables
	stop    func() // also called at the end of the test
}

func newNode(t *testing.T, k *kernel, dir string) *node {
	n := &node{t: t, k: k, dir: dir, pol: &policies{lines: 2, revision: 1}, queue: endpoint.NewBuildQueue(4)}
	n.ids = &identities{k: k, refs: map[identity.NumericIdentity]int{}}
	log := slog.New(slog.DiscardHandler)
	n.keeper = endpoint.NewIdentityKeeper(log, n.ids, n.ids)
	n.regen = regenerator.New(regenerator.Config{
		Logger: log, Queue: n.queue, Policy: n.pol, Slots: k, Words: k, Endpoints: k, Datapath: k,
		Addresses: k, Connector: k, Conntrack: k,
	})
	tables, err := workload.NewTables(statedb.New())
	require.NoError(t, err)
	n.tables = tables
	meta := metadata.New(log, tables, labels.DefaultFilter(), "default")
	n.mgr = endpointmanager.New(endpointmanager.Config{
		Logger: log, Remover: n.regen, Metadata: meta, Links: k, Words: k,
		Endpoint: endpoint.Config{Logger: log, StateDir: dir, Queue: n.queue, Identities: n.keeper},
	})
	n.creator = creator.New(log, n.mgr, meta)
	n.stop = sync.OnceFunc(func() {
		n.regen.Close()
		n.mgr.Close()
		n.keeper.Close()
	})
	t.Cleanup(n.stop)
	return n
}

func (n *node) start() *node {
	n.regen.Start()
	return n
}

func (n *node) noViolation() {
	n.t.Helper()
	n.k.mu.Lock()
	defer n.k.mu.Unlock()
	require.Empty(n.t, n.k.broken, "order contract")
}

func request(i byte) creator.Request {
	return creator.Request{
		ContainerID: fmt.Sprintf("c%d", i), ContainerInterface: "eth0", HostInterface: fmt.Sprintf("weir%d", i),
		HostIfIndex: 100 + int(i), MAC: types.MAC{2, 0, 0, 0, 0, i}, HostMAC: types.MAC{2, 1, 0, 0, 0, i},
		IPv4: netip.AddrFrom4([4]byte{10, 0, 0, i}), Labels: map[string]string{"app": "api"},
		PodNamespace: "shop", PodName: fmt.Sprintf("pod-%d", i), Wait: true,
	}
}

func (n *node) create(i byte) *endpoint.Endpoint {
	n.t.Helper()
	n.k.link(100+int(i), true)
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	e, created, err := n.creator.Create(ctx, request(i))
	require.NoError(n.t, err)
	require.True(n.t, created)
	return e
}

var addr1 = netip.MustParseAddr("10.0.0.1")

func TestOrderOfALife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		n := newNode(t, k, t.TempDir()).start()
		e := n.create(1)
		synctest.Wait() // the last station is left after the state is told
		require.Equal(t, []string{
			"load", "slot acquire", "word set", "attach", "conntrack purge", "lxc put", "ipcache publish", "connect",
		}, k.take())
		var stations []regeneration.Station
		for _, p := range e.Timeline() {
			require.True(t, p.Done, p.Station)
			require.Empty(t, p.Error)
			stations = append(stations, p.Station)
		}
		require.Equal(t, []regeneration.Station{
			regeneration.StationAPIAccept, regeneration.StationCreated, regeneration.StationMetadata, regeneration.StationIdentity,
			regeneration.StationPolicyResolve, regeneration.StationPlan, regeneration.StationLoad,
			regeneration.StationPolicySwap, regeneration.StationAttach, regeneration.StationExpose, regeneration.StationReady,
		}, stations)

		n.pol.set(3, 2)
		n.mgr.PolicyChanged(nil, 2)(t.Context())
		require.Equal(t, []string{"slot update", "word set"}, k.take(), "a policy change touches no program")
		require.NoError(t, n.mgr.WaitForPolicyRevision(t.Context(), 2))

		n.mgr.PolicyChanged(func(labels.LabelArray) bool { return false }, 3)(t.Context())
		require.Empty(t, k.take(), "an endpoint that is not affected does nothing")
		require.EqualValues(t, 3, e.Row().PolicyRevision)

		require.NoError(t, e.SetLabels(labels.NewLabelArray(labels.New("k8s", "app", "web")), nil, nil))
		_, err := e.Wait(t.Context(), func(r *endpoint.Row) bool { return r.State == regeneration.StateReady })
		require.NoError(t, err)
		require.Equal(t, []string{
			"load", "slot acquire", "word set", "attach", "lxc put", "ipcache publish", "slot release",
		}, k.take(), "a new identity loads again")

		require.NoError(t, n.mgr.Delete(t.Context(), e, "test"))
		require.Equal(t, []string{
			"lxc delete", "ipcache withdraw", "disconnect", "unload", "word clear", "slot release", "conntrack purge",
		}, k.take())
		synctest.Wait()
		require.Empty(t, k.left())
		require.Zero(t, n.ids.users())
		require.NoError(t, n.mgr.Delete(t.Context(), e, "twice"))
		n.noViolation()
		n.stop()
	})
}

func TestPrefixIdentityRewritesTheEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		n := newNode(t, k, t.TempDir()).start()
		e := n.create(1)
		k.take()
		k.mu.Lock()
		k.prefixes[addr1] = 77
		k.mu.Unlock()
		n.mgr.AddressChanged(addr1, 77)
		_, err := e.Wait(t.Context(), func(r *endpoint.Row) bool { return r.PrefixIdentities[0] == 77 })
		require.NoError(t, err)
		require.Equal(t, []string{"lxc put", "ipcache publish"}, k.take())
		info, _ := k.entry(addr1)
		require.EqualValues(t, 77, info.PrefixIdentity)
		n.stop()
	})
}

// Each call of a first build fails once: until the retry nothing is in force,
// then everything is.
func TestEveryStepOfAFirstBuildFailsOnce(t *testing.T) {
	for at := 1; ; at++ {
		reached := false
		synctest.Test(t, func(t *testing.T) {
			k := newKernel()
			k.failAt = at
			n := newNode(t, k, t.TempDir()).start()
			k.link(101, true)
			req := request(1)
			req.Wait = false
			e, _, err := n.creator.Create(t.Context(), req)
			require.NoError(t, err)
			synctest.Wait()
			if reached = e.Row().State != regeneration.StateReady; reached {
				require.Equal(t, regeneration.StateWaitingToRegenerate, e.Row().State)
				require.Contains(t, e.Row().Reason, "injected failure")
				require.Empty(t, k.left(), "half applied after call %d: %v", at, k.recorded())
				_, waiting := e.Progress()
				require.NotEmpty(t, waiting, "the timeline names the failed station")
			}
			require.NoError(t, e.WaitReady(t.Context()))
			require.Contains(t, k.inForce(e.ID, addr1), "policy of 2 lines")
			require.NoError(t, n.mgr.Delete(t.Context(), e, "test"))
			synctest.Wait()
			require.Empty(t, k.left())
			require.Zero(t, n.ids.users())
			n.noViolation()
			n.stop()
		})
		if !reached && at > 8 {
			return
		}
	}
}

// Each call of a rebuild under a new identity fails once: until the retry the
// state before is in force.
func TestEveryStepOfARebuildFailsOnce(t *testing.T) {
	for at := 1; at <= 6; at++ {
		synctest.Test(t, func(t *testing.T) {
			k := newKernel()
			n := newNode(t, k, t.TempDir()).start()
			e := n.create(1)
			other := n.create(2)
			before := k.inForce(e.ID, addr1)
			k.take()
			k.mu.Lock()
			k.failAt = at
			k.mu.Unlock()
			n.pol.set(5, 2)
			require.NoError(t, e.SetLabels(labels.NewLabelArray(labels.New("k8s", "app", "web")), nil, nil))
			synctest.Wait()
			if k.recorded()[at-1] != "ipcache publish" { // which cannot fail
				require.Equal(t, regeneration.StateWaitingToRegenerate, e.Row().State, "call %d: %v", at, k.recorded())
				require.Equal(t, before, k.inForce(e.ID, addr1), "call %d: %v", at, k.recorded())
			}
			require.Equal(t, regeneration.StateReady, other.Row().State, "other endpoints are unaffected")
			require.NoError(t, e.WaitReady(t.Context()))
			require.Contains(t, k.inForce(e.ID, addr1), "policy of 5 lines, lxc 1002, attached 1002, ipcache 1002")
			require.NoError(t, n.mgr.Delete(t.Context(), e, "test"))
			require.NoError(t, n.mgr.Delete(t.Context(), other, "test"))
			synctest.Wait()
			require.Empty(t, k.left())
			n.noViolation()
			n.stop()
		})
	}
}

func TestEveryStepOfADeletionFailsOnce(t *testing.T) {
	for at := 1; at <= 7; at++ {
		synctest.Test(t, func(t *testing.T) {
			k := newKernel()
			n := newNode(t, k, t.TempDir()).start()
			e := n.create(1)
			k.take()
			k.mu.Lock()
			k.failAt = at
			k.mu.Unlock()
			require.NoError(t, n.mgr.Delete(t.Context(), e, "test"), "call %d", at)
			synctest.Wait()
			require.Empty(t, k.left())
			require.Zero(t, n.ids.users())
			require.Empty(t, n.mgr.List())
			n.noViolation()
			n.stop()
		})
	}
}

// kill -9 at every call of creation, relabelling and deletion: the next agent,
// over the same kernel and the state directory as it was, finishes or undoes it.
func TestKillPoints(t *testing.T) {
	story := func(n *node) {
		ctx := context.Background()
		req := request(1)
		req.Wait = false
		e, _, err := n.creator.Create(ctx, req)
		if err != nil {
			return
		}
		synctest.Wait()
		_ = e.SetLabels(labels.NewLabelArray(labels.New("k8s", "app", "web")), nil, nil)
		synctest.Wait()
		_ = n.mgr.Delete(ctx, e, "test")
		synctest.Wait()
	}
	points := 0
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		k.links[101] = true
		n := newNode(t, k, t.TempDir()).start()
		story(n)
		points = len(k.recorded())
		n.stop()
	})
	require.Greater(t, points, 18)
	for at := 1; at <= points; at++ {
		for _, linkGone := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) { killAt(t, at, linkGone, story) })
		}
	}
}

func killAt(t *testing.T, at int, linkGone bool, story func(*node)) {
	k := newKernel()
	k.links[101] = true
	dir, saved := t.TempDir(), filepath.Join(t.TempDir(), "saved")
	k.dieAt, k.onDeath = at, func() {
		if err := copyTree(dir, saved); err != nil {
			panic(err)
		}
	}
	n := newNode(t, k, dir).start()
	story(n)
	n.stop()
	require.True(t, k.dead)
	k.mu.Lock()
	// A kernel forgets the programs of a process that died before it attached
	// them, and users are counted by the process.
	k.dead, k.dieAt, k.loaded = false, 0, 0
	for _, s := range k.slots {
		s.users = 0
	}
	k.links[101] = !linkGone
	k.mu.Unlock()
	k.take()

	again := newNode(t, k, saved)
	recs, bad, err := endpoint.ReadAll(saved, "")
	require.NoError(t, err)
	require.Empty(t, bad)
	rep := again.mgr.Restore(t.Context(), recs)
	require.Empty(t, rep.Failed)
	for _, c := range k.take() {
		require.NotContains(t, []string{"load", "attach", "lxc put"}, c, "nothing is built before all are registered")
	}
	again.start()
	for _, e := range rep.Restored {
		require.False(t, linkGone)
		require.EqualValues(t, 1, e.ID)
		require.NoError(t, e.WaitReady(t.Context()), "killed at call %d", at)
		synctest.Wait()
		require.Contains(t, k.inForce(e.ID, addr1), "linked true")
		require.NoError(t, again.mgr.Delete(t.Context(), e, "test"))
	}
	synctest.Wait()
	k.mu.Lock()
	for n, s := range k.slots { // ReleaseUnadopted
		if s.users == 0 {
			delete(k.slots, n)
		}
	}
	k.mu.Unlock()
	require.Empty(t, k.left(), "killed at call %d, link gone: %v", at, linkGone)
	require.Zero(t, again.ids.users())
	recs, _, err = endpoint.ReadAll(saved, "")
	require.NoError(t, err)
	require.Empty(t, recs)
	again.noViolation()
	again.stop()
}

func TestRestartKeepsNumberAddressIdentityAndDoesNotDisturbTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		dir := t.TempDir()
		n := newNode(t, k, dir).start()
		n.create(1)
		old := n.create(2).Row()
		synctest.Wait()
		n.stop()
		for _, s := range k.slots {
			s.users = 0
		}
		k.take()

		again := newNode(t, k, dir)
		recs, _, err := endpoint.ReadAll(dir, "")
		require.NoError(t, err)
		rep := again.mgr.Restore(t.Context(), recs)
		require.Len(t, rep.Restored, 2)
		require.Equal(t, []string{"slot adopt", "slot adopt"}, k.take())
		require.Equal(t, regeneration.StateRestoring, again.mgr.ByID(old.ID).Row().State)
		again.start()
		for _, e := range rep.Restored {
			require.NoError(t, e.WaitReady(t.Context()))
		}
		r := again.mgr.ByAddr(old.IPv4).Row()
		require.Equal(t, old.ID, r.ID)
		require.Equal(t, old.Labels, r.Labels)
		require.Equal(t, old.Identity, r.Identity)
		for _, c := range k.take() {
			require.NotContains(t, []string{"lxc delete", "unload", "disconnect", "conntrack purge", "word clear"}, c)
		}
		third := again.create(3)
		require.NotEqual(t, old.ID, third.ID)
		again.noViolation()
		again.stop()
	})
}

func TestPolicyMapFullFailsClosedAndRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		n := newNode(t, k, t.TempDir()).start()
		e := n.create(1)
		k.mu.Lock()
		k.full = true
		k.mu.Unlock()
		n.pol.set(9, 2)
		n.mgr.PolicyChanged(nil, 2)(t.Context())
		synctest.Wait()
		r := e.Row()
		require.Contains(t, r.Degraded, "no room")
		require.Equal(t, "degraded", r.Health().Policy)
		require.False(t, r.Health().OK)
		require.Zero(t, k.slotOf(e.ID), "slot 0 denies everything")
		require.Equal(t, "lxc 1; attached 1; ipcache 1; linked 1; ", k.left(), "the old policy is given back")

		time.Sleep(10 * time.Minute) // retries go on and stay harmless
		synctest.Wait()
		require.Zero(t, k.slotOf(e.ID))
		k.mu.Lock()
		k.full = false
		k.mu.Unlock()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.Empty(t, e.Row().Degraded)
		require.True(t, e.Row().Health().OK)
		require.Contains(t, k.inForce(e.ID, addr1), "policy of 9 lines")

		k.mu.Lock()
		k.full = true
		k.mu.Unlock()
		fresh := n.create(2)
		require.NotEmpty(t, fresh.Row().Degraded, "a new endpoint comes up closed")
		n.noViolation()
		n.stop()
	})
}

// B54: a change in place that stopped half way is written again, also when the
// policy went back meanwhile.
func TestAHalfWrittenPolicyIsWrittenAgain(t *testing.T) {
	for at := 1; at <= 2; at++ {
		synctest.Test(t, func(t *testing.T) {
			k := newKernel()
			n := newNode(t, k, t.TempDir()).start()
			e := n.create(1)
			k.take()
			k.mu.Lock()
			k.failAt = at
			k.mu.Unlock()
			n.pol.set(5, 2)
			n.mgr.PolicyChanged(nil, 2)
			synctest.Wait()
			require.Equal(t, regeneration.StateWaitingToRegenerate, e.Row().State)
			n.pol.set(2, 3) // as before
			n.mgr.PolicyChanged(nil, 3)
			require.NoError(t, e.WaitForPolicyRevision(t.Context(), 3))
			require.Contains(t, k.take(), "slot update")
			require.Contains(t, k.inForce(e.ID, addr1), "policy of 2 lines")
			require.Equal(t, 2, e.Row().PolicyEntries)
			n.noViolation()
		})
	}
}

func TestLabelsThatChangeDuringTheBuildRunItAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		n := newNode(t, k, t.TempDir())
		once := sync.Once{}
		n.pol.hook = func(r *endpoint.Row) {
			once.Do(func() {
				_ = n.mgr.ByID(r.ID).SetLabels(labels.NewLabelArray(labels.New("k8s", "app", "late")), nil, nil)
			})
		}
		n.start()
		e := n.create(1)
		r := e.Row()
		require.Equal(t, "late", valueOf(r.Labels, "app"))
		require.Equal(t, r.Identity, r.Realized.Identity)
		require.Equal(t, 1, count(k.take(), "attach"), "the stale build touched nothing")
		synctest.Wait()
		require.Equal(t, 1, n.ids.users())
		n.noViolation()
		n.stop()
	})
}

func TestAPolicyThatCannotBeResolvedKeepsTheOldOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		n := newNode(t, k, t.TempDir()).start()
		e := n.create(1)
		before := k.inForce(e.ID, addr1)
		n.pol.mu.Lock()
		n.pol.fail = errors.New("rule shop/api ingress[0] cannot be compiled")
		n.pol.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		n.mgr.PolicyChanged(nil, 2)(ctx)
		cancel()
		require.Contains(t, e.Row().Reason, "shop/api ingress[0]")
		require.Equal(t, before, k.inForce(e.ID, addr1))
		n.pol.mu.Lock()
		n.pol.fail, n.pol.revision = nil, 2
		n.pol.mu.Unlock()
		require.NoError(t, n.mgr.WaitForPolicyRevision(t.Context(), 1))
		require.NoError(t, e.WaitReady(t.Context()))
		n.stop()
	})
}

func TestDeletionCancelsACreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		n := newNode(t, k, t.TempDir()).start()
		req := request(1)
		req.Labels = nil // it waits for its pod
		got := make(chan error)
		go func() {
			_, _, err := n.creator.Create(t.Context(), req)
			got <- err
		}()
		synctest.Wait()
		require.NoError(t, n.mgr.Delete(t.Context(), n.mgr.ByAttachment("c1", "eth0"), "CNI DEL"))
		require.ErrorIs(t, <-got, endpoint.ErrNotAlive)
		synctest.Wait()
		require.Empty(t, k.left())
		require.Empty(t, n.mgr.List())
		require.Zero(t, n.ids.users())
		n.stop()
	})
}

func TestACreationWhoseCallerGivesUpLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		n := newNode(t, k, t.TempDir()) // no builder: it is never ready
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, _, err := n.creator.Create(ctx, request(1))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "last station passed")
		require.Empty(t, n.mgr.List())
		recs, _, err := endpoint.ReadAll(n.dir, "")
		require.NoError(t, err)
		require.Empty(t, recs)
		synctest.Wait()
		require.Zero(t, n.ids.users())
		n.stop()
	})
}

func TestCreationsAndDeletionsAtOnce(t *testing.T) {
	k := newKernel()
	n := newNode(t, k, t.TempDir()).start()
	var wg sync.WaitGroup
	for i := range byte(24) {
		k.link(101+int(i), true)
		wg.Add(1)
		go func() {
			defer wg.Done()
			for round := range 3 {
				e, _, err := n.creator.Create(context.Background(), request(i+1))
				if err != nil {
					t.Errorf("round %d: %v", round, err)
					return
				}
				n.mgr.PolicyChanged(nil, n.pol.next())(context.Background())
				if err := n.mgr.Delete(context.Background(), e, "storm"); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			}
		}()
	}
	wg.Wait()
	n.stop()
	require.Empty(t, k.left())
	require.Empty(t, n.mgr.List())
	n.noViolation()
}

func valueOf(ls labels.LabelArray, key string) string {
	v, _ := ls.Get(labels.SourceK8s, key)
	return v
}

func count(calls []string, what string) int {
	n := 0
	for _, c := range calls {
		if c == what {
			n++
		}
	}
	return n
}
