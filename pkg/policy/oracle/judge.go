package oracle

import (
	"net/netip"
	"slices"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// Connection is the first packet of a flow.
type Connection struct {
	Src, Dst netip.Addr
	Proto    wtypes.Proto
	Port     uint16 // destination port; of ICMP whatever the data plane asks with
}

// Judgement is the verdict of one end.
type Judgement struct {
	Judged  bool // false: this end is no pod, nothing is asked and Verdict is Allow
	Verdict types.Verdict
	Ref     types.RuleRef // zero if not judged
}

// Verdict is what happens to a connection: it passes if both ends allow.
type Verdict struct {
	Egress  Judgement // at the source
	Ingress Judgement // at the destination
}

// Allowed reports whether the connection passes.
func (v Verdict) Allowed() bool {
	return v.Egress.Verdict == types.Allow && v.Ingress.Verdict == types.Allow
}

// Judge judges both ends of a connection, each in its own mode or else in the
// node's, mode. A pod's traffic to its own address
// never leaves the pod, so it is not a question for Judge.
func Judge(w *World, policies []*types.Policy, mode types.Mode, c Connection) Verdict {
	src, dst := w.at(c.Src), w.at(c.Dst)
	return Verdict{
		Egress:  judge(policies, mode, types.Egress, src, dst, c, dst),
		Ingress: judge(policies, mode, types.Ingress, dst, src, c, dst),
	}
}

// judge asks the policies of subject about peer. dst is the connection's
// destination, whose named ports count in both directions.
func judge(policies []*types.Policy, mode types.Mode, dir types.Direction, subject, peer end, c Connection, dst end) Judgement {
	if subject.pod == nil {
		return Judgement{Verdict: types.Allow}
	}
	never, always := types.KindModeNever, types.KindModeAlways
	if own, has := subject.pod.Enforcement.Own(); has {
		mode, never, always = own, types.KindEndpointNever, types.KindEndpointAlways
	}
	if mode == types.ModeNever {
		return allow(never)
	}
	var isolating []types.Resource
	best := map[types.Tier]*types.Rule{}
	for _, p := range policies {
		if !p.Subject.Matches(subject.labels) {
			continue
		}
		if dir == types.Ingress && p.IsolatesIngress || dir == types.Egress && p.IsolatesEgress {
			isolating = append(isolating, p.Resource)
		}
		for i := range p.Rules {
			r := &p.Rules[i]
			if r.Direction == dir && peersMatch(r.Peers, peer) && portsMatch(r.Ports, c, dst) && (best[r.Tier] == nil || stronger(r, best[r.Tier])) {
				best[r.Tier] = r
			}
		}
	}
	fromNode := dir == types.Ingress && peer.local
	for _, tier := range []types.Tier{types.TierAdmin, types.TierNormal, types.TierBaseline} {
		if r := best[tier]; r != nil && r.Verdict != types.Pass {
			return Judgement{Judged: true, Verdict: r.Verdict, Ref: r.Ref}
		}
		if tier != types.TierNormal || len(isolating) == 0 {
			continue
		}
		if fromNode {
			return allow(types.KindLocalNode)
		}
		slices.SortFunc(isolating, types.Resource.Compare)
		isolating = slices.CompactFunc(isolating, func(a, b types.Resource) bool { return a.Compare(b) == 0 })
		return Judgement{Judged: true, Ref: types.RuleRef{Kind: types.KindDefaultDeny, Isolated: isolating}}
	}
	isInit := subject.labels.HasReserved(labels.NameInit)
	switch {
	case mode != types.ModeAlways && !isInit:
		return allow(types.KindNotIsolated)
	case fromNode:
		return allow(types.KindLocalNode)
	case isInit:
		return Judgement{Judged: true, Ref: types.RuleRef{Kind: types.KindInit}}
	}
	return Judgement{Judged: true, Ref: types.RuleRef{Kind: always}}
}

func allow(k types.RuleKind) Judgement {
	return Judgement{Judged: true, Verdict: types.Allow, Ref: types.RuleRef{Kind: k}}
}

// stronger compares rules of one tier: the lower priority, then a deny over an
// allow unless the tier is ordered, then the first by name and place.
func stronger(a, b *types.Rule) bool {
	if a.Priority != b.Priority {
		return a.Priority < b.Priority
	}
	if a.Verdict != b.Verdict && !a.Tier.Ordered() {
		return a.Verdict == types.Deny
	}
	return a.Ref.Compare(b.Ref) < 0
}

func peersMatch(peers []types.Peer, e end) bool {
	if peers == nil {
		return true
	}
	for _, p := range peers {
		if peerMatches(p, e) {
			return true
		}
	}
	return false
}

func peerMatches(p types.Peer, e end) bool {
	switch {
	case p.Entity == types.EntityAll:
		return true
	case p.Labels != nil:
		return p.Labels.Matches(e.labels)
	case p.CIDR != nil:
		if !e.outside && !p.CIDR.Pods {
			return false
		}
		for _, x := range p.CIDR.Except {
			if contains(x, e.addr) {
				return false
			}
		}
		return contains(p.CIDR.Prefix, e.addr)
	}
	return false
}

func contains(p netip.Prefix, a netip.Addr) bool {
	return labels.CanonicalPrefix(p).Contains(a)
}

func portsMatch(ports []types.Port, c Connection, dst end) bool {
	if ports == nil {
		return true
	}
	for _, p := range ports {
		if portMatches(p, c, dst) {
			return true
		}
	}
	return false
}

func portMatches(p types.Port, c Connection, dst end) bool {
	switch {
	case p.Proto == wtypes.ProtoAny:
		return true
	case p.Proto != c.Proto:
		return false
	case p.Name != "":
		if dst.pod == nil {
			return false
		}
		number, ok := dst.pod.NamedPorts[types.NamedPort{Name: p.Name, Proto: p.Proto}]
		return ok && number != 0 && number == c.Port
	case p.Port == 0 && !p.ICMPType:
		return true
	case p.End == 0:
		return c.Port == p.Port
	}
	return p.Port <= c.Port && c.Port <= p.End
}
