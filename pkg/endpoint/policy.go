package endpoint

import (
	"context"
	"fmt"
	"time"

	"github.com/weirnet/weir/pkg/endpoint/plan"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

// Regenerate asks for a build. It reports whether this request queued one:
// false means that it was merged into a build that is already waiting, or
// comes with the identity, or that the endpoint is going away.
func (e *Endpoint) Regenerate(level regeneration.Level, reason string) (queued bool) {
	_ = e.Update(func(t *Turn) { queued = t.regenerate(level, reason) }) // an endpoint that goes away needs no build
	return queued
}

// regenerate is Regenerate within a turn.
func (t *Turn) regenerate(level regeneration.Level, reason string) bool {
	own := &t.e.own
	own.pending = regeneration.Max(own.pending, level)
	queued := false
	switch t.state {
	case regeneration.StateWaitingToRegenerate:
	case regeneration.StateRestoring:
		if _, held := own.held[t.Row.Identity]; !held {
			return false // the identity brings the build
		}
	case regeneration.StateWaitingForIdentity:
		if t.Row.Identity == 0 {
			if !t.Row.Built() {
				return false
			}
			// Under the old identity, so that a policy change does not wait for an allocation.
			level = regeneration.LevelPolicy
			queued = true
			break
		}
		fallthrough
	default:
		if !t.SetState(regeneration.StateWaitingToRegenerate, reason) {
			return false
		}
		queued = true
	}
	e := t.e
	t.after = append(t.after, func() { e.cfg.Queue.Enqueue(e, level, reason) })
	return queued
}

// Retry queues a build again after a failure, if it is still wanted.
func (e *Endpoint) Retry(level regeneration.Level, reason string) {
	_ = e.Update(func(t *Turn) {
		switch t.state {
		case regeneration.StateWaitingToRegenerate, regeneration.StateWaitingForIdentity:
			t.regenerate(level, reason)
		case regeneration.StateReady:
			if t.Row.Degraded != "" {
				t.regenerate(level, reason)
			}
		}
	})
}

// BeginBuild moves the endpoint to regenerating and returns the snapshot that
// the build works on and the highest level asked for. An endpoint that waits for
// a new identity is built under the one that the kernel has; its state stays. It
// reports false where there is nothing to build: there is no identity at all, or
// the endpoint is going away.
func (e *Endpoint) BeginBuild() (row *Row, level regeneration.Level, ok bool) {
	t, err := e.LockAlive()
	if err != nil {
		return nil, 0, false
	}
	own := &e.own
	switch {
	case t.state == regeneration.StateWaitingForIdentity && t.Row.Built():
		level, ok = regeneration.LevelPolicy, true
		old := *t.Row
		own.buildFor = old.LabelsInForce
		old.Identity = old.Realized.Identity
		old.Labels = own.held[old.Identity]
		row = &old
	case t.Row.Identity != 0:
		if ok = t.SetState(regeneration.StateRegenerating, ""); ok {
			level, own.pending = own.pending, 0
			row, own.buildFor = t.Row, t.Row.LabelRevision
		}
	}
	if ok {
		own.building, own.buildID = true, row.Identity
		settings := row.Settings
		t.Row.building = &settings
	}
	t.Unlock()
	return row, level, ok
}

// Outcome is what a build has put into the kernel.
type Outcome struct {
	Layout           plan.Layout
	PrefixIdentities [2]identity.NumericIdentity
	Slot             uint32
	SlotGroup        string
	KernelRevision   uint32
	Settings         Settings
	Entries          map[policytypes.Key]policytypes.Entry
	PolicyRevision   uint64
	Degraded         string // why more than the policy says is denied; empty otherwise
}

// CommitBuild records what the build has put into the kernel, and moves to
// ready. It reports false where the snapshot is stale: labels or policy moved
// on during the build, and another one is queued or comes with the identity.
func (e *Endpoint) CommitBuild(o Outcome) (ready bool) {
	t, err := e.lock()
	if err != nil {
		return false
	}
	defer t.Unlock()
	e.own.building, e.own.buildID = false, 0
	r := t.Row
	r.Realized, r.PrefixIdentities, r.Restored, r.LabelsInForce = &o.Layout, o.PrefixIdentities, false, e.own.buildFor
	r.Slot, r.SlotGroup, r.KernelRevision, r.Degraded = o.Slot, o.SlotGroup, o.KernelRevision, o.Degraded
	r.KernelSettings, r.building = o.Settings, nil
	r.PolicyEntries, r.RealizedPolicy = len(o.Entries), o.Entries
	r.PolicyRevision, r.AttemptedRevision = o.PolicyRevision, o.PolicyRevision
	r.NextPolicyRevision = max(r.NextPolicyRevision, o.PolicyRevision)
	if r.PolicyRevision >= r.AffectedRevision {
		r.PolicyRevision = r.NextPolicyRevision // later ones do not concern this endpoint
	}
	return t.SetState(regeneration.StateReady, "")
}

// FailBuild records why a build failed and moves back to
// waiting-to-regenerate. It reports whether the caller should retry later:
// not when another build is queued, or comes with the identity.
func (e *Endpoint) FailBuild(cause error, level regeneration.Level, revision uint64) (retry bool) {
	t, err := e.lock()
	if err != nil {
		return false
	}
	defer t.Unlock()
	e.own.building, e.own.buildID = false, 0
	e.own.pending = regeneration.Max(e.own.pending, level)
	t.Row.building = nil
	t.Row.AttemptedRevision = max(t.Row.AttemptedRevision, revision)
	if t.state == regeneration.StateWaitingForIdentity {
		return t.Row.Built()
	}
	if t.state != regeneration.StateRegenerating {
		return false
	}
	t.Row.Reason = cause.Error()
	t.e.status.add(StatusEntry{Time: time.Now(), Topic: TopicBPF, Severity: SeverityFailure, State: t.state, Message: cause.Error()})
	return t.SetState(regeneration.StateWaitingToRegenerate, cause.Error())
}

// DoubtPolicy says that the slot in force may not hold what RealizedPolicy says,
// because a change in place stopped half way: the next build writes it again.
func (e *Endpoint) DoubtPolicy() {
	_ = e.Update(func(t *Turn) { t.Row.RealizedPolicy, t.Row.PolicyEntries = nil, 0 }) // one that goes away has no next build
}

// PolicyChanged tells the endpoint of a new revision of the repository.
// affected says whether the change concerns a set of labels. An endpoint that is
// not concerned only raises the revision that it answers for. It reports whether
// a build is needed.
func (e *Endpoint) PolicyChanged(affected func(labels.LabelArray) bool, revision uint64) bool {
	before := e.Row()
	hit := affected == nil || before.Labels != nil && affected(before.Labels)
	build := false
	_ = e.Update(func(t *Turn) { // an endpoint that goes away needs no policy
		r := t.Row
		r.NextPolicyRevision = max(r.NextPolicyRevision, revision)
		// What a built endpoint that is not in sync enforces is of other labels or
		// an older revision than those that affected was asked about.
		if hit || r.LabelRevision != before.LabelRevision || r.Built() && !r.InSync() {
			r.AffectedRevision = max(r.AffectedRevision, revision)
			if r.PolicyRevision < revision || !r.Built() {
				build = true
				t.regenerate(regeneration.LevelPolicy, fmt.Sprintf("policy revision %d", revision))
			}
			return
		}
		if r.InSync() {
			r.PolicyRevision = r.NextPolicyRevision
		}
	})
	return build
}

// WaitForPolicyRevision blocks until the policy in force answers for the
// revision. An endpoint without programs in the kernel has no policy to wait
// for, except while its first build runs. A build that failed for the revision
// ends the wait with its reason.
func (e *Endpoint) WaitForPolicyRevision(ctx context.Context, revision uint64) error {
	row, err := e.Wait(ctx, func(r *Row) bool {
		return r.settled(revision) || r.AttemptedRevision >= revision
	})
	switch {
	case err != nil && e.alive.Err() != nil:
		return nil // gone: it uses no policy any more
	case err != nil:
		return fmt.Errorf("endpoint %d has policy revision %d and not %d yet (%s): %w", e.ID, row.PolicyRevision, revision, row.State, err)
	case !row.settled(revision):
		return fmt.Errorf("endpoint %d stays at policy revision %d instead of %d: %s", e.ID, row.PolicyRevision, revision, row.Reason)
	}
	return nil
}

func (r *Row) settled(revision uint64) bool {
	if !r.State.Alive() || r.PolicyRevision >= revision {
		return true
	}
	return !r.Built() && r.State != regeneration.StateRegenerating
}
