package regenerator_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
)

// While the policy of an endpoint is not known, slot and revision stay, also over a
// restart, and its addresses stay with it; a new one stays closed.
func TestN01AnEndpointWhosePolicyIsNotKnownStaysAsItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, dir := newKernel(), t.TempDir()
		first := newNode(t, k, dir).start()
		e := first.create(1)
		synctest.Wait()
		slot, revision := k.slotOf(e.ID), k.revisionOf(e.ID)
		keep := func(n *node, why string) {
			n.pol.mu.Lock()
			defer n.pol.mu.Unlock()
			n.pol.keep, n.pol.lines = why, 5
		}
		keep(first, "lost")
		k.take()
		e.Regenerate(regeneration.LevelPolicy, "test")
		synctest.Wait()
		require.Empty(t, slices.DeleteFunc(k.take(), func(c string) bool { return strings.HasPrefix(c, "word audit") }), "nothing is written")
		first.stop()

		second := newNode(t, k, dir)
		keep(second, "lost")
		recs, _, err := endpoint.ReadAll(dir, "")
		require.NoError(t, err)
		rep := second.mgr.Restore(t.Context(), recs)
		require.Len(t, rep.Restored, 1)
		second.start()
		time.Sleep(time.Second)
		synctest.Wait()
		again := rep.Restored[0]
		require.Equal(t, regeneration.StateReady, again.Row().State, again.Row().Reason)
		require.Equal(t, slot, k.slotOf(e.ID))
		require.Equal(t, revision, k.revisionOf(e.ID))
		require.Equal(t, slot, again.Row().Slot)
		k.mu.Lock()
		require.Equal(t, again.Row().Identity, k.ipcache[addr1], "others know whose address it is")
		k.mu.Unlock()

		k.link(102, true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, _, err = second.creator.Create(ctx, request(2))
		require.ErrorContains(t, err, "it stays closed: lost")

		keep(second, "")
		again.Regenerate(regeneration.LevelPolicy, "found")
		synctest.Wait()
		require.Len(t, again.Row().RealizedPolicy, 5, "the policy is in force again")
		second.noViolation()
	})
}
