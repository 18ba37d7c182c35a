package endpoint

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/endpoint/regeneration"
)

// A policy that changes during every build leaves no moment at which the endpoint
// is ready.
func TestN22ReadyOnceIsEnoughWhileThePolicyChangesAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		revision := uint64(10)
		s := newScene(t, func(b *Build) {
			row, _, ok := b.Endpoint.BeginBuild()
			if !ok {
				return
			}
			time.Sleep(time.Millisecond)
			built := revision
			revision++
			b.Endpoint.PolicyChanged(nil, revision)
			b.Endpoint.CommitBuild(Outcome{Layout: row.Desired(), PolicyRevision: built, Settings: row.Settings})
		})
		e := s.endpoint(1)
		require.NoError(t, e.SetLabels(app("a"), nil, nil))
		s.ready(e)
		require.NotEqual(t, regeneration.StateReady, e.Row().State, "the builder never lets it be ready")
		require.NotContains(t, s.seen[1], regeneration.StateReady)

		asked := e.Row()
		require.NoError(t, e.WaitReady(t.Context()), "asked again")
		require.GreaterOrEqual(t, e.Row().PolicyRevision, asked.AffectedRevision, "the policy that held when it was asked")
		e.Close()
		s.stop()
	})
}

// Ready means: with the labels of the pod, and never before the first build.
func TestN22ReadyIsNeverSaidBeforeABuildWithTheLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		s := newScene(t, func(b *Build) { <-hold; succeed(b) })
		e := s.endpoint(1)
		notYet := func(why string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			require.ErrorIs(t, e.WaitReady(ctx), context.DeadlineExceeded, why)
		}
		require.NoError(t, e.SetLabels(app("a"), nil, nil))
		notYet("nothing is built")
		hold <- struct{}{}
		a := s.ready(e).Realized.Identity

		s.ids.mu.Lock()
		s.ids.hold = make(chan struct{})
		s.ids.mu.Unlock()
		require.NoError(t, e.SetLabels(app("b"), nil, nil))
		e.PolicyChanged(nil, 7)
		hold <- struct{}{}
		require.NoError(t, e.WaitForPolicyRevision(t.Context(), 7))
		notYet("the policy is built under the identity of the former labels")
		close(s.ids.hold)
		hold <- struct{}{}
		require.NotEqual(t, a, s.ready(e).Realized.Identity)
		e.Close()
		close(hold)
		s.stop()
	})
}
