package endpoint

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// audited is an endpoint that is ready, whose later builds a test steers.
type audited struct {
	*Endpoint
	s *scene

	mu   sync.Mutex
	fail bool          // builds fail
	hold chan struct{} // not nil: builds wait for it
}

func (a *audited) steer(fail bool, hold chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fail, a.hold = fail, hold
}

func auditScene(t *testing.T) *audited {
	a := &audited{}
	a.s = newScene(t, func(b *Build) {
		row, level, ok := b.Endpoint.BeginBuild()
		if !ok {
			return
		}
		a.mu.Lock()
		fail, hold := a.fail, a.hold
		a.mu.Unlock()
		if hold != nil {
			<-hold
		}
		if fail {
			if b.Endpoint.FailBuild(errors.New("no space left"), level, 0) {
				time.AfterFunc(100*time.Millisecond, func() { b.Endpoint.Retry(level, "again") })
			}
			return
		}
		b.Endpoint.CommitBuild(Outcome{Layout: row.Desired(), PolicyRevision: 1, KernelRevision: row.KernelRevision + 1, Audit: row.Audit})
	})
	a.Endpoint = a.s.endpoint(1)
	require.NoError(t, a.SetLabels(app("api"), nil, nil))
	a.s.ready(a.Endpoint)
	synctest.Wait()
	return a
}

func (a *audited) end() {
	a.Close()
	a.s.stop()
}

// set asks for audit mode and gives up after two seconds.
func (a *audited) set(on bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return a.SetAudit(ctx, on)
}

// inForce asks record and kernel.
func (a *audited) inForce(recorded, kernel bool) {
	a.s.t.Helper()
	synctest.Wait()
	recs, _, err := ReadAll(a.s.cfg.StateDir)
	require.NoError(a.s.t, err)
	require.Len(a.s.t, recs, 1)
	require.Equal(a.s.t, [2]bool{recorded, kernel}, [2]bool{recs[0].Audit, a.Row().KernelAudit})
}

func TestAuditModeIsInForceWhenSetAuditReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := auditScene(t)
		defer a.end()
		for _, on := range []bool{true, true, false, false} {
			require.NoError(t, a.set(on))
			a.inForce(on, on)
		}
	})
}

func TestARecordThatCannotBeWrittenLeavesAuditModeAsItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := auditScene(t)
		defer a.end()
		dir := recordDir(a.s.cfg.StateDir, 1)
		require.NoError(t, os.Rename(dir, dir+".away"))
		require.NoError(t, os.WriteFile(dir, nil, 0o600)) // no directory can be made
		revision := a.Row().KernelRevision
		require.ErrorContains(t, a.set(true), "audit mode of endpoint 1 is as it was: writing the record")
		require.False(t, a.Row().Audit)
		require.NoError(t, os.Remove(dir))
		require.NoError(t, os.Rename(dir+".away", dir))
		time.Sleep(time.Minute)
		a.inForce(false, false)
		require.Equal(t, revision, a.Row().KernelRevision, "nothing was built")
	})
}

func TestAuditModeThatIsNotSwitchedOnInTimeIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := auditScene(t)
		defer a.end()
		a.steer(true, nil)
		err := a.set(true)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "is off")
		require.ErrorContains(t, err, "no space left")
		a.inForce(false, false)
		a.steer(false, nil)
		time.Sleep(time.Minute)
		a.inForce(false, false)
	})
}

func TestABuildThatSwitchesAuditModeOnLateIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := auditScene(t)
		defer a.end()
		late := make(chan struct{})
		a.steer(false, late)
		time.AfterFunc(4*time.Second, func() { close(late) })
		require.ErrorContains(t, a.set(true), "is off")
		a.inForce(false, false)

		late = make(chan struct{})
		a.steer(false, late)
		require.ErrorContains(t, a.set(true), "a build that still runs may let denied traffic through")
		close(late)
		a.inForce(false, false)
	})
}

func TestAuditModeThatIsNotSwitchedOffInTimeIsSaidToBeOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := auditScene(t)
		defer a.end()
		require.NoError(t, a.set(true))
		a.steer(true, nil)
		require.ErrorContains(t, a.set(false), "still lets through what its policy denies")
		require.True(t, a.Row().Audits())
		a.inForce(false, true)
		a.steer(false, nil)
		time.Sleep(time.Minute)
		a.inForce(false, false)
	})
}

// A build that began before is not the one that was asked for.
func TestAnEarlierBuildDoesNotSwitchAuditMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := auditScene(t)
		defer a.end()
		require.NoError(t, a.set(true))
		first := make(chan struct{})
		a.steer(false, first)
		a.PolicyChanged(nil, 5)
		synctest.Wait() // the build holds a row with audit mode
		second := make(chan struct{})
		a.steer(false, second)
		done := make(chan error, 1)
		go func() { done <- a.set(false) }()
		synctest.Wait()
		close(first)
		synctest.Wait()
		require.Empty(t, done, "audit mode is on, and was said to be off")
		close(second)
		require.NoError(t, <-done)
		a.inForce(false, false)
	})
}
