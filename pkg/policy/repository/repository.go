package repository

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sort"
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
	Logger   *slog.Logger // nil: nothing is logged
	StateDir string       // of rules.json; empty: rule numbers do not survive a restart
	Mode     types.Mode
	// Greatest is the greatest rule number that the kernel holds. It is asked where
	// rules.json is missing or damaged. Nil: the kernel holds none.
	Greatest func() types.RuleID
}

// Repository is safe for concurrent use.
type Repository struct {
	log   *slog.Logger
	mode  types.Mode
	rules *ruleTable

	// changing is held from making a change until everybody has been told, so
	// that revisions are told in order: an endpoint that a change does not
	// concern claims its revision, and with it all before.
	changing  sync.Mutex
	names     policy.Names          // of the policies; by changing, as the rest of this block
	apart     map[netip.Prefix]bool // addresses of pods among those told
	told      map[netip.Prefix]bool
	observer  func(put map[netip.Prefix]bool, gone []netip.Prefix)
	updater   updater
	unsettled []*announcement

	current atomic.Pointer[state]
	mu      sync.Mutex // one replacement of current at a time
	needs   needs      // by mu
}

// state is what the repository knows at one moment. Immutable.
type state struct {
	revision uint64
	policies uint64          // counts the changes of list
	list     []*types.Policy // sorted by their resource, then key
	keys     []string        // of list: the resource that each was put under
	index    *policy.Index
}

// New reads the rule numbers of earlier processes; a damaged file is set aside. The
// index knows the reserved identities from the start.
func New(cfg Config) (*Repository, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	rules, damage := openRules(cfg.StateDir, cfg.Greatest)
	if damage != nil {
		cfg.Logger.Warn("Rule numbers of before have no names; new ones begin above them", "error", damage, "from", rules.next)
	}
	r := &Repository{log: cfg.Logger, mode: cfg.Mode, rules: rules, needs: needs{}}
	r.current.Store(&state{revision: 1, index: policy.NewIndex(identity.ReservedIdentities())})
	return r, nil
}

// Observe sets who is told of changes. Call it before the first change.
func (r *Repository) Observe(u updater) {
	r.changing.Lock()
	defer r.changing.Unlock()
	r.updater = u
}

// ObservePrefixes sets who is told the prefixes that policies name, now and after
// every change of them; true: used by a block that matches pods.
func (r *Repository) ObservePrefixes(f func(map[netip.Prefix]bool)) {
	all := map[netip.Prefix]bool{}
	r.ObservePrefixChanges(func(put map[netip.Prefix]bool, gone []netip.Prefix) {
		for _, p := range gone {
			delete(all, p)
		}
		maps.Copy(all, put)
		f(maps.Clone(all))
	})
}

// ObservePrefixChanges is ObservePrefixes for who keeps the prefixes: it is told
// all of them now, and then what comes, changes and goes.
func (r *Repository) ObservePrefixChanges(f func(put map[netip.Prefix]bool, gone []netip.Prefix)) {
	r.changing.Lock()
	defer r.changing.Unlock()
	r.observer, r.told, r.apart = f, nil, nil
	r.tellPrefixes(slices.Collect(maps.Keys(r.names.Prefixes())), true)
}

// Revision is the number of the current state, from 1.
func (r *Repository) Revision() uint64 { return r.current.Load().revision }

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
	r.changing.Lock()
	defer r.changing.Unlock()
	old, changed, revision := r.replace(resource, ps)
	if !changed {
		return revision, nil
	}
	r.log.Debug("Policies replaced", "resource", resource, "policies", len(ps), "revision", revision)
	var touched []netip.Prefix
	apart := false
	count := func(ps []*types.Policy, by int) {
		for _, p := range ps {
			t, a := r.names.Count(p, by)
			touched, apart = append(touched, t...), apart || a
		}
	}
	count(old, -1)
	count(ps, 1)
	r.tellPrefixes(touched, apart)
	concerned := append(slices.Clone(old), ps...)
	r.tell(func(a labels.LabelArray) bool {
		return slices.ContainsFunc(concerned, func(p *types.Policy) bool { return p.Subject.Matches(a) })
	}, revision)
	return revision, nil
}

// DeleteByResource takes the policies of one object out of force.
func (r *Repository) DeleteByResource(resource string) (revision uint64, err error) {
	return r.ReplaceByResource(resource, nil)
}

// replace makes the next state, unless nothing changes.
func (r *Repository) replace(key string, ps []*types.Policy) (old []*types.Policy, changed bool, revision uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := *r.current.Load()
	before, keys := n.list, n.keys
	n.list, n.keys = make([]*types.Policy, 0, len(before)+len(ps)), make([]string, 0, len(before)+len(ps))
	for i, p := range before {
		if keys[i] == key {
			old = append(old, p)
			continue
		}
		n.list, n.keys = append(n.list, p), append(n.keys, keys[i])
	}
	if len(old) == 0 && len(ps) == 0 {
		return nil, false, n.revision
	}
	for _, p := range ps { // after its equals, so that policies of one object stay in their order
		at := sort.Search(len(n.list), func(i int) bool {
			return cmp.Or(n.list[i].Resource.Compare(p.Resource), cmp.Compare(n.keys[i], key)) > 0
		})
		n.list, n.keys = slices.Insert(n.list, at, p), slices.Insert(n.keys, at, key)
	}
	n.revision++
	n.policies++
	r.needs.keep(append(slices.Clone(old), ps...), n.policies-1, n.policies)
	r.current.Store(&n)
	return old, true, n.revision
}

// announcement is a change of identities that not all endpoints are known to
// hold yet.
type announcement struct {
	added map[identity.NumericIdentity]bool
	wait  func(context.Context)
}

// UpdateIdentities tells of identities that appear or go, and returns when the
// policy maps of all endpoints know. If ctx ends first it returns the reason,
// and the next call for one of the numbers waits for the rest.
func (r *Repository) UpdateIdentities(ctx context.Context, added, removed identity.IdentityMap) error {
	awaited := r.announce(added, removed)
	for _, a := range awaited {
		a.wait(ctx)
	}
	if err := ctx.Err(); err != nil && len(awaited) > 0 {
		return fmt.Errorf("waiting until the policy of all endpoints knows of %d new and %d gone identities: %w", len(added), len(removed), err)
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	r.unsettled = slices.DeleteFunc(r.unsettled, func(a *announcement) bool { return slices.Contains(awaited, a) })
	return nil
}

// announce makes the change and returns what is to be waited for: that, and
// what earlier calls about the same numbers have not seen through.
func (r *Repository) announce(added, removed identity.IdentityMap) (awaited []*announcement) {
	r.changing.Lock()
	defer r.changing.Unlock()
	for _, a := range r.unsettled {
		maps.DeleteFunc(a.added, func(id identity.NumericIdentity, _ bool) bool { _, gone := removed[id]; return gone })
	}
	r.unsettled = slices.DeleteFunc(r.unsettled, func(a *announcement) bool { return len(a.added) == 0 })
	for _, a := range r.unsettled {
		for id := range added {
			if a.added[id] {
				awaited = append(awaited, a)
				break
			}
		}
	}
	if wait := r.change(policy.Events{Added: added, Removed: removed}); wait != nil {
		mine := &announcement{added: map[identity.NumericIdentity]bool{}, wait: wait}
		for id := range added {
			mine.added[id] = true
		}
		r.unsettled, awaited = append(r.unsettled, mine), append(awaited, mine)
	}
	return awaited
}

// UpdatePods tells which pod has an address and what it names its ports. It does
// not wait for the endpoints.
func (r *Repository) UpdatePods(put map[netip.Addr]policy.Pod, gone []netip.Addr) {
	r.changing.Lock()
	defer r.changing.Unlock()
	r.change(policy.Events{Pods: put, GonePods: gone})
}

// change changes the index and tells of it. wait is nil if no map state can differ.
func (r *Repository) change(e policy.Events) (wait func(context.Context)) {
	affected, prefixes, revision := r.apply(e)
	if prefixes {
		r.tellPrefixes(nil, true)
	}
	if affected == nil {
		return nil
	}
	return r.tell(affected, revision)
}

// apply changes the index. The revision grows if a map state may differ, and
// affected says whose; it is nil if none can. It is found out under the lock
// that needs are registered under: whoever registers later has seen the change,
// whoever did before is found. prefixes says that other ones may be needed.
func (r *Repository) apply(e policy.Events) (affected func(labels.LabelArray) bool, prefixes bool, revision uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := *r.current.Load()
	e.Unselect = r.needs.forget(n.index, e.Removed)
	var changes policy.Changes
	n.index, changes = n.index.Apply(e)
	if !changes.Empty() {
		n.revision++
		affected = r.needs.affected(changes, n.revision)
	}
	r.current.Store(&n)
	return affected, changes.Prefixes, n.revision
}

func (r *Repository) tell(affected func(labels.LabelArray) bool, revision uint64) (wait func(context.Context)) {
	if r.updater == nil {
		return func(context.Context) {}
	}
	return r.updater.PolicyChanged(affected, revision)
}

// tellPrefixes tells the observer what is to be told of the prefixes touched,
// and of the addresses of pods to tell apart if those may have changed.
func (r *Repository) tellPrefixes(touched []netip.Prefix, apart bool) {
	if r.observer == nil {
		return
	}
	if apart {
		old := r.apart
		r.apart = r.names.Apart(r.Index())
		touched = slices.AppendSeq(slices.AppendSeq(touched, maps.Keys(old)), maps.Keys(r.apart))
	}
	first := r.told == nil
	if first {
		r.told = map[netip.Prefix]bool{}
	}
	put, gone := map[netip.Prefix]bool{}, []netip.Prefix(nil)
	for _, p := range touched {
		pods, wanted := r.names.Prefix(p)
		if r.apart[p] {
			pods, wanted = true, true
		}
		before, was := r.told[p]
		switch {
		case wanted && (!was || before != pods):
			put[p], r.told[p] = pods, pods
		case was && !wanted:
			gone = append(gone, p)
			delete(r.told, p)
		}
	}
	if len(put)+len(gone) > 0 || first {
		r.observer(put, gone)
	}
}
