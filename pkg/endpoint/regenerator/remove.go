package regenerator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/plan"
)

// Remove takes an endpoint down, after it has stopped to change: every step of
// plan.Teardown, each of which may be repeated. It ends at the first error; the
// record stays then, so that a later call or the next agent goes on. free is
// called at the step that gives the number back.
func (r *Regenerator) Remove(ctx context.Context, e *endpoint.Endpoint, free func()) error {
	if err := e.WaitBuilds(ctx); err != nil {
		return fmt.Errorf("waiting for the build of endpoint %d to end: %w", e.ID, err)
	}
	r.forget(e)
	row := e.Row()
	for _, step := range plan.Teardown() {
		if err := r.undo(ctx, e, row, step, free); err != nil {
			err = fmt.Errorf("removing the %s of endpoint %d: %w", step, e.ID, err)
			e.Note(endpoint.TopicBPF, endpoint.SeverityFailure, "%v", err)
			return err
		}
	}
	return nil
}

func (r *Regenerator) undo(ctx context.Context, e *endpoint.Endpoint, row *endpoint.Row, step plan.Undo, free func()) error {
	l := row.Desired()
	switch step {
	case plan.UndoEndpointMap:
		return eachAddr(l, r.cfg.Endpoints.Delete)
	case plan.UndoIPCache:
		for _, a := range l.Addrs() {
			r.cfg.Addresses.Withdraw(a, owner(l.ID))
		}
		return nil
	case plan.UndoAttach:
		return r.cfg.Datapath.Unload(ctx, l)
	case plan.UndoLink:
		return r.cfg.Connector.Disconnect(ctx, l)
	case plan.UndoPolicy:
		return r.releasePolicy(e)
	case plan.UndoConntrack:
		return eachAddr(l, r.cfg.Conntrack.Purge)
	case plan.UndoRecord:
		return e.RemoveRecord()
	case plan.UndoNumber:
		free()
		return nil
	case plan.UndoIdentity:
		return e.ReleaseIdentities(ctx)
	}
	return errors.New("no such step")
}

// releasePolicy takes the slot from the endpoint's word before it releases it.
func (r *Regenerator) releasePolicy(e *endpoint.Endpoint) error {
	if err := r.cfg.Words.Clear(e.ID); err != nil {
		return err
	}
	row := e.Row()
	if err := r.release(row.Slot, row.SlotGroup); err != nil {
		return err
	}
	e.HoldSlot(0, "")
	return nil
}

// release gives up a slot; slot 0 belongs to nobody.
func (r *Regenerator) release(slot uint32, group string) error {
	if slot == 0 {
		return nil
	}
	return r.cfg.Slots.Release(slot, group)
}

// Adopt claims what an earlier agent left in force for a restored endpoint. Call
// it for every one before Start.
func (r *Regenerator) Adopt(e *endpoint.Endpoint) error {
	slot, _, err := r.cfg.Words.Policy(e.ID)
	group := e.Row().PolicyGroup()
	if err == nil && slot != 0 {
		if err = r.cfg.Slots.Adopt(slot, group); err == nil {
			e.HoldSlot(slot, group)
		}
	}
	if err != nil {
		return fmt.Errorf("adopting the policy in force of endpoint %d: %w", e.ID, err)
	}
	return nil
}

func eachAddr(l plan.Layout, f func(netip.Addr) error) error {
	for _, a := range l.Addrs() {
		if err := f(a); err != nil {
			return err
		}
	}
	return nil
}
