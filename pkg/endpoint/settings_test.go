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

	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

// steered is an endpoint that is ready, whose later builds a test steers.
type steered struct {
	*Endpoint
	s *scene

	mu   sync.Mutex
	fail bool          // builds fail
	hold chan struct{} // not nil: builds wait for it
}

func (a *steered) steer(fail bool, hold chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fail, a.hold = fail, hold
}

func steeredScene(t *testing.T) *steered {
	a := &steered{}
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
		b.Endpoint.CommitBuild(Outcome{Layout: row.Desired(), PolicyRevision: 1, KernelRevision: row.KernelRevision + 1, Settings: row.Settings})
	})
	a.Endpoint = a.s.endpoint(1)
	require.NoError(t, a.SetLabels(app("api"), nil, nil))
	a.s.ready(a.Endpoint)
	synctest.Wait()
	return a
}

func (a *steered) end() {
	a.Close()
	a.s.stop()
}

// change asks for other settings and gives up after two seconds.
func (a *steered) change(f func(*Settings)) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return a.Change(ctx, f)
}

// set asks for audit mode.
func (a *steered) set(on bool) error { return a.change(func(s *Settings) { s.Audit = on }) }

// enforce asks for a mode.
func (a *steered) enforce(e policytypes.Enforcement) error {
	return a.change(func(s *Settings) { s.Enforcement = e })
}

// inForce asks record and kernel for audit mode.
func (a *steered) inForce(recorded, kernel bool) {
	a.s.t.Helper()
	a.holds(Settings{Audit: recorded}, Settings{Audit: kernel})
}

// holds asks record and kernel for all settings.
func (a *steered) holds(recorded, kernel Settings) {
	a.s.t.Helper()
	synctest.Wait()
	recs, _, err := ReadAll(a.s.cfg.StateDir, "")
	require.NoError(a.s.t, err)
	require.Len(a.s.t, recs, 1)
	require.Equal(a.s.t, [2]Settings{recorded, kernel}, [2]Settings{recs[0].row().Settings, a.Row().KernelSettings})
}

func TestAuditModeIsInForceWhenChangeReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := steeredScene(t)
		defer a.end()
		for _, on := range []bool{true, true, false, false} {
			require.NoError(t, a.set(on))
			a.inForce(on, on)
		}
	})
}

func TestARecordThatCannotBeWrittenLeavesAuditModeAsItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := steeredScene(t)
		defer a.end()
		dir := recordDir(a.s.cfg.StateDir, 1)
		require.NoError(t, os.Rename(dir, dir+".away"))
		require.NoError(t, os.WriteFile(dir, nil, 0o600)) // no directory can be made
		revision := a.Row().KernelRevision
		require.ErrorContains(t, a.set(true), "the settings of endpoint 1 are as they were: writing the record")
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
		a := steeredScene(t)
		defer a.end()
		a.steer(true, nil)
		err := a.set(true)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "audit mode on of endpoint 1 was not put into force in time, and is taken back: audit mode off, as before")
		require.ErrorContains(t, err, "no space left")
		a.inForce(false, false)
		a.steer(false, nil)
		time.Sleep(time.Minute)
		a.inForce(false, false)
	})
}

func TestABuildThatSwitchesAuditModeOnLateIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := steeredScene(t)
		defer a.end()
		late := make(chan struct{})
		a.steer(false, late)
		time.AfterFunc(4*time.Second, func() { close(late) })
		require.ErrorContains(t, a.set(true), "audit mode on of endpoint 1 was not put into force in time, and is taken back: audit mode off, as before")
		a.inForce(false, false)

		late = make(chan struct{})
		a.steer(false, late)
		require.ErrorContains(t, a.set(true), "a build that still runs may put it into force")
		close(late)
		a.inForce(false, false)
	})
}

func TestAuditModeThatIsNotSwitchedOffInTimeIsSaidToBeOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := steeredScene(t)
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
		a := steeredScene(t)
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

var (
	always = policytypes.EnforcementOf(policytypes.ModeAlways)
	never  = policytypes.EnforcementOf(policytypes.ModeNever)
)

func TestAModeIsInForceWhenChangeReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := steeredScene(t)
		defer a.end()
		for _, e := range []policytypes.Enforcement{never, never, always, policytypes.EnforcementNode, policytypes.EnforcementOf(policytypes.ModeDefault)} {
			before := a.Row()
			require.NoError(t, a.enforce(e))
			a.holds(Settings{Enforcement: e}, Settings{Enforcement: e})
			require.Equal(t, before.Enforcement != e, a.Row().KernelRevision != before.KernelRevision, "it is built if it is another")
			require.Equal(t, before.Enforcement != e, a.Row().PolicyGroup() != before.PolicyGroup(), "no slot is shared with another mode")
		}
		require.NoError(t, a.change(func(s *Settings) { *s = Settings{true, never} }))
		a.holds(Settings{true, never}, Settings{true, never})
		require.NoError(t, a.set(false))
		a.holds(Settings{false, never}, Settings{false, never})
	})
}

// Whatever the mode was and was to be.
func TestAModeThatIsNotInForceInTimeIsTakenBack(t *testing.T) {
	for _, c := range [][2]policytypes.Enforcement{{policytypes.EnforcementNode, never}, {never, always}, {always, policytypes.EnforcementNode}} {
		synctest.Test(t, func(t *testing.T) {
			a := steeredScene(t)
			defer a.end()
			before := Settings{Enforcement: c[0]}
			require.NoError(t, a.enforce(c[0]))
			a.steer(true, nil)
			err := a.enforce(c[1])
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, "enforcement "+c[1].String()+" of endpoint 1 was not put into force in time, and is taken back: enforcement "+c[0].String()+", as before")
			require.ErrorContains(t, err, "no space left")
			a.holds(before, before)
			a.steer(false, nil)
			time.Sleep(time.Minute)
			a.holds(before, before)

			late := make(chan struct{})
			a.steer(false, late)
			time.AfterFunc(4*time.Second, func() { close(late) })
			require.ErrorContains(t, a.enforce(c[1]), "is taken back")
			a.holds(before, before)
		})
	}
}

func TestARecordThatCannotBeWrittenLeavesTheModeAsItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := steeredScene(t)
		defer a.end()
		dir := recordDir(a.s.cfg.StateDir, 1)
		require.NoError(t, os.Rename(dir, dir+".away"))
		require.NoError(t, os.WriteFile(dir, nil, 0o600))
		revision := a.Row().KernelRevision
		require.ErrorContains(t, a.enforce(never), "the settings of endpoint 1 are as they were: writing the record")
		require.NoError(t, os.Remove(dir))
		require.NoError(t, os.Rename(dir+".away", dir))
		time.Sleep(time.Minute)
		a.holds(Settings{}, Settings{})
		require.Equal(t, revision, a.Row().KernelRevision, "nothing was built")
	})
}

// With a mode that cannot be put into force, audit mode that is to end does not
// come back.
func TestAuditModeThatIsToEndIsNotTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := steeredScene(t)
		defer a.end()
		require.NoError(t, a.set(true))
		a.steer(true, nil)
		err := a.change(func(s *Settings) { *s = Settings{false, always} })
		require.ErrorContains(t, err, "what the policy denies is let through until the next build")
		a.holds(Settings{}, Settings{Audit: true})
		a.steer(false, nil)
		time.Sleep(time.Minute)
		a.holds(Settings{}, Settings{})
	})
}

// Each of two calls ends with what it asked for, or says that it did not.
func TestChangesOfSettingsWaitForOneAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := steeredScene(t)
		defer a.end()
		hold := make(chan struct{})
		a.steer(false, hold)
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- a.enforce(never) }()
		synctest.Wait()
		go func() { second <- a.enforce(always) }()
		synctest.Wait()
		close(hold)
		require.NoError(t, <-first)
		require.NoError(t, <-second)
		a.holds(Settings{Enforcement: always}, Settings{Enforcement: always})

		hold = make(chan struct{})
		a.steer(false, hold)
		go func() { first <- a.enforce(never) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		require.ErrorContains(t, a.Change(ctx, func(s *Settings) { s.Enforcement = policytypes.EnforcementNode }), "are as they were, another change of them has not ended")
		close(hold)
		require.NoError(t, <-first)
		a.holds(Settings{Enforcement: never}, Settings{Enforcement: never})
	})
}

func TestAnEndpointThatGoesAwayTakesNoSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := steeredScene(t)
		defer a.end()
		hold := make(chan struct{})
		a.steer(false, hold)
		done := make(chan error, 1)
		go func() { done <- a.enforce(never) }()
		synctest.Wait()
		a.BeginDelete("test")
		require.ErrorIs(t, <-done, ErrNotAlive)
		close(hold)
	})
}
