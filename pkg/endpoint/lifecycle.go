package endpoint

import (
	"context"
	"net/netip"

	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	"github.com/weirnet/weir/pkg/identity"
)

// Restore starts an endpoint from its record, in state restoring. Nothing is
// built before Resume.
func Restore(cfg Config, rec Record) *Endpoint {
	row := rec.row()
	row.State, row.Restored, row.BootID = regeneration.StateRestoring, true, cfg.BootID
	row.Reason = "restored from its record"
	if rec.made {
		row.Reason = "restored from the kernel; its record was lost"
	}
	if rec.Deleting {
		row.State, row.Reason = regeneration.StateDisconnecting, "its deletion was interrupted"
	}
	e := newEndpoint(cfg, row, rec.extra)
	if rec.Deleting {
		e.kill()
	}
	if rec.made {
		e.persist() // before the owner, who tries again where it fails
	}
	e.start()
	return e
}

// Claim takes a restored endpoint's identity again and tells the policy of it.
// Call it for all of them before the first Resume: what is built earlier would
// not know the others and cut their flows.
func (e *Endpoint) Claim(ctx context.Context) error {
	ls := e.Row().Labels
	if len(ls) == 0 {
		return nil
	}
	id, err := e.cfg.Identities.allocate(ctx, ls)
	if err != nil {
		return err
	}
	t, err := e.LockAlive()
	if err != nil {
		e.cfg.Identities.releaseLater(id, ls)
		return err
	}
	defer t.Unlock()
	e.own.held[id] = ls
	return nil
}

// Resume lets a restored endpoint go on: its identity is allocated again from
// the labels of its record, and then it is built. Call it when all restored
// endpoints are registered. Without labels in the record SetLabels does it.
func (e *Endpoint) Resume() {
	_ = e.Update(func(t *Turn) { // one that goes away has nothing to resume
		if t.state == regeneration.StateRestoring && len(t.Row.Labels) > 0 {
			t.needIdentity("restored")
		}
	})
}

// HoldSlot records which policy slot the endpoint holds: the one that an earlier
// agent left in force, or 0 once a deletion has released it.
func (e *Endpoint) HoldSlot(slot uint32, group string) {
	if t, err := e.lock(); err == nil {
		t.Row.Slot, t.Row.SlotGroup = slot, group
		t.Unlock()
	}
}

// BeginDelete moves to disconnecting: from here on LockAlive fails. When it
// returns, the record says that the endpoint is being deleted, so that the next
// agent finishes an interrupted deletion.
func (e *Endpoint) BeginDelete(reason string) {
	t, err := e.lock()
	if err != nil {
		return
	}
	t.SetState(regeneration.StateDisconnecting, reason)
	t.Unlock()
	if t, err := e.lock(); err == nil { // the owner writes the record between two turns
		t.Unlock()
	}
}

// WaitBuilds drops the queued build and waits for the running one to end.
func (e *Endpoint) WaitBuilds(ctx context.Context) error { return e.cfg.Queue.Cancel(ctx, e) }

// RemoveRecord removes the record for good. It may be repeated.
func (e *Endpoint) RemoveRecord() error {
	t, err := e.lock()
	if err != nil {
		return nil // the owner ended: it was removed before
	}
	e.own.gone = true
	t.Unlock()
	return removeRecord(e.cfg.StateDir, e.ID)
}

// FinishDelete moves to disconnected and ends the endpoint's goroutines.
func (e *Endpoint) FinishDelete() {
	if t, err := e.lock(); err == nil {
		t.SetState(regeneration.StateDisconnected, "deleted")
		t.Unlock()
	}
	e.Close()
}

// SetPrefix tells the endpoint which prefix identity covers one of its addresses
// now; a difference to what the endpoint map says is written by a build.
func (e *Endpoint) SetPrefix(addr netip.Addr, prefix identity.NumericIdentity) {
	_ = e.Update(func(t *Turn) { // one that goes away has no entry to rewrite
		i := 0
		if addr == t.Row.IPv6 {
			i = 1
		}
		if t.Row.Built() && t.Row.PrefixIdentities[i] != prefix {
			t.regenerate(regeneration.LevelPolicy, "prefix identity changed")
		}
	})
}
