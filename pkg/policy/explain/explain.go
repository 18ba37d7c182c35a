package explain

import (
	"fmt"
	"strings"

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
}

// Question is the connection to judge.
type Question struct {
	From, To Peer
	Proto    wtypes.Proto
	Port     uint16 // destination port, host order; of ICMP the type
}

// Judgement is the verdict of one direction.
type Judgement struct {
	Direction types.Direction
	Verdict   types.Verdict
	Rule      policy.Match     // that decided
	Losers    []policy.Match   // matched too, strongest first; the direction's default left out
	Isolating []types.Resource // policies that isolate the pod here
}

// Explanation is the whole answer.
type Explanation struct {
	Question
	Verdict types.Verdict
	Egress  *Judgement // nil: the source is no pod of this node
	Ingress *Judgement // nil: the destination is no pod of this node
}

// Explain judges both directions from the policies in force.
func Explain(x *policy.Index, q Question) Explanation {
	e := Explanation{Question: q, Verdict: types.Allow}
	if q.From.Policy != nil {
		e.Egress = judge(x, q.From.Policy, types.Egress, q.To, q)
	}
	if q.To.Policy != nil {
		e.Ingress = judge(x, q.To.Policy, types.Ingress, q.From, q)
	}
	for _, j := range []*Judgement{e.Egress, e.Ingress} {
		if j != nil && j.Verdict == types.Deny {
			e.Verdict = types.Deny
		}
	}
	return e
}

func judge(x *policy.Index, sp *policy.SelectorPolicy, dir types.Direction, peer Peer, q Question) *Judgement {
	matches := sp.Matching(x, dir, peer.Identity, peer.PrefixIdentity, q.Proto, q.Port)
	j := &Judgement{Direction: dir, Verdict: matches[0].Entry.Verdict, Rule: matches[0], Isolating: sp.Direction(dir).Isolating}
	for _, m := range matches[1:] {
		if m.Entry.Precedence != types.DefaultPrecedence {
			j.Losers = append(j.Losers, m)
		}
	}
	return j
}

// String prints the explanation for people.
func (e Explanation) String() string {
	port := e.Proto.String()
	if e.Proto.HasPorts() {
		port = fmt.Sprintf("%d/%s", e.Port, e.Proto)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s -> %s %s: %s\n", e.From.Name, e.To.Name, port, e.Verdict)
	e.Egress.write(&b, "egress of "+e.From.Name, e.From)
	e.Ingress.write(&b, "ingress of "+e.To.Name, e.To)
	return b.String()
}

func (j *Judgement) write(b *strings.Builder, where string, end Peer) {
	if j == nil {
		fmt.Fprintf(b, "  %s: not judged, %s is no pod of this node\n", where, end.Name)
		return
	}
	fmt.Fprintf(b, "  %s: %s by %s\n", where, j.Verdict, j.Rule.Ref)
	for _, l := range j.Losers {
		fmt.Fprintf(b, "    lost: %s by %s, %s\n", l.Entry.Verdict, l.Ref, lost(j.Rule.Entry, l.Entry))
	}
}

// lost says why one entry lost to another.
func lost(won, lost types.Entry) string {
	switch {
	case won.Precedence == lost.Precedence:
		return "equally strong but later in the order of policies"
	case won.Verdict == types.Deny && lost.Verdict == types.Allow:
		return "since a deny beats an allow"
	}
	return "since it is weaker"
}
