package differential

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// gen draws things.
type gen struct{ *rand.Rand }

func pick[T any](g gen, from []T) T { return from[g.IntN(len(from))] }

func (g gen) chance(percent int) bool { return g.IntN(100) < percent }

// between draws a number from first to last.
func (g gen) between(first, last int) int { return first + g.IntN(last-first+1) }

// Addresses lie close together, so that blocks hold some of them, or anywhere.
func (g gen) podAddr4() netip.Addr {
	if g.chance(30) {
		return netip.AddrFrom4([4]byte{10, byte(g.IntN(256)), byte(g.IntN(256)), byte(g.IntN(256))})
	}
	return netip.AddrFrom4([4]byte{10, 0, byte(g.IntN(2)), byte(g.IntN(32))})
}

func (g gen) podAddr6() netip.Addr {
	a := [16]byte{0: 0xfd, 15: byte(g.IntN(32)), 7: byte(g.IntN(2))}
	if g.chance(30) {
		for i := 1; i < 16; i++ {
			a[i] = byte(g.IntN(256))
		}
	}
	return netip.AddrFrom16(a)
}

func (g gen) outsideAddr4() netip.Addr {
	if g.chance(40) {
		return netip.AddrFrom4([4]byte{byte(g.between(11, 126)), byte(g.IntN(256)), byte(g.IntN(256)), byte(g.IntN(256))})
	}
	return netip.AddrFrom4([4]byte{203, 0, 113, byte(g.IntN(256))})
}

func (g gen) outsideAddr6() netip.Addr {
	a := [16]byte{0: 0x20, 1: 0x01, 2: 0x0d, 3: 0xb8, 15: byte(g.IntN(256))}
	if g.chance(40) {
		for i := 4; i < 16; i++ {
			a[i] = byte(g.IntN(256))
		}
	}
	return netip.AddrFrom16(a)
}

var (
	namespaces = []string{"x", "y", "z"}
	apps       = []string{"a", "b", "c"}
)

func (g gen) podLabels() labels.LabelArray {
	l := map[string]string{"app": pick(g, apps)}
	if g.chance(40) {
		l["tier"] = pick(g, []string{"front", "back"})
	}
	return labels.PodLabels(labels.Pod{Namespace: pick(g, namespaces), Cluster: "default", Labels: l})
}

var portNames = []string{"http", "dns", "metrics"}

func (g gen) namedPorts() types.NamedPorts {
	ports := types.NamedPorts{}
	for _, name := range portNames {
		for _, proto := range []wtypes.Proto{wtypes.ProtoTCP, wtypes.ProtoUDP, wtypes.ProtoSCTP} {
			if g.chance(40) {
				ports[types.NamedPort{Name: name, Proto: proto}] = pick(g, []uint16{53, 80, 81, 8080, 9090})
			}
		}
	}
	return ports
}

// version draws policies; half of those before are kept.
func (w *world) version(name string, before []*types.Policy) version {
	v := version{mode: types.ModeDefault}
	for _, p := range before {
		if w.chance(50) {
			v.policies = append(v.policies, p)
		}
	}
	switch n := w.IntN(100); {
	case n < 3:
		v.mode = types.ModeNever
	case n < 15:
		v.mode = types.ModeAlways
	}
	for i := range w.between(3, 10) - len(v.policies)/2 {
		v.policies = append(v.policies, w.policy(fmt.Sprintf("%c%d-%s", 'a'+w.IntN(26), i, name)))
	}
	return v
}

func (w *world) policy(name string) *types.Policy {
	p := &types.Policy{
		Resource: types.Resource{Kind: "NetworkPolicy", Namespace: pick(w.gen, namespaces), Name: name},
		Subject:  w.subject(), IsolatesIngress: w.chance(52), IsolatesEgress: w.chance(52),
	}
	switch w.IntN(3) {
	case 0:
		p.Resource.Kind = "CiliumNetworkPolicy"
	case 1:
		p.Resource.Kind, p.Resource.Namespace = "CiliumClusterwideNetworkPolicy", ""
	}
	index := map[string]int{}
	var tier types.Tier
	var priority uint16
	if w.chance(22) {
		tier, priority = pick(w.gen, []types.Tier{types.TierAdmin, types.TierAdmin, types.TierBaseline}), pick(w.gen, []uint16{0, 1, 1000})
		p.Resource.Kind, p.Resource.Namespace, p.IsolatesIngress, p.IsolatesEgress = "ClusterNetworkPolicy", "", false, false
	}
	for range w.between(1, 5) {
		r := types.Rule{Direction: types.Direction(w.IntN(2)), Verdict: types.Allow, Peers: w.peers(), Ports: w.portsOf()}
		section := r.Direction.String()
		r.Tier, r.Priority = tier, priority
		if w.chance(45) {
			r.Verdict = types.Deny
		}
		switch {
		case tier.Ordered() && w.chance(40):
			r.Verdict = types.Pass
		case !tier.Ordered() && r.Verdict == types.Deny:
			section += "Deny"
		}
		r.Ref = types.RuleRef{Resource: p.Resource, Section: section, Index: index[section]}
		index[section]++
		p.Rules = append(p.Rules, r)
	}
	return p
}

// subject selects the pods that a policy governs.
func (w *world) subject() labels.Selector {
	switch n := w.IntN(100); {
	case n < 25:
		return labels.Selector{}
	case n < 65:
		return inNamespace(pick(w.gen, namespaces))
	case n < 80:
		return labels.NewSelector(labels.Requirement{Key: "app", Operator: labels.In, Values: []string{pick(w.gen, apps), pick(w.gen, apps)}})
	case n < 90:
		return labels.NewSelector(labels.Requirement{Key: "tier", Operator: labels.DoesNotExist})
	}
	return inNamespace(pick(w.gen, namespaces)).With(labels.Requirement{Key: "app", Operator: labels.NotIn, Values: []string{pick(w.gen, apps)}})
}

func inNamespace(ns string) labels.Selector {
	return labels.Equals(labels.New(labels.SourceK8s, labels.KeyPodNamespace, ns))
}

func (w *world) peers() []types.Peer {
	n := pick(w.gen, []int{-1, 0, 1, 1, 1, 2, 2, 3, 3, 4})
	if n < 0 {
		return nil
	}
	out := []types.Peer{}
	for range n {
		out = append(out, w.peer()...)
	}
	return out
}

func (w *world) peer() []types.Peer {
	switch n := w.IntN(100); {
	case n < 4:
		return []types.Peer{{Entity: types.EntityAll}}
	case n < 6:
		return []types.Peer{{Labels: &labels.Selector{}}}
	case n < 40:
		s := w.subject()
		return []types.Peer{{Labels: &s}}
	case n < 46:
		return reserved(labels.NameHost)
	case n < 52:
		return reserved(labels.NameRemoteNode)
	case n < 60:
		return reserved(labels.NameWorld, labels.NameWorldIPv4, labels.NameWorldIPv6)
	case n < 64: // the cluster
		pods := labels.NewSelector(labels.Requirement{Source: labels.SourceK8s, Key: labels.KeyPodNamespace, Operator: labels.Exists})
		return append(reserved(labels.NameHost, labels.NameRemoteNode, labels.NameInit), types.Peer{Labels: &pods})
	}
	c := w.block()
	return []types.Peer{{CIDR: &c}}
}

func reserved(names ...string) []types.Peer {
	out := make([]types.Peer, len(names))
	for i, n := range names {
		s := labels.NewSelector(labels.Requirement{Source: labels.SourceReserved, Key: n, Operator: labels.Exists})
		out[i] = types.Peer{Labels: &s}
	}
	return out
}

// block draws a prefix around somebody, with excepts around somebody inside.
func (w *world) block() types.CIDRPeer {
	a := pick(w.gen, w.ends).addr
	c := types.CIDRPeer{Prefix: w.around(a, 0), Pods: w.chance(60)}
	var inside []netip.Addr
	for _, e := range w.ends {
		if c.Prefix.Contains(e.addr) {
			inside = append(inside, e.addr)
		}
	}
	for range pick(w.gen, []int{0, 0, 1, 1, 2}) {
		if c.Prefix.Bits() < a.BitLen() {
			c.Except = append(c.Except, w.around(pick(w.gen, inside), c.Prefix.Bits()+1))
		}
	}
	return c
}

// around draws a prefix of at least so many bits that holds the address.
func (w *world) around(a netip.Addr, least int) netip.Prefix {
	bits := w.between(least, a.BitLen())
	switch n := w.IntN(10); {
	case n < 2:
		bits = a.BitLen()
	case n < 7:
		bits = max(least, a.BitLen()-w.IntN(10))
	case n < 8:
		bits = least
	}
	return netip.PrefixFrom(a, bits).Masked()
}

func (w *world) portsOf() []types.Port {
	n := pick(w.gen, []int{-1, -1, -1, 0, 1, 1, 2, 2, 3, 3})
	if n < 0 {
		return nil
	}
	out := []types.Port{}
	for range n {
		out = append(out, w.port())
	}
	return out
}

func (w *world) port() types.Port {
	proto := pick(w.gen, []wtypes.Proto{wtypes.ProtoTCP, wtypes.ProtoTCP, wtypes.ProtoUDP, wtypes.ProtoSCTP})
	switch n := w.IntN(100); {
	case n < 8:
		return types.Port{Proto: wtypes.ProtoAny}
	case n < 22:
		return types.Port{Proto: pick(w.gen, []wtypes.Proto{proto, proto, wtypes.ProtoICMP, wtypes.ProtoICMPv6, 47})}
	case n < 28:
		return types.Port{Proto: wtypes.ProtoICMP, Port: pick(w.gen, []uint16{echoRequest4, echoReply4, 13}), ICMPType: true}
	case n < 34:
		return types.Port{Proto: wtypes.ProtoICMPv6, Port: pick(w.gen, []uint16{echoRequest6, echoReply6}), ICMPType: true}
	case n < 50:
		return types.Port{Proto: proto, Name: pick(w.gen, append(portNames, "none"))}
	case n < 80:
		first := uint16(w.between(1, 65535))
		if w.chance(60) {
			first = uint16(w.between(40, 130))
		}
		p := types.Port{Proto: proto, Port: first, End: first + uint16(min(pick(w.gen, []int{1, 2, 7, 40, 1000, 65535}), 65535-int(first)))}
		if w.chance(2) {
			p.End = 1 // no port at all, unless it is the first
		}
		return p
	}
	return types.Port{Proto: proto, Port: pick(w.gen, []uint16{53, 80, 81, 443, 8080, 9090})}
}
