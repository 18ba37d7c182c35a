package regenerator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/plan"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/maps/policymap"
	"github.com/weirnet/weir/pkg/policy"
)

// errStale ends a build whose labels moved on; the next one is on its way.
var errStale = errors.New("labels changed during the build")

// work is one running build.
type work struct {
	r        *Regenerator
	e        *endpoint.Endpoint
	row      *endpoint.Row // the snapshot that the build works on
	level    regeneration.Level
	resolved Resolved
	prefixes [2]identity.NumericIdentity

	slot, revision uint32
	group          string // under which the slot is held
	degraded       string
	auditDiffers   bool // from what the kernel has
	programs       Programs

	undo   []func(context.Context) error // of the steps done so far
	finish []func() error                // once the build has succeeded
}

// run passes the stations from policy.resolve to expose. On an error everything
// that it did is undone.
func (w *work) run(ctx context.Context) (endpoint.Outcome, error) {
	var out endpoint.Outcome
	steps, err := w.prepare(ctx)
	if err != nil {
		return out, err
	}
	for _, s := range steps {
		if err = w.pass(ctx, s); err != nil {
			break
		}
	}
	if err != nil {
		return out, w.revert(err)
	}
	for _, f := range w.finish {
		if err := f(); err != nil {
			w.e.Note(endpoint.TopicBPF, endpoint.SeverityWarning, "after the build: %v", err)
		}
	}
	out = endpoint.Outcome{
		Layout: w.row.Desired(), PrefixIdentities: w.prefixes, Slot: w.slot, SlotGroup: w.group, KernelRevision: w.revision, Settings: w.row.Settings,
		Entries: w.resolved.Entries, PolicyRevision: w.resolved.Revision, Degraded: w.degraded,
	}
	if w.resolved.Keep != "" {
		out.Entries = w.row.RealizedPolicy
		if w.row.Built() {
			out.Settings.Enforcement = w.row.KernelSettings.Enforcement
		}
	}
	if w.slot == 0 {
		out.Entries = nil
	}
	return out, nil
}

// prepare computes, without touching the kernel, what has to be done.
func (w *work) prepare(ctx context.Context) ([]plan.Step, error) {
	leave := w.e.Enter(regeneration.StationPolicyResolve, "")
	var err error
	if err = w.e.RefreshNames(ctx, nil); err == nil {
		w.resolved, err = w.r.cfg.Policy.Resolve(ctx, w.row)
	}
	leave(err)
	if err == nil {
		err = w.mayKeep()
	}
	if err != nil {
		return nil, fmt.Errorf("resolving the policy of endpoint %d: %w", w.row.ID, err)
	}
	if w.stale() {
		return nil, errStale
	}
	leave = w.e.Enter(regeneration.StationPlan, "")
	for i, a := range []netip.Addr{w.row.IPv4, w.row.IPv6} {
		if a.IsValid() {
			w.prefixes[i] = w.r.cfg.Addresses.PrefixIdentity(a)
		}
	}
	audits, err := w.r.cfg.Words.Audit(w.row.ID)
	if err != nil {
		leave(err)
		return nil, err
	}
	w.auditDiffers = audits != w.row.Audit
	w.slot, w.group, w.revision = w.row.Slot, w.row.SlotGroup, w.row.KernelRevision
	steps := plan.Build(plan.Input{
		Level: w.level, Realized: w.row.Realized, Desired: w.row.Desired(),
		PolicyDiffers:         w.policyDiffers(),
		PrefixIdentityDiffers: w.row.PrefixIdentities != w.prefixes,
		Redirects:             endpoint.CountRedirects(w.resolved.Entries) + endpoint.CountRedirects(w.row.RealizedPolicy),
	})
	leave(nil)
	return steps, nil
}

// policyDiffers reports whether there is something to swap. A slot that is held
// with others is left even if the contents are equal: later they may change it.
func (w *work) policyDiffers() bool {
	if w.resolved.Keep != "" {
		return w.auditDiffers
	}
	return w.auditDiffers || w.row.Degraded != "" || w.row.SlotGroup != w.row.PolicyGroup() || !maps.Equal(w.row.RealizedPolicy, w.resolved.Entries)
}

// mayKeep refuses a build whose policy is not known where the kernel has none for
// this identity yet.
func (w *work) mayKeep() error {
	switch {
	case w.resolved.Keep == "":
		return nil
	case w.row.Realized == nil && !w.row.Restored:
		return fmt.Errorf("it stays closed: %s", w.resolved.Keep)
	case w.row.Realized != nil && w.row.Realized.Identity != w.row.Identity:
		return fmt.Errorf("it keeps identity and policy: %s", w.resolved.Keep)
	}
	return nil
}

// stale reports whether the labels moved on since the snapshot. A build under
// the old identity, while a new one is being allocated, never is.
func (w *work) stale() bool {
	return w.row.State == regeneration.StateRegenerating && w.e.Row().LabelRevision != w.row.LabelRevision
}

// pass runs one step of the plan.
func (w *work) pass(ctx context.Context, s plan.Step) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if w.stale() {
		return errStale
	}
	leave := w.e.Enter(s.Station, s.Reason)
	var err error
	switch s.Station {
	case regeneration.StationRedirect:
		err = w.redirect(ctx)
	case regeneration.StationLoad:
		err = w.load(ctx)
	case regeneration.StationPolicySwap:
		err = w.swap()
	case regeneration.StationAttach:
		err = w.attach(ctx)
	case regeneration.StationExpose:
		err = w.expose(ctx)
	default:
		err = fmt.Errorf("the plan names the station %q, which no build passes", s.Station)
	}
	leave(err)
	if err != nil {
		return fmt.Errorf("station %s of endpoint %d: %w", s.Station, w.row.ID, err)
	}
	return nil
}

// revert undoes the steps that were done, the last one first.
func (w *work) revert(cause error) error {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	for i := len(w.undo) - 1; i >= 0; i-- {
		if err := w.undo[i](ctx); err != nil {
			cause = errors.Join(cause, fmt.Errorf("undoing: %w", err))
		}
	}
	return cause
}

func (w *work) onUndo(f func(context.Context) error) { w.undo = append(w.undo, f) }

func (w *work) redirect(ctx context.Context) error {
	undo, finish, err := w.e.PrepareRedirects(ctx, w.r.cfg.Redirects, w.resolved.Entries)
	if err != nil {
		return err
	}
	w.onUndo(func(context.Context) error { undo(); return nil })
	w.finish = append(w.finish, func() error { finish(); return nil })
	return nil
}

func (w *work) load(ctx context.Context) error {
	p, err := w.r.cfg.Datapath.Load(ctx, w.row.Desired())
	if err != nil {
		return err
	}
	w.programs = p
	w.onUndo(func(context.Context) error { return p.Close() })
	return nil
}

// swap puts the policy into force by one store. Before it returns, the slot is
// complete; after it, live flows are judged again.
func (w *work) swap() error {
	if w.resolved.Keep != "" {
		return w.keep()
	}
	old := w.slot
	slot, fresh, err := w.fill(old)
	if errors.Is(err, policymap.ErrFull) {
		slot, fresh, err = w.fillPart(old, err)
	}
	if err != nil {
		return err
	}
	revision := w.r.cfg.Words.NextRevision()
	if w.auditDiffers {
		err = w.r.cfg.Words.SetAudit(w.row.ID, w.row.Audit)
	}
	if err == nil {
		err = w.r.cfg.Words.SetPolicy(w.row.ID, slot, revision)
	}
	if err != nil {
		// A change in place is there for the whole group already; the retry
		// gives this endpoint its revision.
		w.e.DoubtPolicy()
		return errors.Join(err, w.auditBack(), w.releaseIf(fresh, slot, w.row.PolicyGroup()))
	}
	w.slot, w.revision, w.group = slot, revision, w.row.PolicyGroup()
	w.onUndo(func(context.Context) error { return w.swapBack(old, slot, fresh) })
	w.finish = append(w.finish, func() error { return w.releaseIf(fresh, old, w.row.SlotGroup) })
	return nil
}

// keep leaves slot and revision as they are; audit mode alone may change.
func (w *work) keep() error {
	if !w.auditDiffers {
		return nil
	}
	w.onUndo(func(context.Context) error { return w.auditBack() })
	return w.r.cfg.Words.SetAudit(w.row.ID, w.row.Audit)
}

// fill returns a slot that holds the wanted policy; fresh says that the endpoint
// now holds it beside the old one, perhaps the same slot twice. A small change of
// a policy in force may be made in its own slot; not in a build that has steps
// after the swap, which could fail and need the old policy back.
func (w *work) fill(old uint32) (slot uint32, fresh bool, err error) {
	want, group := endpoint.KernelLines(w.resolved.Entries), w.row.PolicyGroup()
	if old != 0 && group == w.row.SlotGroup && w.programs == nil && w.row.PrefixIdentities == w.prefixes {
		slot, err = w.r.cfg.Slots.Update(old, group, w.resolved.Version, want)
		if err != nil {
			w.e.DoubtPolicy()
		}
		return slot, slot != old, err
	}
	slot, err = w.r.cfg.Slots.Acquire(group, w.resolved.Version, want)
	return slot, true, err
}

// fillPart is fill for a policy that has no room: what denies goes in first. Where
// that has no room either, slot 0 denies everything.
func (w *work) fillPart(old uint32, cause error) (slot uint32, fresh bool, err error) {
	var full *policymap.FullError
	if errors.As(cause, &full) && full.What == policymap.Lines {
		fits, left := policy.MapState(w.resolved.Entries).Fit(full.Limit)
		w.resolved.Entries = fits
		if fits != nil {
			w.degraded = fmt.Sprintf("policy map full, %d of its lines that allow are left out: %v", left, cause)
			slot, fresh, cause = w.fill(old)
		}
	}
	switch {
	case errors.Is(cause, policymap.ErrFull):
		slot, fresh = 0, old != 0
		w.degraded = fmt.Sprintf("policy map full, everything is denied: %v", cause)
	case cause != nil:
		return 0, false, cause
	}
	w.e.Note(endpoint.TopicPolicy, endpoint.SeverityFailure, "%s", w.degraded)
	return slot, fresh, nil
}

// auditBack leaves audit mode as it was before the build: what was not built must
// not let denied traffic through.
func (w *work) auditBack() error {
	if !w.auditDiffers {
		return nil
	}
	return w.r.cfg.Words.SetAudit(w.row.ID, !w.row.Audit)
}

func (w *work) swapBack(old, slot uint32, fresh bool) error {
	if err := w.auditBack(); err != nil {
		return err
	}
	var err error
	if w.row.Built() || w.row.Restored {
		err = w.r.cfg.Words.SetPolicy(w.row.ID, old, w.r.cfg.Words.NextRevision())
	} else {
		err = w.r.cfg.Words.Clear(w.row.ID)
	}
	if err != nil {
		return err // a slot that is still named must stay
	}
	return w.releaseIf(fresh, slot, w.row.PolicyGroup())
}

func (w *work) releaseIf(fresh bool, slot uint32, group string) error {
	if !fresh {
		return nil
	}
	return w.r.release(slot, group)
}

func (w *work) attach(ctx context.Context) error {
	w.onUndo(w.unattach) // also where one of several hooks was attached before the error
	return w.programs.Attach(ctx)
}

// unattach brings back the programs from before the build. A restored endpoint
// keeps the new ones, because its old ones are not known.
func (w *work) unattach(ctx context.Context) error {
	switch {
	case w.row.Realized != nil:
		p, err := w.r.cfg.Datapath.Load(ctx, *w.row.Realized)
		if err != nil {
			return err
		}
		if err := p.Attach(ctx); err != nil {
			return errors.Join(err, p.Close())
		}
		return nil
	case w.row.Restored:
		return nil
	}
	return w.r.cfg.Datapath.Unload(ctx, w.row.Desired())
}

// expose lets packets reach the pod: the endpoint map comes after the programs,
// the ipcache after the endpoint map, the link and the routes last.
func (w *work) expose(ctx context.Context) error {
	l := w.row.Desired()
	fresh := w.row.Realized == nil && !w.row.Restored
	w.onUndo(func(ctx context.Context) error { return w.unexpose(ctx, fresh) })
	for _, a := range l.Addrs() {
		if fresh { // flows of an earlier owner of the address are not ours
			if err := w.r.cfg.Conntrack.Purge(a); err != nil {
				return fmt.Errorf("forgetting old connections of %s: %w", a, err)
			}
		}
		if err := w.r.cfg.Endpoints.Put(a, endpoint.KernelInfo(l, w.prefixOf(a))); err != nil {
			return fmt.Errorf("writing the endpoint map entry of %s: %w", a, err)
		}
		w.r.cfg.Addresses.Publish(a, owner(l.ID), l.Identity)
	}
	if w.row.Realized == nil {
		return w.r.cfg.Connector.Connect(ctx, l)
	}
	return nil
}

func (w *work) unexpose(ctx context.Context, fresh bool) error {
	l := w.row.Desired()
	if old := w.row.Realized; old != nil {
		var err error
		for i, a := range []netip.Addr{old.IPv4, old.IPv6} {
			if a.IsValid() {
				err = errors.Join(err, w.r.cfg.Endpoints.Put(a, endpoint.KernelInfo(*old, w.row.PrefixIdentities[i])))
				w.r.cfg.Addresses.Publish(a, owner(old.ID), old.Identity)
			}
		}
		return err
	}
	if !fresh {
		return nil // restored: traffic goes on
	}
	var err error
	for _, a := range l.Addrs() {
		err = errors.Join(err, w.r.cfg.Endpoints.Delete(a))
		w.r.cfg.Addresses.Withdraw(a, owner(l.ID))
	}
	return errors.Join(err, w.r.cfg.Connector.Disconnect(ctx, l))
}

func (w *work) prefixOf(a netip.Addr) identity.NumericIdentity {
	if a == w.row.IPv4 {
		return w.prefixes[0]
	}
	return w.prefixes[1]
}
