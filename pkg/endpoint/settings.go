package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

// takeBackTime bounds how long Change waits for a build that may still put into
// force what was taken back.
const takeBackTime = 5 * time.Second

// Settings are what an operator sets of an endpoint. They outlive the agent.
type Settings struct {
	// Audit lets through what a rule denies; events tell of it.
	Audit bool
	// Enforcement is the endpoint's own mode, where it has one.
	Enforcement policytypes.Enforcement
}

// since names what is another than in old: "audit mode on", "enforcement never".
func (s Settings) since(old Settings) string {
	var out []string
	if s.Audit != old.Audit {
		word := "off"
		if s.Audit {
			word = "on"
		}
		out = append(out, "audit mode "+word)
	}
	if s.Enforcement != old.Enforcement {
		out = append(out, "enforcement "+s.Enforcement.String())
	}
	return strings.Join(out, " and ")
}

// Change sets what change changes, and returns when the kernel has it. The record
// comes first: where it cannot be written nothing changes. What was not put into
// force in time is taken back, so that after an error all is as before, or the
// error says what is not. Audit mode that was to end is not: it stays to be ended.
func (e *Endpoint) Change(ctx context.Context, change func(*Settings)) error {
	select {
	case e.changing <- struct{}{}:
		defer func() { <-e.changing }()
	case <-ctx.Done():
		return fmt.Errorf("the settings of endpoint %d are as they were, another change of them has not ended: %w", e.ID, ctx.Err())
	}
	var before, want Settings
	wait := false
	var written error
	err := e.Update(func(t *Turn) {
		before, want = t.Row.Settings, t.Row.Settings
		if change(&want); want != before {
			if written = t.writeSettings(want); written != nil {
				return
			}
			t.regenerate(regeneration.LevelPolicy, want.since(before))
		}
		// What is not built yet is built with them.
		wait = t.Row.Built() || t.Row.Restored || t.Row.building != nil
	})
	switch {
	case err != nil:
		return err
	case written != nil:
		return fmt.Errorf("the settings of endpoint %d are as they were: %w", e.ID, written)
	case !wait:
		return nil
	}
	reason := "" // the last one: a build that runs has none
	row, err := e.Wait(ctx, func(r *Row) bool {
		reason = cmp.Or(r.Reason, reason)
		return r.Enforces() && r.KernelSettings == want || !r.State.Alive()
	})
	back := before
	back.Audit = before.Audit && want.Audit
	switch {
	case err == nil && !row.State.Alive():
		return e.notAlive()
	case err == nil:
		return nil
	case back != want:
		return e.takeBack(want, back, fmt.Errorf("%s, %s: %w", row.State, reason, err))
	case want == before:
		return fmt.Errorf("endpoint %d has these settings since before, but the build that was waited for has not ended (%s, %s): %w", e.ID, row.State, reason, err)
	}
	return fmt.Errorf("endpoint %d still lets through what its policy denies; its next build ends that (%s, %s): %w", e.ID, row.State, reason, err)
}

// writeSettings changes the row once the disk says it: the book of settings, and the
// record.
func (t *Turn) writeSettings(s Settings) error {
	before := t.Row.Settings
	if err := t.e.cfg.Settings.Keep(t.Row.Pod, s); err != nil {
		return err
	}
	t.Row.Settings = s
	err := writeRecord(t.e.cfg.StateDir, recordOf(t.Row, t.e.own.extra))
	if err != nil {
		t.Row.Settings = before
		err = errors.Join(err, t.e.cfg.Settings.Keep(t.Row.Pod, before))
	}
	return err
}

// takeBack gives up settings that were not put into force in time. A build that
// fails leaves the kernel as it was; one that runs is waited for.
func (e *Endpoint) takeBack(want, back Settings, cause error) error {
	late := false
	var written error
	err := e.Update(func(t *Turn) {
		if late = t.Row.Enforces() && t.Row.KernelSettings == want; late {
			return // they were put into force after all
		}
		if written = t.writeSettings(back); written != nil {
			t.Row.Settings = back // the owner goes on trying to write it
		}
		t.regenerate(regeneration.LevelPolicy, want.since(back)+" is taken back")
	})
	if late || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), takeBackTime)
	defer cancel()
	row, err := e.Wait(ctx, func(r *Row) bool { return !r.mayHave(want) || !r.State.Alive() })
	text := fmt.Sprintf("%s of endpoint %d was not put into force in time, and ", want.since(back), e.ID)
	if err == nil {
		text += fmt.Sprintf("is taken back: %s, as before", back.since(want))
	} else {
		text += "is to be taken back; a build that still runs may put it into force until the next one ends that"
	}
	if written != nil {
		text += fmt.Sprintf("; its record still has it, until it can be written, for an agent that starts before (%v)", written)
	}
	if row.KernelSettings.Audit && !back.Audit {
		text += "; what the policy denies is let through until the next build"
	}
	return fmt.Errorf("%s: %w", text, cause)
}

// mayHave reports whether the kernel has the settings, or a build that runs may
// give them to it.
func (r *Row) mayHave(s Settings) bool {
	return r.Enforces() && r.KernelSettings == s || r.building != nil && *r.building == s
}
