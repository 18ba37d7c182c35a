package explain

import (
	"net/netip"
	"slices"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// Peer is one end of a connection.
type Peer struct {
	Name           string // for people: namespace/name of a pod, or the address
	Identity       identity.NumericIdentity
	PrefixIdentity identity.NumericIdentity // 0: no prefix of a policy covers the address
	// Policy of the end; nil: it is no pod of this node, and judges nothing here.
	Policy *policy.SelectorPolicy
	// Audit lets through what the end's policy denies.
	Audit bool
	// Addr is the end's address; not valid: not known. Only changes need it.
	Addr netip.Addr
}

// closed reports whether the data plane denies the end without asking a policy.
func (p *Peer) closed() bool {
	return p.Identity == identity.ReservedClosed || p.PrefixIdentity == identity.ReservedClosed
}

// Question is the connection to judge.
type Question struct {
	From, To Peer
	Proto    wtypes.Proto
	Port     uint16 // destination port, host order; of ICMP the type
	// Policies in force, among which changes of the verdict are looked for; nil:
	// none are.
	Policies []*types.Policy
}

// Judgement is the verdict of one direction.
type Judgement struct {
	Direction types.Direction
	Verdict   types.Verdict
	Rule      policy.Match     // that decided
	Losers    []Loser          // matched too, strongest first; the direction's default left out
	Isolating []types.Resource // policies that isolate the pod here
	Changes   []Change         // the smallest that would turn Verdict around, at most one of each kind
}

// Loser is a rule that matches too and did not decide.
type Loser struct {
	policy.Match
	Why string // it did not decide, in words
}

// closed reports whether no policy was asked, and none can change the verdict.
func (j *Judgement) closed() bool { return j.Rule.Ref.Kind == types.KindClosed }

// Explanation is the whole answer.
type Explanation struct {
	Question
	Verdict types.Verdict
	Egress  *Judgement // nil: the source is no pod of this node
	Ingress *Judgement // nil: the destination is no pod of this node
}

// Explain judges both directions from the policies in force. Changes are looked
// for where they can matter: at the ends that deny, or, if all allow, at both.
func Explain(x *policy.Index, q Question) Explanation {
	e := explain(x, q)
	for _, j := range e.judgements() {
		if j.Verdict == e.Verdict && !j.closed() {
			j.Changes = changes(x, q, e.Verdict, j)
		}
	}
	return e
}

func explain(x *policy.Index, q Question) Explanation {
	e := Explanation{Question: q, Verdict: types.Allow}
	if q.From.Policy != nil {
		e.Egress = judge(x, types.Egress, q)
	}
	if q.To.Policy != nil {
		e.Ingress = judge(x, types.Ingress, q)
	}
	for _, j := range e.judgements() {
		if j.Verdict == types.Deny {
			e.Verdict = types.Deny
		}
	}
	return e
}

// judgements are those of the directions that were judged.
func (e Explanation) judgements() []*Judgement {
	return slices.DeleteFunc([]*Judgement{e.Egress, e.Ingress}, func(j *Judgement) bool { return j == nil })
}

// ends are the pod that judges a direction and its peer.
func (q *Question) ends(dir types.Direction) (subject, peer *Peer) {
	if dir == types.Egress {
		return &q.From, &q.To
	}
	return &q.To, &q.From
}

func judge(x *policy.Index, dir types.Direction, q Question) *Judgement {
	subject, peer := q.ends(dir)
	if peer.closed() {
		return &Judgement{Direction: dir, Verdict: types.Deny, Isolating: subject.Policy.Direction(dir).Isolating,
			Rule: policy.Match{Entry: types.Entry{Verdict: types.Deny}, Ref: types.RuleRef{Kind: types.KindClosed}}}
	}
	matches := subject.Policy.Matching(x, dir, peer.Identity, peer.PrefixIdentity, q.Proto, q.Port)
	j := &Judgement{Direction: dir, Verdict: matches[0].Entry.Verdict, Rule: matches[0], Isolating: subject.Policy.Direction(dir).Isolating}
	for _, m := range matches[1:] {
		if m.Entry.Precedence != types.DefaultPrecedence {
			j.Losers = append(j.Losers, Loser{m, lost(j.Rule.Entry, m)})
		}
	}
	return j
}

// lost says why a line that matches did not decide.
func lost(won types.Entry, m policy.Match) string {
	switch {
	case m.Skipped:
		return "not asked, since a stronger rule of its tier passed"
	case m.Entry.Verdict == types.Pass && m.Entry.Beats(won):
		return "passed to the next tier"
	case won.Precedence == m.Entry.Precedence:
		return "since it comes later in the order of policies and rules"
	case won.Verdict == types.Deny && m.Entry.Verdict == types.Allow:
		return "since a deny beats an allow"
	}
	return "since it is weaker"
}
