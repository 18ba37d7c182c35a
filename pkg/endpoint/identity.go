package endpoint

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

// identityAllocator is identity/cache.
type identityAllocator interface {
	Allocate(ctx context.Context, ls labels.LabelArray) (id *identity.Identity, isNew bool, err error)
	Release(ctx context.Context, id identity.NumericIdentity) (gone bool, err error)
}

// identityUsers is policy/repository: it returns when the policy maps of all
// endpoints know of the change.
type identityUsers interface {
	UpdateIdentities(ctx context.Context, added, removed identity.IdentityMap) error
}

// Waits between attempts to allocate or release an identity: doubled from the
// first to the last.
const (
	identityRetryMin = 100 * time.Millisecond
	identityRetryMax = 2 * time.Second
)

// IdentityKeeper allocates identities for all endpoints of an agent and keeps
// the policy informed: a number is in every policy map before anybody uses it.
type IdentityKeeper struct {
	log   *slog.Logger
	alloc identityAllocator
	users identityUsers

	mu    sync.Mutex
	count map[identity.NumericIdentity]int // references that endpoints hold
	// announcing holds the numbers that the policy is being told of.
	announcing map[identity.NumericIdentity]chan struct{} // closed at the end

	ctx     context.Context
	stop    context.CancelFunc
	workers sync.WaitGroup
}

// NewIdentityKeeper returns a keeper without references.
func NewIdentityKeeper(log *slog.Logger, alloc identityAllocator, users identityUsers) *IdentityKeeper {
	k := &IdentityKeeper{log: log, alloc: alloc, users: users, count: map[identity.NumericIdentity]int{},
		announcing: map[identity.NumericIdentity]chan struct{}{}}
	k.ctx, k.stop = context.WithCancel(context.Background())
	return k
}

// Close ends releases that are still being retried.
func (k *IdentityKeeper) Close() {
	k.stop()
	k.workers.Wait()
}

// allocate takes one reference and announces the number. It announces known
// numbers too, because the endpoint that allocated one first may not have come
// to it yet.
func (k *IdentityKeeper) allocate(ctx context.Context, ls labels.LabelArray) (identity.NumericIdentity, error) {
	id, _, err := k.alloc.Allocate(ctx, ls)
	if err != nil {
		return 0, fmt.Errorf("allocating an identity for %s: %w", ls, err)
	}
	if id.ID.IsReserved() {
		return id.ID, nil
	}
	k.add(id.ID, 1)
	if err := k.announce(ctx, id.ID, ls); err != nil {
		k.releaseLater(id.ID, ls)
		return 0, fmt.Errorf("announcing identity %s to the policy: %w", id.ID, err)
	}
	return id.ID, nil
}

// announce returns when the policy maps know the number. Of several that come
// at once one tells the policy, and the others wait for it: the policy answers
// at once for a number that it has heard of, even while the maps do not hold it.
func (k *IdentityKeeper) announce(ctx context.Context, id identity.NumericIdentity, ls labels.LabelArray) error {
	for {
		k.mu.Lock()
		other := k.announcing[id]
		mine := make(chan struct{})
		if other == nil {
			k.announcing[id] = mine
		}
		k.mu.Unlock()
		if other == nil {
			err := k.users.UpdateIdentities(ctx, identity.IdentityMap{id: ls}, nil)
			k.mu.Lock()
			delete(k.announcing, id)
			k.mu.Unlock()
			close(mine)
			return err
		}
		select {
		case <-other: // then ask again: it may have failed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Release gives one reference back. When it was the last one of the node, the
// policy forgets the number, unless somebody has taken it again meanwhile.
func (k *IdentityKeeper) Release(ctx context.Context, id identity.NumericIdentity, ls labels.LabelArray) error {
	if id.IsReserved() {
		return nil
	}
	gone, err := k.alloc.Release(ctx, id)
	if err != nil {
		return fmt.Errorf("releasing identity %s: %w", id, err)
	}
	if k.add(id, -1) > 0 || !gone {
		return nil
	}
	m := identity.IdentityMap{id: ls}
	if err := k.users.UpdateIdentities(ctx, nil, m); err != nil {
		k.log.Warn("Policy keeps an identity that nobody uses; it goes with the next restart", LogIdentity, id, LogError, err)
	}
	if k.add(id, 0) > 0 {
		if err := k.users.UpdateIdentities(ctx, m, nil); err != nil {
			return fmt.Errorf("announcing identity %s again: %w", id, err)
		}
	}
	return nil
}

func (k *IdentityKeeper) add(id identity.NumericIdentity, n int) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.count[id] = max(k.count[id]+n, 0)
	left := k.count[id]
	if left == 0 {
		delete(k.count, id)
	}
	return left
}

// releaseLater releases in the background until it succeeds or the agent stops.
func (k *IdentityKeeper) releaseLater(id identity.NumericIdentity, ls labels.LabelArray) {
	k.workers.Add(1)
	go func() {
		defer k.workers.Done()
		for wait := identityRetryMin; ; wait = min(2*wait, identityRetryMax) {
			err := k.Release(k.ctx, id, ls)
			if err == nil || k.ctx.Err() != nil {
				return
			}
			k.log.Warn("Identity not released; retrying", LogIdentity, id, LogError, err, "after", wait)
			if !sleep(k.ctx, wait) {
				return
			}
		}
	}()
}

// SetLabels gives the endpoint its labels and named ports. A change of the
// identity-relevant ones sends it back to waiting-for-identity; the latest
// labels win, whichever allocation answers first. The kernel keeps the old
// identity until the next build.
func (e *Endpoint) SetLabels(ids, infos labels.LabelArray, ports policytypes.NamedPorts) error {
	return e.Update(func(t *Turn) {
		t.Row.InfoLabels = infos
		relabelled, renamed := !t.Row.Labels.Equal(ids), !maps.Equal(t.Row.NamedPorts, ports)
		if relabelled || renamed {
			t.Row.Labels, t.Row.NamedPorts = ids, ports
			t.Row.LabelRevision++
		}
		switch {
		case relabelled:
			t.Row.Identity = 0
			t.needIdentity("labels changed")
		case renamed && t.state != regeneration.StateWaitingForIdentity:
			t.regenerate(regeneration.LevelPolicy, "named ports changed")
		}
	})
}

// needIdentity leads to an identity for the row's labels, sooner or later.
func (t *Turn) needIdentity(reason string) {
	reason = "waiting for an identity: " + reason
	switch t.state {
	case regeneration.StateRestoring, regeneration.StateWaitingForIdentity:
		t.Row.Reason = reason
	default:
		t.SetState(regeneration.StateWaitingForIdentity, reason)
	}
	own := &t.e.own
	own.pending = regeneration.Max(own.pending, regeneration.LevelLoad)
	if own.resolving {
		return
	}
	own.resolving = true
	e := t.e
	e.workers.Add(1)
	t.after = append(t.after, func() { go e.resolveIdentity() })
}

// resolveIdentity is the station identity: it runs until the identity of the
// newest labels is there, or the endpoint goes away.
func (e *Endpoint) resolveIdentity() {
	defer e.workers.Done()
	for wait := identityRetryMin; ; wait = min(2*wait, identityRetryMax) {
		row := e.Row()
		leave := e.Enter(regeneration.StationIdentity, "")
		id, err := e.cfg.Identities.allocate(e.alive, row.Labels)
		leave(err)
		if err == nil {
			done, err := e.takeIdentity(row.LabelRevision, id, row.Labels)
			if done || err != nil {
				return
			}
			wait = identityRetryMin // the labels moved on: ask again at once
			continue
		}
		if e.alive.Err() != nil {
			return
		}
		e.Note(TopicOther, SeverityWarning, "%v; next attempt in %s", err, wait)
		if e.Update(func(t *Turn) { t.Row.Reason = err.Error() }) != nil || !sleep(e.alive, wait) {
			return
		}
	}
}

// takeIdentity makes the identity the endpoint's own if it belongs to the
// newest labels, and gives it back if it does not or the endpoint is going away.
func (e *Endpoint) takeIdentity(revision uint64, id identity.NumericIdentity, ls labels.LabelArray) (done bool, err error) {
	t, err := e.LockAlive()
	if err != nil {
		e.cfg.Identities.releaseLater(id, ls)
		return false, err
	}
	defer t.Unlock()
	if t.Row.LabelRevision != revision && !t.Row.Labels.Equal(ls) {
		t.after = append(t.after, func() { e.cfg.Identities.releaseLater(id, ls) })
		return false, nil
	}
	if _, twice := e.own.held[id]; twice {
		t.after = append(t.after, func() { e.cfg.Identities.releaseLater(id, ls) })
	}
	e.own.held[id], e.own.resolving = ls, false
	t.Row.Identity = id
	t.regenerate(regeneration.LevelLoad, "identity "+id.String())
	return true, nil
}

// ReleaseIdentities gives back every identity that the endpoint holds. It is
// the last step of a deletion and may be repeated.
func (e *Endpoint) ReleaseIdentities(ctx context.Context) error {
	for {
		t, err := e.lock()
		if err != nil {
			return nil // the owner ended: they were released before
		}
		var id identity.NumericIdentity
		var ls labels.LabelArray
		for id, ls = range e.own.held {
			break
		}
		delete(e.own.held, id)
		t.Unlock()
		if id == 0 {
			return nil
		}
		if err := e.cfg.Identities.Release(ctx, id, ls); err != nil {
			e.cfg.Identities.releaseLater(id, ls)
		}
	}
}

// sleep waits and reports whether the context is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
