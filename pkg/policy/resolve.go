package policy

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/types"
)

// Subject is the pod, or the pods of one identity with the same named ports and
// mode, that policy is resolved for.
type Subject struct {
	Identity   identity.NumericIdentity
	Labels     labels.LabelArray
	NamedPorts types.NamedPorts // its own container ports
	// Enforcement is its own mode, where it has one.
	Enforcement types.Enforcement
}

// ResolvedRule is a rule of the subject with its place among the others.
type ResolvedRule struct {
	types.Rule
	ID         types.RuleID
	Rank       uint32 // position in the order of RuleRef.Compare, from 1
	Precedence types.Precedence
	ports      []portKey         // numeric ports, and at ingress the subject's named ones
	named      []types.NamedPort // at egress: to be found out per destination
	unresolved []types.NamedPort // at ingress: names that the subject does not give
}

// entry is the line that the rule writes.
func (r *ResolvedRule) entry() types.Entry {
	e := types.Entry{Precedence: r.Precedence, Rank: r.Rank, Rule: r.ID, Verdict: r.Verdict}
	if r.Verdict == types.Pass {
		e.Next = types.StageBelowAdmin
		if r.Tier > types.TierNormal {
			e.Next = types.StageBelowBaseline
		}
	}
	return e
}

// namedEntry is the line for a named port. One that is not exact must not open
// what the rule does not: an allow has none there, and instead of a pass, behind
// which a weaker rule may allow, it denies.
func (r *ResolvedRule) namedEntry(exact bool) (e types.Entry, ok bool) {
	e = r.entry()
	if !exact && r.Verdict == types.Pass {
		e.Verdict, e.Next = types.Deny, types.StageAll
	}
	return e, exact || r.Verdict != types.Allow
}

// Default is what happens in a direction where no rule matches.
type Default struct {
	Verdict types.Verdict
	Ref     types.RuleRef
	ID      types.RuleID
}

// DirectionPolicy is the policy of one direction of a subject.
type DirectionPolicy struct {
	Rules     []ResolvedRule   // in rank order; those of TierBaseline only where nothing isolates
	Isolating []types.Resource // the policies that isolate the subject here, sorted; whatever the mode
	Default   Default
	LocalNode *Default // at ingress under a default deny: the node's own way in
}

// SelectorPolicy is what the policies say about a subject, before it is known
// which identities exist. Immutable.
type SelectorPolicy struct {
	Revision uint64 // of the repository, 0 outside one
	Subject  Subject
	Mode     types.Mode // of the subject: its own, or the node's
	Ingress  DirectionPolicy
	Egress   DirectionPolicy
}

// At returns the same policy as of a revision of the repository.
func (sp *SelectorPolicy) At(revision uint64) *SelectorPolicy {
	at := *sp
	at.Revision = revision
	return &at
}

// Direction returns the half of a direction.
func (sp *SelectorPolicy) Direction(d types.Direction) *DirectionPolicy {
	if d == types.Ingress {
		return &sp.Ingress
	}
	return &sp.Egress
}

// Resolve picks the rules that select the subject and ranks them. numberOf gives
// each rule, default included, its number; it is called once per rule. The mode
// is the node's; a subject that has its own is held to that. In mode never no
// rule is looked at. A pod that has no identity from its labels yet
// (reserved:init) is isolated in both directions whatever the policies say.
func Resolve(s Subject, policies []*types.Policy, mode types.Mode, numberOf func(types.RuleRef) types.RuleID) *SelectorPolicy {
	if own, has := s.Enforcement.Own(); has {
		mode = own
	}
	sp := &SelectorPolicy{Subject: s, Mode: mode}
	for _, p := range policies {
		if !p.Subject.Matches(s.Labels) {
			continue
		}
		if p.IsolatesIngress {
			sp.Ingress.Isolating = append(sp.Ingress.Isolating, p.Resource)
		}
		if p.IsolatesEgress {
			sp.Egress.Isolating = append(sp.Egress.Isolating, p.Resource)
		}
		if mode == types.ModeNever {
			continue
		}
		for i := range p.Rules {
			d := sp.Direction(p.Rules[i].Direction)
			d.Rules = append(d.Rules, ResolvedRule{Rule: p.Rules[i]})
		}
	}
	for _, dir := range []types.Direction{types.Ingress, types.Egress} {
		sp.Direction(dir).finish(dir, s, mode, numberOf)
	}
	return sp
}

func (d *DirectionPolicy) finish(dir types.Direction, s Subject, mode types.Mode, numberOf func(types.RuleRef) types.RuleID) {
	if len(d.Isolating) > 0 { // then TierNormal always decides
		d.Rules = slices.DeleteFunc(d.Rules, func(r ResolvedRule) bool { return r.Tier > types.TierNormal })
	}
	slices.SortStableFunc(d.Rules, func(a, b ResolvedRule) int { return a.Ref.Compare(b.Ref) })
	for i := range d.Rules {
		r := &d.Rules[i]
		r.Rank, r.ID = uint32(i)+1, numberOf(r.Ref)
		class := uint8(types.ClassAllow)
		switch {
		case r.Tier.Ordered():
			class = types.ClassOrdered
		case r.Verdict == types.Deny:
			class = types.ClassDeny
		}
		r.Precedence = types.MakePrecedence(r.Tier, r.Priority, class)
		r.resolvePorts(dir, s.NamedPorts)
	}
	slices.SortFunc(d.Isolating, types.Resource.Compare)
	d.Isolating = slices.CompactFunc(d.Isolating, func(a, b types.Resource) bool { return a.Compare(b) == 0 })
	d.Default = DefaultOf(mode, s.Labels, d.Isolating)
	if _, own := s.Enforcement.Own(); own {
		d.Default.Ref.Kind = d.Default.Ref.Kind.OfEndpoint()
	}
	d.Default.ID = numberOf(d.Default.Ref)
	if dir == types.Ingress && d.Default.Verdict == types.Deny {
		node := Default{Verdict: types.Allow, Ref: types.RuleRef{Kind: types.KindLocalNode}}
		node.ID = numberOf(node.Ref)
		d.LocalNode = &node
	}
}

// DefaultOf says what a direction does where no rule matches, without a number.
func DefaultOf(mode types.Mode, a labels.LabelArray, isolating []types.Resource) Default {
	switch {
	case mode == types.ModeNever:
		return Default{Verdict: types.Allow, Ref: types.RuleRef{Kind: types.KindModeNever}}
	case len(isolating) > 0:
		return Default{Ref: types.RuleRef{Kind: types.KindDefaultDeny, Isolated: isolating}}
	case a.HasReserved(labels.NameInit):
		return Default{Ref: types.RuleRef{Kind: types.KindInit}}
	case mode == types.ModeAlways:
		return Default{Ref: types.RuleRef{Kind: types.KindModeAlways}}
	}
	return Default{Verdict: types.Allow, Ref: types.RuleRef{Kind: types.KindNotIsolated}}
}

// resolvePorts makes port keys of what is known without the destination.
func (r *ResolvedRule) resolvePorts(dir types.Direction, own types.NamedPorts) {
	if r.Ports == nil {
		r.ports = []portKey{{}}
		return
	}
	for _, p := range r.Ports {
		name := types.NamedPort{Name: p.Name, Proto: p.Proto}
		switch {
		case p.Name == "":
			r.ports = append(r.ports, portKeys(p)...)
		case dir == types.Egress:
			r.named = append(r.named, name)
		default:
			number, ok := own[name]
			if !ok || number == 0 {
				r.unresolved = append(r.unresolved, name)
				continue
			}
			r.ports = append(r.ports, portKey{p.Proto, number, 16})
		}
	}
	slices.SortFunc(r.ports, comparePortKeys)
	r.ports = slices.Compact(r.ports)
	r.named = compactNames(r.named)
	r.unresolved = compactNames(r.unresolved)
}

func compactNames(names []types.NamedPort) []types.NamedPort {
	slices.SortFunc(names, func(a, b types.NamedPort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Proto, b.Proto))
	})
	return slices.Compact(names)
}

// validate refuses a rule that no dialect should have written.
func (r *ResolvedRule) validate() error {
	if r.Verdict == types.Pass && !r.Tier.Ordered() {
		return fmt.Errorf("rule %s: passes, but in tier %s there is nothing to pass to", r.Ref, r.Tier)
	}
	for i, p := range r.Peers {
		set := 0
		for _, is := range []bool{p.Labels != nil, p.CIDR != nil, p.Entity != ""} {
			if is {
				set++
			}
		}
		if set != 1 {
			return fmt.Errorf("rule %s: peer %d sets %d of labels, CIDR and entity; exactly one is right", r.Ref, i, set)
		}
		if p.Entity != "" && p.Entity != types.EntityAll {
			return fmt.Errorf("rule %s: peer %d: entity %q is not %q; other entities are label selectors", r.Ref, i, p.Entity, types.EntityAll)
		}
	}
	return nil
}

// UnresolvedPort is a named port that matches nothing now.
type UnresolvedPort struct {
	Rule types.RuleRef
	Port types.NamedPort
}

// UnresolvedPorts lists the named ports that match nothing: at ingress those that
// the subject does not give, at egress those that no destination of the rule
// gives, or gives in a way that cannot be told apart yet. For status and reports.
func (sp *SelectorPolicy) UnresolvedPorts(x *Index) []UnresolvedPort {
	var out []UnresolvedPort
	for i := range sp.Ingress.Rules {
		r := &sp.Ingress.Rules[i]
		for _, n := range r.unresolved {
			out = append(out, UnresolvedPort{r.Ref, n})
		}
	}
	for i := range sp.Egress.Rules {
		r := &sp.Egress.Rules[i]
		for _, n := range r.named {
			found := false
			for _, p := range peersOf(&r.Rule) {
				x.eachNamed(p, n, func(_ identity.NumericIdentity, _ uint16, exact bool) {
					found = found || exact || r.Verdict == types.Deny
				})
			}
			if !found {
				out = append(out, UnresolvedPort{r.Ref, n})
			}
		}
	}
	return out
}

// Peers returns the peers of all rules, those of wildcards left out. Named says
// that their rule has named ports of the destination.
func (sp *SelectorPolicy) Peers() iter.Seq2[types.Peer, bool] {
	return func(yield func(peer types.Peer, named bool) bool) {
		for _, d := range []*DirectionPolicy{&sp.Ingress, &sp.Egress} {
			for i := range d.Rules {
				r := &d.Rules[i]
				for _, p := range r.Peers {
					if !IsWildcard(p) && !yield(p, len(r.named) > 0) {
						return
					}
				}
			}
		}
	}
}

// NamedPorts returns the named ports that depend on destinations. With the
// peers, the subject's map state depends on nothing else.
func (sp *SelectorPolicy) NamedPorts() []types.NamedPort {
	var names []types.NamedPort
	for i := range sp.Egress.Rules {
		names = append(names, sp.Egress.Rules[i].named...)
	}
	return compactNames(names)
}
