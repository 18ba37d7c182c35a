package endpoint

import (
	"context"
	"fmt"
	"time"

	"github.com/weirnet/weir/pkg/endpoint/regeneration"
)

// takeBackTime bounds how long SetAudit waits for a build that may still switch
// on what was taken back.
const takeBackTime = 5 * time.Second

// SetAudit switches audit mode, and returns when the kernel has it. In audit mode
// what a rule denies is let through and told of. The record comes first: where it
// cannot be written nothing changes. What was not switched on in time is taken
// back, so that after an error denied traffic does not pass, or the error says
// that it does.
func (e *Endpoint) SetAudit(ctx context.Context, on bool) error {
	changed, wait := false, false
	var written error
	err := e.Update(func(t *Turn) {
		if changed = t.Row.Audit != on; changed {
			if written = t.writeAudit(on); written != nil {
				return
			}
			t.regenerate(regeneration.LevelPolicy, fmt.Sprintf("audit mode %v", on))
		}
		wait = t.Row.Built() || t.Row.Restored // what is not built yet is built with it
	})
	switch {
	case err != nil:
		return err
	case written != nil:
		return fmt.Errorf("audit mode of endpoint %d is as it was: %w", e.ID, written)
	case !wait:
		return nil
	}
	row, err := e.Wait(ctx, func(r *Row) bool { return r.Built() && r.KernelAudit == on || !r.State.Alive() })
	switch {
	case err == nil:
		return nil
	case on && changed:
		return e.takeBackAudit(err)
	case on:
		return fmt.Errorf("endpoint %d is in audit mode since before, but the build that was waited for has not ended (%s): %w", e.ID, row.State, err)
	}
	return fmt.Errorf("endpoint %d still lets through what its policy denies; its next build ends that (%s, %s): %w", e.ID, row.State, row.Reason, err)
}

// writeAudit changes the row once the record on disk says it.
func (t *Turn) writeAudit(on bool) error {
	before := t.Row.Audit
	t.Row.Audit = on
	err := writeRecord(t.e.cfg.StateDir, recordOf(t.Row, t.e.own.extra))
	if err != nil {
		t.Row.Audit = before
	}
	return err
}

// takeBackAudit switches audit mode off again that was not switched on in time. A
// build that fails leaves the kernel as it was; one that runs is waited for.
func (e *Endpoint) takeBackAudit(cause error) error {
	late := false
	var written error
	err := e.Update(func(t *Turn) {
		if late = t.Row.KernelAudit; late {
			return // it was switched on after all
		}
		if written = t.writeAudit(false); written != nil {
			t.Row.Audit = false // the owner goes on trying to write it
		}
		t.regenerate(regeneration.LevelPolicy, "audit mode is taken back")
	})
	if late || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), takeBackTime)
	defer cancel()
	row, err := e.Wait(ctx, func(r *Row) bool { return !r.auditing && !r.KernelAudit || !r.State.Alive() })
	text := "audit mode of endpoint %d was not switched on in time and is off (%s, %s)"
	switch {
	case err != nil:
		text = "audit mode of endpoint %d was not switched on in time; a build that still runs may let denied traffic through until the next one switches it off (%s, %s)"
	case written != nil:
		text += fmt.Sprintf("; but its record says on, until it can be written, for an agent that starts before (%v)", written)
	}
	return fmt.Errorf(text+": %w", e.ID, row.State, row.Reason, cause)
}
