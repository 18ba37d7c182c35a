package regenerator_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	"github.com/weirnet/weir/pkg/labels"
)

func (k *kernel) refuse(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refuses = on
}

// The programs of the last agent go on, and every policy that is written while the
// kernel refuses new ones is in force.
func TestN06ARestoredEndpointHasItsPolicyWhileTheKernelRefusesPrograms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		dir := t.TempDir()
		n := newNode(t, k, dir).start()
		id := n.create(1).ID
		n.stop()
		k.refuse(true)
		for _, s := range k.slots {
			s.users = 0 // the next agent counts anew
		}

		again := newNode(t, k, dir)
		again.pol.set(5, 2)
		recs, _, err := endpoint.ReadAll(dir, "")
		require.NoError(t, err)
		report := again.mgr.Restore(t.Context(), recs)
		again.start()
		e := report.Restored[0]
		synctest.Wait()
		require.Contains(t, k.inForce(id, addr1), "policy of 5 lines, lxc 1001, attached 1001, ipcache 1001, linked true, loaded 0")
		require.Equal(t, regeneration.StateWaitingToRegenerate, e.Row().State)
		require.Contains(t, e.Row().Refused, "argument list too long")
		require.Contains(t, e.Row().Reason, "programs of before run on")
		require.EqualValues(t, 2, e.Row().PolicyRevision)
		h := e.Row().Health()
		require.Equal(t, []any{false, true, "ok", "former"}, []any{h.OK, h.Connected, h.Policy, h.Programs})

		again.pol.set(7, 3)
		require.NoError(t, again.mgr.WaitRestored(t.Context(), report.Restored))
		again.mgr.PolicyChanged(nil, 3)(t.Context())
		require.NoError(t, again.mgr.WaitForPolicyRevision(t.Context(), 3))
		require.Contains(t, k.inForce(id, addr1), "policy of 7 lines")

		require.NoError(t, e.Change(t.Context(), func(s *endpoint.Settings) { s.Audit = true }))
		on, err := k.Audit(id)
		require.NoError(t, err)
		require.True(t, on, "a setting is put into force too")

		k.refuse(false)
		require.NoError(t, e.WaitReady(t.Context()), "it is tried again")
		require.Empty(t, e.Row().Refused)
		require.Contains(t, k.inForce(id, addr1), "policy of 7 lines, lxc 1001, attached 1001")
		again.noViolation()
		require.NoError(t, again.mgr.Delete(t.Context(), e, "test"))
		synctest.Wait()
		require.Empty(t, k.left())
		again.stop()
	})
}

// An endpoint of this agent whose programs are to be replaced has its policy too; what
// other endpoints know of it stays as its programs have it.
func TestN06ALoadThatIsRefusedHoldsNoPolicyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		n := newNode(t, k, t.TempDir()).start()
		e := n.create(1)
		synctest.Wait()
		k.refuse(true)
		n.pol.set(5, 2)
		require.NoError(t, e.SetLabels(labels.NewLabelArray(labels.New("k8s", "app", "web")), nil, nil))
		synctest.Wait()
		require.Contains(t, k.inForce(e.ID, addr1), "policy of 5 lines, lxc 1001, attached 1001, ipcache 1001")
		n.pol.set(6, 3)
		n.mgr.PolicyChanged(nil, 3)(t.Context())
		require.NoError(t, n.mgr.WaitForPolicyRevision(t.Context(), 3))
		require.Contains(t, k.inForce(e.ID, addr1), "policy of 6 lines, lxc 1001, attached 1001, ipcache 1001")
		k.refuse(false)
		require.NoError(t, e.WaitReady(t.Context()))
		require.Contains(t, k.inForce(e.ID, addr1), "policy of 6 lines, lxc 1002, attached 1002, ipcache 1002")
		n.noViolation()
		require.NoError(t, n.mgr.Delete(t.Context(), e, "test"))
		synctest.Wait()
		require.Empty(t, k.left())
		n.stop()
	})
}

// A pod without programs is not let in by any other way.
func TestN06ANewEndpointWithoutProgramsIsNotExposed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		k.refuse(true)
		n := newNode(t, k, t.TempDir()).start()
		k.link(101, true)
		req := request(1)
		req.Wait = false
		e, _, err := n.creator.Create(t.Context(), req)
		require.NoError(t, err)
		time.Sleep(10 * time.Minute)
		require.Empty(t, k.left())
		require.Contains(t, e.Row().Reason, "argument list too long")
		require.Empty(t, e.Row().Refused)
		require.Equal(t, "none", e.Row().Health().Programs)
		require.NoError(t, n.mgr.Delete(t.Context(), e, "test"))
		n.noViolation()
		n.stop()
	})
}
