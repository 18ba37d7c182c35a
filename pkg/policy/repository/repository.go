package repository

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
)

// updater is endpointmanager. wait returns when the policy in force of every
// affected endpoint answers for the revision.
type updater interface {
	PolicyChanged(affected func(labels.LabelArray) bool, revision uint64) (wait func(context.Context))
}

// Config of a Repository.
type Config struct {
	Logger   *slog.Logger
	StateDir string // of rules.json; empty: rule numbers do not survive a restart
	Mode     types.Mode
}

// Repository is safe for concurrent use.
type Repository struct {
	log   *slog.Logger
	mode  types.Mode
	rules *ruleTable

	current atomic.Pointer[state]
	mu      sync.Mutex // one change of current at a time
	cache   cache

	notifyMu sync.Mutex // one telling of prefixes at a time
	told     map[netip.Prefix]bool
	observer func(map[netip.Prefix]bool)
	updater  updater
}

// state is what the repository knows at one moment. Immutable.
type state struct {
	revision   uint64
	policies   uint64 // counts the changes of byResource
	byResource map[string][]*types.Policy
	list       []*types.Policy // sorted by resource
	index      *policy.Index
}

// New reads the rule numbers of earlier processes. The index knows the reserved
// identities from the start.
func New(cfg Config) (*Repository, error) {
	rules, err := openRules(cfg.StateDir)
	if err != nil {
		return nil, err
	}
	r := &Repository{log: cfg.Logger, mode: cfg.Mode, rules: rules}
	r.current.Store(&state{revision: 1, index: policy.NewIndex(identity.ReservedIdentities())})
	return r, nil
}

// Observe sets who is told of changes. Call it before the first change.
func (r *Repository) Observe(u updater) { r.updater = u }

// ObservePrefixes sets who is told the prefixes that policies name, now and after
// every change of them; true: used by a block that matches pods.
func (r *Repository) ObservePrefixes(f func(map[netip.Prefix]bool)) {
	r.notifyMu.Lock()
	r.observer = f
	r.notifyMu.Unlock()
	r.tellPrefixes()
}

// Revision is the number of the current state, from 1.
func (r *Repository) Revision() uint64 { return r.current.Load().revision }

// Mode is the enforcement mode.
func (r *Repository) Mode() types.Mode { return r.mode }

// Policies returns the policies in force, sorted by resource, and the revision.
func (r *Repository) Policies() (revision uint64, policies []*types.Policy) {
	s := r.current.Load()
	return s.revision, s.list
}

// Index returns the identities and pods as of now.
func (r *Repository) Index() *policy.Index { return r.current.Load().index }

// ReplaceByResource puts the policies of one object in force, in place of those
// that it had. It returns once all affected endpoints have been told; it does
// not wait until the kernel holds the change.
func (r *Repository) ReplaceByResource(resource string, ps []*types.Policy) (revision uint64, err error) {
	if resource == "" {
		return 0, fmt.Errorf("replace policies: the resource has no name")
	}
	old, s := r.replace(resource, ps)
	if s == nil {
		return r.Revision(), nil
	}
	r.tellPrefixes()
	concerned := append(slices.Clone(old), ps...)
	r.tell(func(a labels.LabelArray) bool {
		return slices.ContainsFunc(concerned, func(p *types.Policy) bool { return p.Subject.Matches(a) })
	}, s.revision)
	return s.revision, nil
}

// DeleteByResource takes the policies of one object out of force.
func (r *Repository) DeleteByResource(resource string) (revision uint64, err error) {
	return r.ReplaceByResource(resource, nil)
}

// replace makes the next state; nil if nothing changes.
func (r *Repository) replace(resource string, ps []*types.Policy) (old []*types.Policy, next *state) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.current.Load()
	old = s.byResource[resource]
	if len(old) == 0 && len(ps) == 0 {
		return nil, nil
	}
	n := *s
	n.revision++
	n.policies++
	n.byResource = maps.Clone(s.byResource)
	if n.byResource == nil {
		n.byResource = map[string][]*types.Policy{}
	}
	if n.byResource[resource] = ps; len(ps) == 0 {
		delete(n.byResource, resource)
	}
	n.list = nil
	for _, p := range n.byResource {
		n.list = append(n.list, p...)
	}
	slices.SortStableFunc(n.list, func(a, b *types.Policy) int { return a.Resource.Compare(b.Resource) })
	r.current.Store(&n)
	return old, &n
}

// UpdateIdentities tells of identities that appear or go, and returns when the
// policy maps of all endpoints know. The reserved identities stay.
func (r *Repository) UpdateIdentities(ctx context.Context, added, removed identity.IdentityMap) error {
	affected, revision := r.apply(policy.Events{Added: added, Removed: removed, Unselect: r.cache.forget(removed)})
	if affected == nil {
		return nil
	}
	r.tellPrefixes()
	r.tell(affected, revision)(ctx)
	return ctx.Err()
}

// UpdatePods tells which pod has an address and what it names its ports. It does
// not wait for the endpoints.
func (r *Repository) UpdatePods(put map[netip.Addr]policy.Pod, gone []netip.Addr) {
	affected, revision := r.apply(policy.Events{Pods: put, GonePods: gone})
	if affected == nil {
		return
	}
	r.tellPrefixes()
	r.tell(affected, revision)
}

// apply changes the index. The revision grows if a map state may differ, and
// affected says whose; it is nil if none can. It is found out under the lock
// that dependencies are registered under: whoever registers later has seen the
// change, whoever did before is found.
func (r *Repository) apply(e policy.Events) (affected func(labels.LabelArray) bool, revision uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := *r.current.Load()
	var changes policy.Changes
	n.index, changes = n.index.Apply(e)
	if !changes.Empty() {
		n.revision++
		affected = r.cache.affected(changes)
	}
	r.current.Store(&n)
	return affected, n.revision
}

func (r *Repository) tell(affected func(labels.LabelArray) bool, revision uint64) (wait func(context.Context)) {
	if r.updater == nil {
		return func(context.Context) {}
	}
	return r.updater.PolicyChanged(affected, revision)
}

// tellPrefixes gives the observer the prefixes of the current state, if they are
// others than it was told last.
func (r *Repository) tellPrefixes() {
	r.notifyMu.Lock()
	defer r.notifyMu.Unlock()
	if r.observer == nil {
		return
	}
	s := r.current.Load()
	now := policy.Prefixes(s.list, s.index)
	if r.told != nil && maps.Equal(now, r.told) {
		return
	}
	r.told = now
	r.observer(now)
}
