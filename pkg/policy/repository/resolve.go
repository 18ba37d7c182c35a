package repository

import (
	"fmt"

	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
)

// Resolved is the answer to Resolve.
type Resolved struct {
	Policy   *policy.SelectorPolicy
	State    policy.MapState // shared, not to be changed
	Revision uint64          // of the repository that it answers for
}

// Resolve computes what the policies mean for a subject. Of the answer to an
// earlier call everything stays that no change since then concerns. It fails only
// if a rule cannot be compiled, or rule numbers cannot be kept.
func (r *Repository) Resolve(subject policy.Subject) (Resolved, error) {
	for {
		s, kept, last := r.kept(subject)
		if kept == nil { // the policies are others, and not only the index
			sp := policy.Resolve(subject, s.list, r.mode, r.rules.number)
			if err := r.keepNumbers(sp); err != nil {
				return Resolved{}, err
			}
			r.register(subject, s, sp)
			continue
		}
		state, err := last.at(s.index)
		if err != nil {
			return Resolved{}, fmt.Errorf("resolving the policy of identity %d: %w", subject.Identity, err)
		}
		r.put(kept, state, s.revision)
		return Resolved{last.policy.At(s.revision), state, s.revision}, nil
	}
}

// kept returns what is kept of a subject, with a copy of it as of the state; nil
// if that is of other policies.
func (r *Repository) kept(subject policy.Subject) (s *state, kept *answer, last answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s = r.current.Load()
	if kept = r.needs.answer(subject, s.policies); kept != nil {
		last = kept.snapshot()
	}
	return s, kept, last
}

func (r *Repository) put(kept *answer, state policy.MapState, revision uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept.put(state, revision)
}

// keepNumbers puts the numbers of an answer on disk before anybody sees them.
func (r *Repository) keepNumbers(sp *policy.SelectorPolicy) error {
	if r.rules.crowded() {
		r.mu.Lock()
		used := r.needs.rules()
		r.mu.Unlock()
		for _, id := range ruleIDs(sp) {
			used[id] = true
		}
		r.rules.prune(used)
	}
	return r.rules.flush()
}

// register notes what the subject's answer depends on, and makes the index keep
// the matches of its peers up to date. It does nothing if s holds other policies
// than those in force: what an answer depends on must never be replaced by what an
// older one depended on, or changes would pass unseen.
func (r *Repository) register(subject policy.Subject, s *state, sp *policy.SelectorPolicy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := *r.current.Load()
	if n.policies != s.policies {
		return
	}
	selected, unselected := r.needs.register(subject, n.policies, sp)
	if len(selected)+len(unselected) > 0 {
		n.index, _ = n.index.Apply(policy.Events{Select: selected, Unselect: unselected})
		r.current.Store(&n)
	}
}

// ruleIDs are the numbers of an answer, defaults included.
func ruleIDs(sp *policy.SelectorPolicy) []types.RuleID {
	var out []types.RuleID
	for _, d := range []*policy.DirectionPolicy{&sp.Ingress, &sp.Egress} {
		for i := range d.Rules {
			out = append(out, d.Rules[i].ID)
		}
		out = append(out, d.Default.ID)
		if d.LocalNode != nil {
			out = append(out, d.LocalNode.ID)
		}
	}
	return out
}
