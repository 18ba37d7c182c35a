package regenerator_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/endpoint"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

// A mode of its own gives an endpoint a hold of its own on a slot, also where the
// policy is the same in both modes: a later change in place is not for it.
func TestAnotherModeIsAnotherHoldOnASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		n := newNode(t, k, t.TempDir()).start()
		one, twin := n.create(1), n.create(2)
		synctest.Wait()
		require.Equal(t, one.Row().SlotGroup, twin.Row().SlotGroup, "without a mode they have one group")
		k.take()
		before := k.revisionOf(one.ID)
		for _, e := range []policytypes.Enforcement{policytypes.EnforcementOf(policytypes.ModeDefault), policytypes.EnforcementNode} {
			require.NoError(t, one.Change(t.Context(), func(s *endpoint.Settings) { s.Enforcement = e }))
			synctest.Wait()
			require.Equal(t, []string{"slot acquire", "word set", "slot release"}, k.take(), "a whole slot, and one store")
			require.Equal(t, e == policytypes.EnforcementNode, one.Row().SlotGroup == twin.Row().SlotGroup)
			require.Equal(t, one.Row().PolicyGroup(), one.Row().SlotGroup)
			require.Greater(t, k.revisionOf(one.ID), before, "open flows are judged again")
			before = k.revisionOf(one.ID)
		}
		n.noViolation()
	})
}

// Each call of the build of another mode fails once: until the retry the old
// policy is in force as a whole.
func TestABuildThatFailsLeavesTheModeAsItWas(t *testing.T) {
	failed := 0
	for at := 1; at <= 3; at++ {
		synctest.Test(t, func(t *testing.T) {
			k := newKernel()
			n := newNode(t, k, t.TempDir()).start()
			e := n.create(1)
			synctest.Wait()
			slot := k.slotOf(e.ID)
			n.pol.set(3, 2) // what it will be in the other mode
			k.take()
			k.mu.Lock()
			k.failAt = at
			k.mu.Unlock()
			done := make(chan error, 1)
			always := policytypes.EnforcementOf(policytypes.ModeAlways)
			go func() { done <- e.Change(t.Context(), func(s *endpoint.Settings) { s.Enforcement = always }) }()
			synctest.Wait()
			if e.Row().KernelSettings.Enforcement != always {
				failed++
				require.Equal(t, slot, k.slotOf(e.ID))
				require.Equal(t, policytypes.EnforcementNode, e.Row().EnforcementInForce())
				require.Empty(t, done, "not in force, and said to be")
			}
			require.NoError(t, <-done, "the retry")
			require.NotEqual(t, slot, k.slotOf(e.ID))
			require.Equal(t, always, e.Row().EnforcementInForce())
			n.noViolation()
		})
	}
	require.GreaterOrEqual(t, failed, 2, "few calls failed before the mode was in force")
}
