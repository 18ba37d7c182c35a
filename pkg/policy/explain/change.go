package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
)

// Kinds of a Change.
const (
	ChangeLabel = "label"
	ChangeRule  = "rule"
)

// Change is a small difference with which the verdict of a direction would be
// the other one. It was tried out on the policies in force, with one exception:
// that a pod which no policy isolates would be isolated by a new one.
type Change struct {
	Kind string         // ChangeLabel or ChangeRule
	Text string         // "with label app=web on shop/a"
	Rule *types.RuleRef // that would match, or be gone; nil: none that exists
	// Alone says that the verdict of the whole connection would change too; else
	// the other end still denies.
	Alone bool
}

// String prints the text and what it leaves open.
func (c Change) String() string {
	if c.Alone {
		return c.Text
	}
	return c.Text + " (the other end denies all the same)"
}

// maxTries bounds how many candidates are tried out for one kind of change.
const maxTries = 48

// candidate is a change that has not been tried out.
type candidate struct {
	cost   int
	change Change
	// try gives the connection after the change; nil: it needs no trial.
	try func() (*policy.Index, Question)
}

// changes finds the smallest change of each kind that turns a judgement around.
func changes(x *policy.Index, q Question, whole types.Verdict, j *Judgement) []Change {
	if q.Policies == nil || q.policyOf(j).Mode == types.ModeNever {
		return nil
	}
	s := search{x, q, j}
	var out []Change
	for _, kind := range [][]candidate{s.labelChanges(), s.ruleChanges()} {
		slices.SortStableFunc(kind, func(a, b candidate) int { return cmp.Compare(a.cost, b.cost) })
		for _, c := range kind[:min(len(kind), maxTries)] {
			if c.try == nil {
				out = append(out, c.change)
				break
			}
			after := explain(c.try())
			now := after.Ingress
			if j.Direction == types.Egress {
				now = after.Egress
			}
			if now.Verdict != j.Verdict {
				c.change.Alone = after.Verdict != whole
				out = append(out, c.change)
				break
			}
		}
	}
	return out
}

func (q *Question) policyOf(j *Judgement) *policy.SelectorPolicy {
	subject, _ := q.ends(j.Direction)
	return subject.Policy
}

// search looks for changes of one judgement.
type search struct {
	x *policy.Index
	q Question
	j *Judgement
}

// labelChanges lists the label edits that may turn the judgement around. Those
// of the peer come first: they concern this connection more than others.
func (s search) labelChanges() []candidate {
	var out []candidate
	peer := func(edits ...edit) { out = s.relabel(out, edits, false) }
	subject := func(edits ...edit) { out = s.relabel(out, edits, true) }
	own, peers := s.labelsOf(true), s.labelsOf(false)
	for _, p := range s.q.Policies {
		for i := range p.Rules {
			if r := &p.Rules[i]; r.Direction == s.j.Direction && p.Subject.Matches(own) {
				s.repeer(r, peers, peer)
			}
		}
	}
	for _, p := range s.q.Policies { // what selects the pod and could do so no longer
		decided := s.j.Rule.Ref.Kind == types.KindPolicy && s.j.Rule.Ref.Resource == p.Resource
		if p.Subject.Matches(own) && (decided || s.isolates(p) && s.j.Verdict == types.Deny) {
			for _, e := range unfit(p.Subject) {
				subject(e)
			}
		}
	}
	for _, p := range s.q.Policies {
		if !p.Subject.Matches(own) {
			s.selected(p, own, subject)
		}
	}
	return out
}

// isolates reports whether the policy isolates pods in the judgement's direction.
func (s search) isolates(p *types.Policy) bool {
	if s.j.Direction == types.Ingress {
		return p.IsolatesIngress
	}
	return p.IsolatesEgress
}

// repeer edits the peer so that a rule against the verdict matches it, or the
// rule that decided does not.
func (s search) repeer(r *types.Rule, peers labels.LabelArray, try func(...edit)) {
	decided := r.Ref.Compare(s.j.Rule.Ref) == 0
	if !decided && r.Verdict != opposite(s.j.Verdict) {
		return
	}
	for _, p := range r.Peers {
		switch {
		case p.Labels == nil:
		case decided && p.Labels.Matches(peers):
			for _, e := range unfit(*p.Labels) {
				try(e)
			}
		case !decided:
			if edits, ok := fit(*p.Labels, peers); ok {
				try(edits...)
			}
		}
	}
}

// selected edits the pod so that a policy selects it that may change the verdict.
func (s search) selected(p *types.Policy, own labels.LabelArray, try func(...edit)) {
	helps := s.j.Verdict == types.Allow && s.isolates(p)
	for i := range p.Rules {
		helps = helps || p.Rules[i].Direction == s.j.Direction && p.Rules[i].Verdict == opposite(s.j.Verdict)
	}
	if !helps {
		return
	}
	if edits, ok := fit(p.Subject, own); ok {
		try(edits...)
	}
}

// relabel adds a candidate with edits of the pod's or the peer's labels.
func (s search) relabel(out []candidate, edits []edit, ofSubject bool) []candidate {
	a := s.labelsOf(ofSubject)
	namespace, isPod := a.Get(labels.SourceK8s, labels.KeyPodNamespace)
	if len(edits) == 0 || !isPod {
		return out
	}
	subject, peer := s.q.ends(s.j.Direction)
	name := peer.Name
	if ofSubject {
		name = subject.Name
	}
	texts := make([]string, len(edits))
	for i, e := range edits {
		texts[i] = e.text(name, namespace)
	}
	return append(out, candidate{
		cost: len(edits), change: Change{Kind: ChangeLabel, Text: strings.Join(texts, " and ")},
		try: func() (*policy.Index, Question) { return s.relabelled(edits, ofSubject, namespace) },
	})
}

// relabelled is the connection where one end has other labels. Where a label is
// the namespace's, the other end has it too if it lives there.
func (s search) relabelled(edits []edit, ofSubject bool, namespace string) (*policy.Index, Question) {
	x, q := s.x, s.q
	subject, peer := q.ends(s.j.Direction)
	for _, end := range []*Peer{subject, peer} {
		mine := edits
		if (end == subject) != ofSubject {
			mine = slices.DeleteFunc(slices.Clone(edits), func(e edit) bool { return !e.ofSpace })
			a, _ := s.x.Labels(end.Identity)
			if ns, _ := a.Get(labels.SourceK8s, labels.KeyPodNamespace); ns != namespace {
				continue
			}
		}
		if len(mine) > 0 {
			x = move(x, end, mine, q.Policies)
		}
	}
	return x, q
}

// move gives an end other labels, and with them a number that nobody has.
func move(x *policy.Index, end *Peer, edits []edit, policies []*types.Policy) *policy.Index {
	old, _ := x.Labels(end.Identity)
	id := identity.NumericIdentity(65535)
	for _, taken := x.Labels(id); taken; _, taken = x.Labels(id) {
		id--
	}
	e := policy.Events{Added: identity.IdentityMap{id: apply(old, edits)}}
	pod, _ := x.Pod(end.Addr)
	if end.Policy != nil {
		pod.NamedPorts = end.Policy.Subject.NamedPorts
	}
	if end.Addr.IsValid() {
		e.Pods = map[netip.Addr]policy.Pod{end.Addr: {Identity: id, NamedPorts: pod.NamedPorts}}
	}
	x, _ = x.Apply(e)
	end.Identity = id
	if end.Policy != nil {
		subject := end.Policy.Subject
		subject.Identity, subject.Labels = id, e.Added[id]
		end.Policy = policy.Resolve(subject, policies, end.Policy.Mode, unnumbered)
	}
	return x
}

func unnumbered(types.RuleRef) types.RuleID { return 0 }

func (s search) labelsOf(subject bool) labels.LabelArray {
	sub, peer := s.q.ends(s.j.Direction)
	if subject {
		return sub.Policy.Subject.Labels
	}
	a, _ := s.x.Labels(peer.Identity)
	return a
}

// ruleChanges lists the differences of one rule that may turn the judgement around.
func (s search) ruleChanges() []candidate {
	subject, peer := s.q.ends(s.j.Direction)
	port := PortText(s.q.Proto, s.q.Port)
	var out []candidate
	for n, p := range s.q.Policies {
		if !p.Subject.Matches(subject.Policy.Subject.Labels) {
			continue
		}
		for i := range p.Rules {
			r := p.Rules[i]
			switch {
			case r.Direction != s.j.Direction:
			case r.Ref.Compare(s.j.Rule.Ref) == 0:
				out = append(out, s.rewrite(1, n, i, nil, "without "+r.Ref.String(), &r.Ref))
			case r.Verdict == types.Allow && s.j.Verdict == types.Deny:
				anyPort, anybody := r, r
				anyPort.Ports, anybody.Peers = nil, nil
				out = append(out, s.rewrite(1, n, i, &anyPort, fmt.Sprintf("with port %s in %s", port, r.Ref), &r.Ref))
				out = append(out, s.rewrite(2, n, i, &anybody, fmt.Sprintf("with %s among the peers of %s", peer.Name, r.Ref), &r.Ref))
			}
		}
		if s.j.Rule.Ref.Kind == types.KindDefaultDeny && slices.Contains(s.j.Isolating, p.Resource) {
			added := types.Rule{Ref: types.RuleRef{Resource: p.Resource}, Direction: s.j.Direction, Verdict: types.Allow}
			text := fmt.Sprintf("with a rule in %s of %s for %s on %s", s.j.Direction, p.Resource.Placed(), peer.Name, port)
			out = append(out, s.rewrite(3, n, len(p.Rules), &added, text, nil))
		}
	}
	if s.j.Rule.Ref.Kind == types.KindNotIsolated {
		text := fmt.Sprintf("with a policy that isolates %s and does not allow this", subject.Name)
		out = append(out, candidate{cost: 1, change: Change{Kind: ChangeRule, Text: text, Alone: true}})
	}
	return out
}

// rewrite is a candidate with another rule in a place of a policy; nil takes the rule out.
func (s search) rewrite(cost, number, place int, r *types.Rule, text string, ref *types.RuleRef) candidate {
	return candidate{cost: cost, change: Change{Kind: ChangeRule, Text: text, Rule: ref}, try: func() (*policy.Index, Question) {
		q := s.q
		p := *q.Policies[number]
		p.Rules = slices.Clone(p.Rules)
		switch {
		case r == nil:
			p.Rules = slices.Delete(p.Rules, place, place+1)
		case place == len(p.Rules):
			p.Rules = append(p.Rules, *r)
		default:
			p.Rules[place] = *r
		}
		q.Policies = slices.Clone(q.Policies)
		q.Policies[number] = &p
		for _, end := range []*Peer{&q.From, &q.To} {
			if end.Policy != nil {
				end.Policy = policy.Resolve(end.Policy.Subject, q.Policies, end.Policy.Mode, unnumbered)
			}
		}
		return s.x, q
	}}
}
