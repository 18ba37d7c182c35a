package policy_test

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/oracle"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
	"pgregory.net/rapid"
)

// cluster is a world with numbers: what identity/cache and ipcache do at run
// time, done at once.
type cluster struct {
	world    *oracle.World
	policies []*types.Policy
	mode     types.Mode
	index    *policy.Index
	prefixes map[netip.Prefix]bool
	numbers  map[string]identity.NumericIdentity // by label set
	rules    []types.RuleRef                     // by number - 1
}

func newCluster(w *oracle.World, policies []*types.Policy, mode types.Mode) *cluster {
	c := &cluster{world: w, policies: policies, mode: mode, numbers: map[string]identity.NumericIdentity{}}
	pods := map[netip.Addr]policy.Pod{}
	for _, p := range w.Pods {
		for _, a := range p.Addrs {
			pods[a] = policy.Pod{Identity: c.number(p.Labels), NamedPorts: p.NamedPorts}
		}
	}
	ids := identity.ReservedIdentities()
	for _, p := range w.Pods {
		ids[c.number(p.Labels)] = p.Labels
	}
	c.index, _ = policy.NewIndex(ids).Apply(policy.Events{Pods: pods})
	c.prefixes = policy.Prefixes(policies, c.index)
	added := identity.IdentityMap{}
	for p, blocks := range c.prefixes {
		outside := labels.NewLabelArray(labels.CIDRLabel(p), labels.WorldLabel(p.Addr()))
		added[c.number(outside)] = outside
		if blocks {
			where := labels.NewLabelArray(labels.CIDRLabel(p))
			added[c.number(where)] = where
		}
	}
	c.index, _ = c.index.Apply(policy.Events{Added: added})
	return c
}

func (c *cluster) number(a labels.LabelArray) identity.NumericIdentity {
	if id, ok := identity.LookupReservedByLabels(a); ok {
		return id
	}
	id, ok := c.numbers[a.Key()]
	if !ok {
		id = 1000 + identity.NumericIdentity(len(c.numbers))
		c.numbers[a.Key()] = id
	}
	return id
}

// locate gives an address's identity and prefix identity.
func (c *cluster) locate(a netip.Addr) (id, where identity.NumericIdentity) {
	var own labels.LabelArray
	for _, p := range c.world.Pods {
		if slices.Contains(p.Addrs, a) {
			own = p.Labels
		}
	}
	for _, n := range c.world.Nodes {
		if slices.Contains(n.Addrs, a) {
			own = labels.NewLabelArray(labels.Reserved(labels.NameRemoteNode))
			if n.Local {
				own = labels.NewLabelArray(labels.Reserved(labels.NameHost))
			}
		}
	}
	var best netip.Prefix
	for p, blocks := range c.prefixes {
		if p.Contains(a) && (own == nil || blocks) && (!best.IsValid() || p.Bits() > best.Bits()) {
			best = p
		}
	}
	switch {
	case own == nil && !best.IsValid():
		return c.number(labels.NewLabelArray(labels.WorldLabel(a))), 0
	case own == nil:
		id = c.number(labels.NewLabelArray(labels.CIDRLabel(best), labels.WorldLabel(a)))
		return id, id
	case best.IsValid():
		where = c.number(labels.NewLabelArray(labels.CIDRLabel(best)))
	}
	return c.number(own), where
}

func (c *cluster) numberOf(r types.RuleRef) types.RuleID {
	for i := range c.rules {
		if c.rules[i].Key() == r.Key() {
			return types.RuleID(i + 1)
		}
	}
	c.rules = append(c.rules, r)
	return types.RuleID(len(c.rules))
}

func (c *cluster) resolve(p oracle.Pod) *policy.SelectorPolicy {
	s := policy.Subject{Identity: c.number(p.Labels), Labels: p.Labels, NamedPorts: p.NamedPorts}
	return policy.Resolve(s, c.policies, c.mode, c.numberOf)
}

// addrs returns every address of the world, and two of nobody.
func (c *cluster) addrs() []netip.Addr {
	out := []netip.Addr{addr("203.0.113.10"), addr("203.0.113.200"), addr("198.51.100.7"), addr("2001:db8::10"), addr("2001:db8:ffff::7")}
	for _, p := range c.world.Pods {
		out = append(out, p.Addrs...)
	}
	for _, n := range c.world.Nodes {
		out = append(out, n.Addrs...)
	}
	return out
}

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func podLabels(ns, app string) labels.LabelArray {
	return labels.PodLabels(labels.Pod{Namespace: ns, Cluster: "default", Labels: map[string]string{"app": app}})
}

// selectors that the generated policies use for subjects and peers.
var selectors = []labels.Selector{
	{},
	inNamespace("x"),
	inNamespace("y"),
	inNamespace("x").With(labels.Requirement{Key: "app", Operator: labels.In, Values: []string{"a"}}),
	inNamespace("y").With(labels.Requirement{Key: "app", Operator: labels.NotIn, Values: []string{"a"}}),
	labels.NewSelector(labels.Requirement{Key: "app", Operator: labels.DoesNotExist}),
	labels.Equals(labels.Reserved(labels.NameHost)),
	labels.Equals(labels.Reserved(labels.NameRemoteNode)),
	labels.Equals(labels.Reserved(labels.NameWorldIPv4)),
	labels.Equals(labels.Reserved(labels.NameWorldIPv6)),
}

func inNamespace(ns string) labels.Selector {
	return labels.Equals(labels.New(labels.SourceK8s, labels.KeyPodNamespace, ns))
}

// blocks and the excepts that may go with them.
var blocks = map[string][]string{
	"0.0.0.0/0":       {"203.0.113.10/32", "10.0.0.0/8", "203.0.113.0/24"},
	"10.0.0.0/8":      {"10.0.0.0/30", "10.0.0.2/32", "10.0.1.0/24"},
	"10.0.0.2/31":     {"10.0.0.3/32"},
	"203.0.113.0/24":  {"203.0.113.128/25"},
	"203.0.113.10/32": nil,
	"::/0":            {"2001:db8::/64", "fd00::/64"},
	"fd00::/64":       {"fd00::2/128", "fd00::2/127"},
}

func genWorld(t *rapid.T, distinct bool) *oracle.World {
	w := &oracle.World{Nodes: []oracle.Node{
		{Name: "here", Local: true, Addrs: []netip.Addr{addr("10.0.1.1"), addr("fd00:1::1")}},
		{Name: "there", Addrs: []netip.Addr{addr("10.0.1.2"), addr("fd00:1::2")}},
	}}
	for i := range rapid.IntRange(2, 5).Draw(t, "pods") {
		ports := types.NamedPorts{}
		for _, name := range []types.NamedPort{{Name: "http", Proto: wtypes.ProtoTCP}, {Name: "http", Proto: wtypes.ProtoUDP}, {Name: "dns", Proto: wtypes.ProtoUDP}} {
			if n := rapid.SampledFrom([]uint16{0, 80, 81, 8080}).Draw(t, name.String()); n != 0 {
				ports[name] = n
			}
		}
		p := oracle.Pod{Name: fmt.Sprintf("p%d", i), NamedPorts: ports,
			Labels: podLabels(rapid.SampledFrom([]string{"x", "y"}).Draw(t, "ns"), rapid.SampledFrom([]string{"a", "b"}).Draw(t, "app")),
			Addrs:  []netip.Addr{addr(fmt.Sprintf("10.0.0.%d", i+1)), addr(fmt.Sprintf("fd00::%d", i+1))}}
		if distinct {
			p.Labels = p.Labels.With(labels.New(labels.SourceK8s, "pod", p.Name))
		}
		if rapid.IntRange(0, 9).Draw(t, "init") == 0 {
			p.Labels = labels.NewLabelArray(labels.Reserved(labels.NameInit))
		}
		w.Pods = append(w.Pods, p)
	}
	return w
}

func genPeer(t *rapid.T) types.Peer {
	switch rapid.IntRange(0, 9).Draw(t, "peer kind") {
	case 9:
		return types.Peer{Entity: types.EntityAll}
	case 0, 1, 2, 3:
		s := rapid.SampledFrom(selectors[1:]).Draw(t, "peer")
		return types.Peer{Labels: &s}
	}
	block := rapid.SampledFrom(slices.Sorted(mapKeys(blocks))).Draw(t, "block")
	c := &types.CIDRPeer{Prefix: prefix(block), Pods: rapid.Bool().Draw(t, "pods")}
	for _, e := range blocks[block] {
		if rapid.Bool().Draw(t, "except") {
			c.Except = append(c.Except, prefix(e))
		}
	}
	return types.Peer{CIDR: c}
}

func mapKeys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func genPort(t *rapid.T) types.Port {
	protos := []wtypes.Proto{wtypes.ProtoTCP, wtypes.ProtoUDP, wtypes.ProtoSCTP}
	switch rapid.IntRange(0, 8).Draw(t, "port kind") {
	case 0:
		return types.Port{Proto: wtypes.ProtoAny}
	case 1:
		return types.Port{Proto: rapid.SampledFrom(append(protos, wtypes.ProtoICMP)).Draw(t, "proto")}
	case 5:
		return types.Port{Proto: rapid.SampledFrom([]wtypes.Proto{wtypes.ProtoICMP, wtypes.ProtoICMPv6}).Draw(t, "family"),
			Port: rapid.SampledFrom([]uint16{0, 0, 8, 128}).Draw(t, "ICMP type"), ICMPType: true}
	case 2, 3:
		return types.Port{Proto: rapid.SampledFrom(protos[:2]).Draw(t, "proto"), Name: rapid.SampledFrom([]string{"http", "http", "dns", "none"}).Draw(t, "name")}
	case 4:
		from := rapid.SampledFrom([]uint16{1, 78, 80, 81, 8000}).Draw(t, "from")
		return types.Port{Proto: rapid.SampledFrom(protos).Draw(t, "proto"), Port: from,
			End: from + rapid.SampledFrom([]uint16{0, 1, 2, 7, 1000}).Draw(t, "more")}
	}
	return types.Port{Proto: rapid.SampledFrom(protos).Draw(t, "proto"), Port: rapid.SampledFrom([]uint16{80, 81, 8080}).Draw(t, "port")}
}

func genPolicies(t *rapid.T) []*types.Policy {
	var out []*types.Policy
	for i := range rapid.IntRange(0, 5).Draw(t, "policies") {
		p := &types.Policy{
			Resource:        types.Resource{Kind: "NetworkPolicy", Namespace: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "namespace"), Name: fmt.Sprintf("n%d", 9-i)},
			Subject:         rapid.SampledFrom(selectors[:6]).Draw(t, "subject"),
			IsolatesIngress: rapid.Bool().Draw(t, "isolates ingress"),
			IsolatesEgress:  rapid.Bool().Draw(t, "isolates egress"),
		}
		for j := range rapid.IntRange(0, 4).Draw(t, "rules") {
			r := types.Rule{
				Direction: types.Direction(rapid.IntRange(0, 1).Draw(t, "direction")),
				Verdict:   types.Verdict(min(1, rapid.IntRange(0, 3).Draw(t, "verdict"))),
				Tier:      types.Tier(rapid.SampledFrom([]int{0, 0, 0, -1, 1}).Draw(t, "tier")),
				Priority:  uint16(rapid.SampledFrom([]int{0, 0, 7, 65535}).Draw(t, "priority")),
			}
			if r.Tier.Ordered() && rapid.Bool().Draw(t, "pass") {
				r.Verdict = types.Pass
			}
			r.Ref = types.RuleRef{Resource: p.Resource, Section: r.Direction.String(), Index: j}
			if n := rapid.SampledFrom([]int{-1, 0, 1, 1, 1, 2, 2, 3}).Draw(t, "peers"); n >= 0 {
				r.Peers = []types.Peer{}
				for range n {
					r.Peers = append(r.Peers, genPeer(t))
				}
			}
			if n := rapid.SampledFrom([]int{-1, 0, 1, 1, 1, 2, 2, 3}).Draw(t, "ports"); n >= 0 {
				r.Ports = []types.Port{}
				for range n {
					r.Ports = append(r.Ports, genPort(t))
				}
			}
			p.Rules = append(p.Rules, r)
		}
		out = append(out, p)
	}
	return out
}

func genMode(t *rapid.T) types.Mode {
	return rapid.SampledFrom([]types.Mode{types.ModeDefault, types.ModeDefault, types.ModeDefault, types.ModeAlways, types.ModeNever}).Draw(t, "mode")
}

type probe struct {
	proto wtypes.Proto
	port  uint16
}

var probes = []probe{
	{wtypes.ProtoTCP, 80}, {wtypes.ProtoTCP, 81}, {wtypes.ProtoTCP, 8080}, {wtypes.ProtoTCP, 79}, {wtypes.ProtoTCP, 8500},
	{wtypes.ProtoUDP, 80}, {wtypes.ProtoUDP, 81}, {wtypes.ProtoUDP, 8080}, {wtypes.ProtoSCTP, 80}, {wtypes.ProtoICMP, 0}, {wtypes.ProtoICMP, 8}, {wtypes.ProtoICMPv6, 0}, {wtypes.ProtoICMPv6, 128}, {47, 0}, {wtypes.ProtoTCP, 65535},
}
