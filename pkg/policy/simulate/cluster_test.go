package simulate

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/oracle"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

func podLabels(ns, app string) labels.LabelArray {
	return labels.PodLabels(labels.Pod{Namespace: ns, Cluster: "default", Labels: map[string]string{"app": app}})
}

func is(key, value string) labels.Selector {
	return labels.NewSelector(labels.Requirement{Source: labels.SourceK8s, Key: key, Operator: labels.In, Values: []string{value}})
}

// drawPeer is a wildcard, a label, a block or an outside entity.
func drawPeer(t *rapid.T) types.Peer {
	switch rapid.IntRange(0, 3).Draw(t, "peer") {
	case 0:
		return types.Peer{Entity: types.EntityAll}
	case 1:
		s := is("app", rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "app"))
		return types.Peer{Labels: &s}
	case 2:
		s := is(labels.KeyPodNamespace, rapid.SampledFrom([]string{"x", "y"}).Draw(t, "namespace"))
		return types.Peer{Labels: &s}
	}
	block := &types.CIDRPeer{
		Prefix: netip.MustParsePrefix(rapid.SampledFrom([]string{"10.0.0.0/24", "10.0.0.2/32", "203.0.113.0/24", "fd00::/64"}).Draw(t, "block")),
		Pods:   rapid.Bool().Draw(t, "pods"),
	}
	if rapid.Bool().Draw(t, "except") && block.Prefix.Addr().Is4() && block.Prefix.Bits() == 24 {
		block.Except = []netip.Prefix{netip.PrefixFrom(block.Prefix.Addr(), 30)}
	}
	return types.Peer{CIDR: block}
}

func drawPolicy(number int) *rapid.Generator[*types.Policy] {
	return rapid.Custom(func(t *rapid.T) *types.Policy {
		p := &types.Policy{Resource: types.Resource{Kind: "P", Namespace: "x", Name: string(rune('a' + number))}}
		p.Subject = is("app", rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "subject"))
		if rapid.Bool().Draw(t, "everybody") {
			p.Subject = labels.Selector{}
		}
		p.IsolatesIngress, p.IsolatesEgress = rapid.Bool().Draw(t, "ingress"), rapid.Bool().Draw(t, "egress")
		for i := range rapid.IntRange(0, 3).Draw(t, "rules") {
			r := types.Rule{Ref: types.RuleRef{Resource: p.Resource, Section: "rules", Index: i}}
			r.Direction = rapid.SampledFrom([]types.Direction{types.Ingress, types.Egress}).Draw(t, "direction")
			r.Verdict = rapid.SampledFrom([]types.Verdict{types.Allow, types.Allow, types.Deny}).Draw(t, "verdict")
			if rapid.Bool().Draw(t, "peers") {
				r.Peers = rapid.SliceOfN(rapid.Custom(drawPeer), 1, 2).Draw(t, "list")
			}
			if rapid.Bool().Draw(t, "ports") {
				r.Ports = []types.Port{rapid.SampledFrom([]types.Port{
					{Proto: wtypes.ProtoTCP, Port: 80}, {Proto: wtypes.ProtoTCP, Port: 70, End: 90}, {Proto: wtypes.ProtoTCP, Name: "web"}, {Proto: wtypes.ProtoUDP},
				}).Draw(t, "port")}
			}
			p.Rules = append(p.Rules, r)
		}
		return p
	})
}

// drawWorld has two pods of one label set that name a port differently, a third
// pod, both kinds of node and two hosts outside.
func drawWorld(t *rapid.T) World {
	web := func(n uint16) types.NamedPorts {
		return types.NamedPorts{{Name: "web", Proto: wtypes.ProtoTCP}: n}
	}
	addrs := func(texts ...string) (out []netip.Addr) {
		for _, a := range texts {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	w := World{
		Pods: []Pod{
			{"x/a", podLabels("x", "a"), addrs("10.0.0.1", "fd00::1"), web(80)},
			{"x/a2", podLabels("x", "a"), addrs("10.0.0.2"), web(81)},
			{"y/b", podLabels("y", "b"), addrs("10.0.1.3", "fd00::3"), nil},
		},
		Hosts: []Host{
			{"host", addrs("192.0.2.1"), labels.NewLabelArray(labels.Reserved(labels.NameHost))},
			{"remote", addrs("192.0.2.2"), labels.NewLabelArray(labels.Reserved(labels.NameRemoteNode))},
			{"near", addrs("203.0.113.1"), nil}, {"far", addrs("198.51.100.9", "2001:db8::9"), nil},
		},
		Mode: rapid.SampledFrom([]types.Mode{types.ModeDefault, types.ModeAlways, types.ModeNever}).Draw(t, "mode"),
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "policies") {
		w.Policies = append(w.Policies, drawPolicy(i).Draw(t, "policy"))
	}
	return w
}

// The map state, the rules that match, and the oracle give one answer.
func TestDecideExplainAndTheOracleAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		c, err := New(w, nil)
		if err != nil {
			t.Fatal(err)
		}
		o := &oracle.World{}
		for _, p := range w.Pods {
			o.Pods = append(o.Pods, oracle.Pod{Name: p.Name, Labels: p.Labels, Addrs: p.Addrs, NamedPorts: p.NamedPorts})
		}
		for _, h := range w.Hosts {
			if h.Labels != nil {
				o.Nodes = append(o.Nodes, oracle.Node{Name: h.Name, Local: h.Name == "host", Addrs: h.Addrs, Labels: h.Labels})
			}
		}
		var all []End
		for _, name := range c.Names() {
			ends, _ := c.Ends(name)
			all = append(all, ends...)
		}
		all = append(all, c.End(netip.MustParseAddr("203.0.113.77")))
		for range 40 {
			from, to := rapid.SampledFrom(all).Draw(t, "from"), rapid.SampledFrom(all).Draw(t, "to")
			if from.Addr.Is4() != to.Addr.Is4() || from.Name == to.Name {
				continue
			}
			proto := rapid.SampledFrom([]wtypes.Proto{wtypes.ProtoTCP, wtypes.ProtoUDP}).Draw(t, "proto")
			port := rapid.SampledFrom([]uint16{1, 70, 80, 81, 90, 91}).Draw(t, "port")
			want := oracle.Judge(o, w.Policies, w.Mode, oracle.Connection{Src: from.Addr, Dst: to.Addr, Proto: proto, Port: port})
			egress, ingress, err := c.Decide(from, to, proto, port)
			if err != nil {
				t.Fatal(err)
			}
			e := c.Explain(from, to, proto, port)
			check := func(what string, o oracle.Judgement, s Side) {
				if s.Judged != o.Judged || s.Judged && (s.Verdict != o.Verdict || s.Rule.String() != o.Ref.String()) {
					t.Fatalf("%s of %s -> %s %s/%d: the oracle says %+v, decided was %+v", what, from.Name, to.Name, proto, port, o, s)
				}
			}
			check("egress", want.Egress, egress)
			check("ingress", want.Ingress, ingress)
			if egress.Judged && e.Egress.Rule.Ref.String() != egress.Rule.String() || ingress.Judged && e.Ingress.Rule.Ref.String() != ingress.Rule.String() {
				t.Fatalf("decided was %+v %+v, explained\n%s", egress, ingress, e)
			}
		}
	})
}

func TestNamesAndAddressesAreUnique(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::ffff:10.0.0.1")
	_, err := New(World{Pods: []Pod{{Name: "x/a"}}, Hosts: []Host{{Name: "x/a"}}}, nil)
	require.ErrorContains(t, err, "x/a is there twice")
	_, err = New(World{Pods: []Pod{{Name: "x/a", Addrs: []netip.Addr{a}}}, Hosts: []Host{{Name: "h", Addrs: []netip.Addr{b}}}}, nil)
	require.ErrorContains(t, err, "x/a and h both have the address 10.0.0.1")
}

func TestAnAddressOfNobodyIsOutside(t *testing.T) {
	c, err := New(World{Pods: []Pod{{Name: "x/a", Labels: podLabels("x", "a"), Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}}, nil)
	require.NoError(t, err)
	e := c.End(netip.MustParseAddr("::ffff:192.0.2.9"))
	require.Equal(t, "192.0.2.9", e.Name)
	require.False(t, e.Pod)
	require.True(t, e.Labels.HasWorld())
	require.Equal(t, "x/a", c.End(netip.MustParseAddr("::ffff:10.0.0.1")).Name)
	ends, ok := c.Ends("x/b")
	require.False(t, ok)
	require.Empty(t, ends)
}
