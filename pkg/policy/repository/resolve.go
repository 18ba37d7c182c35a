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

// Resolve computes what the policies mean for a subject. The answer of an
// earlier call is returned while the revision is the same. It fails only if a
// rule cannot be compiled, or rule numbers cannot be kept.
func (r *Repository) Resolve(subject policy.Subject) (Resolved, error) {
	key := subjectKey(subject)
	for {
		s := r.current.Load()
		if answer, ok := r.answers.get(key, s.revision); ok {
			return answer, nil
		}
		sp := r.resolved(subject, s)
		if sp == nil { // the policies are others, and not only the index
			sp = policy.Resolve(subject, s.list, r.mode, r.rules.number)
			if err := r.keepNumbers(sp); err != nil {
				return Resolved{}, err
			}
		}
		now := r.selecting(subject, s, sp)
		if now == nil {
			continue // the policies are others by now
		}
		sp = sp.At(now.revision)
		state, err := sp.MapState(now.index)
		if err != nil {
			return Resolved{}, fmt.Errorf("resolving the policy of identity %d: %w", subject.Identity, err)
		}
		answer := Resolved{sp, state, now.revision}
		r.answers.put(key, answer)
		return answer, nil
	}
}

func (r *Repository) resolved(subject policy.Subject, s *state) *policy.SelectorPolicy {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.needs.resolved(subject, s.policies)
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

// selecting registers what the subject's answer depends on, makes the index keep
// the matches of its peers up to date, and returns the state that has them. It
// returns nil if s holds other policies than those in force: what an answer
// depends on must never be replaced by what an older one depended on, or changes
// would pass unseen.
func (r *Repository) selecting(subject policy.Subject, s *state, sp *policy.SelectorPolicy) *state {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := *r.current.Load()
	if n.policies != s.policies {
		return nil
	}
	selected, unselected := r.needs.register(subject, n.policies, sp)
	if len(selected)+len(unselected) > 0 {
		n.index, _ = n.index.Apply(policy.Events{Select: selected, Unselect: unselected})
		r.current.Store(&n)
	}
	return &n
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
