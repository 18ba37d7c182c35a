package regenerator_test

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
)

// Each call of a rebuild that switches audit mode on fails once: until the retry
// denied traffic does not pass.
func TestABuildThatFailsLeavesAuditModeAsItWas(t *testing.T) {
	afterwards := 0
	for at := 1; at <= 6; at++ {
		synctest.Test(t, func(t *testing.T) {
			k := newKernel()
			n := newNode(t, k, t.TempDir()).start()
			e := n.create(1)
			synctest.Wait()
			k.take()
			k.mu.Lock()
			k.failAt = at
			k.mu.Unlock()
			require.NoError(t, e.Update(func(turn *endpoint.Turn) { turn.Row.Audit = true }))
			e.Regenerate(regeneration.LevelLoad, "test")
			synctest.Wait()
			calls := k.recorded()
			if e.Row().State == regeneration.StateWaitingToRegenerate {
				if i := slices.Index(calls, "audit set"); i >= 0 && i+1 < at {
					afterwards++
				}
				on, err := k.Audit(e.ID)
				require.NoError(t, err)
				require.False(t, on, "call %d: %v", at, calls)
				require.False(t, e.Row().KernelSettings.Audit)
			}
			_, err := e.Wait(t.Context(), func(r *endpoint.Row) bool { return r.State == regeneration.StateReady && r.KernelSettings.Audit })
			require.NoError(t, err)
			on, err := k.Audit(e.ID)
			require.NoError(t, err)
			require.True(t, on)
			require.True(t, e.Row().KernelSettings.Audit)
			require.NoError(t, n.mgr.Delete(t.Context(), e, "test"))
			n.stop()
		})
	}
	require.Greater(t, afterwards, 1, "few calls failed after audit mode was switched on")
}
