package policy_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/oracle"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

var (
	httpTCP  = types.NamedPort{Name: "http", Proto: wtypes.ProtoTCP}
	httpPort = []types.Port{{Proto: wtypes.ProtoTCP, Name: "http"}}
)

// onePolicy selects everything and isolates both directions.
func onePolicy(rules ...types.Rule) *types.Policy {
	p := &types.Policy{Resource: types.Resource{Kind: "NetworkPolicy", Namespace: "x", Name: "one"}, IsolatesIngress: true, IsolatesEgress: true}
	for i, r := range rules {
		r.Ref = types.RuleRef{Resource: p.Resource, Section: r.Direction.String(), Index: i}
		p.Rules = append(p.Rules, r)
	}
	return p
}

// twins is three pods: p1, and two of one identity that name http differently.
func twins() *oracle.World {
	return &oracle.World{Pods: []oracle.Pod{
		{Name: "p1", Labels: podLabels("x", "client"), Addrs: []netip.Addr{addr("10.0.0.1")}},
		{Name: "p2", Labels: podLabels("x", "web"), Addrs: []netip.Addr{addr("10.0.0.2")}, NamedPorts: types.NamedPorts{httpTCP: 8000}},
		{Name: "p3", Labels: podLabels("x", "web"), Addrs: []netip.Addr{addr("10.0.0.3")}, NamedPorts: types.NamedPorts{httpTCP: 8080}},
	}}
}

func (c *cluster) egress(t *testing.T, pod int, to string, port uint16) types.Verdict {
	t.Helper()
	ms, err := c.resolve(c.world.Pods[pod]).MapState(c.index)
	require.NoError(t, err)
	id, where := c.locate(addr(to))
	return ms.Decide(types.Egress, id, where, wtypes.ProtoTCP, port).Verdict
}

func TestB05_NamedPortIsThatOfEachDestinationPod(t *testing.T) {
	web := inNamespace("x").With(labels.Requirement{Key: "app", Operator: labels.In, Values: []string{"web"}})
	for name, peers := range map[string][]types.Peer{
		"anybody":             nil,
		"by label":            {{Labels: &web}},
		"by ipBlock":          {{CIDR: &types.CIDRPeer{Prefix: prefix("10.0.0.0/24"), Pods: true}}},
		"by ipBlock of all":   {{CIDR: &types.CIDRPeer{Prefix: prefix("0.0.0.0/0"), Pods: true}}},
		"label and elsewhere": {{Labels: &web}, {CIDR: &types.CIDRPeer{Prefix: prefix("10.9.0.0/16"), Pods: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(twins(), []*types.Policy{onePolicy(types.Rule{Direction: types.Egress, Verdict: types.Allow, Peers: peers, Ports: httpPort})}, types.ModeDefault)
			require.Equal(t, types.Allow, c.egress(t, 0, "10.0.0.2", 8000))
			require.Equal(t, types.Deny, c.egress(t, 0, "10.0.0.2", 8080))
			require.Equal(t, types.Allow, c.egress(t, 0, "10.0.0.3", 8080))
			require.Equal(t, types.Deny, c.egress(t, 0, "10.0.0.3", 8000))
			require.Equal(t, types.Deny, c.egress(t, 0, "203.0.113.10", 8000), "an outside host names no ports")
		})
	}
}

func TestAgreedNamedPortNeedsNoPrefixPerPod(t *testing.T) {
	w := twins()
	w.Pods[2].NamedPorts = w.Pods[1].NamedPorts
	c := newCluster(w, []*types.Policy{onePolicy(types.Rule{Direction: types.Egress, Verdict: types.Allow, Ports: httpPort})}, types.ModeDefault)
	require.Empty(t, c.prefixes)
	require.Equal(t, types.Allow, c.egress(t, 0, "10.0.0.3", 8000))
}

// Without the prefix identities (ipcache has not made them yet) the pods cannot
// be told apart: an allow is left out, a deny covers both numbers.
func TestNamedPortBeforeThePodsCanBeToldApart(t *testing.T) {
	for name, peers := range map[string][]types.Peer{
		"by label":   {{Labels: new(inNamespace("x"))}},
		"by ipBlock": {{CIDR: &types.CIDRPeer{Prefix: prefix("10.0.0.0/24"), Pods: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			allow := types.Rule{Direction: types.Egress, Verdict: types.Allow, Peers: peers, Ports: httpPort}
			all := types.Rule{Direction: types.Egress, Verdict: types.Allow}
			deny := types.Rule{Direction: types.Egress, Verdict: types.Deny, Peers: peers, Ports: httpPort}
			c := newCluster(twins(), []*types.Policy{onePolicy(allow)}, types.ModeDefault)
			forgetSinglePrefixes(c)
			for _, port := range []uint16{8000, 8080} {
				require.Equal(t, types.Deny, c.egress(t, 0, "10.0.0.2", port))
			}
			c = newCluster(twins(), []*types.Policy{onePolicy(all, deny)}, types.ModeDefault)
			require.Equal(t, types.Deny, c.egress(t, 0, "10.0.0.2", 8000))
			require.Equal(t, types.Allow, c.egress(t, 0, "10.0.0.2", 8080))
			forgetSinglePrefixes(c)
			for _, port := range []uint16{8000, 8080} {
				require.Equal(t, types.Deny, c.egress(t, 0, "10.0.0.2", port))
			}
			require.Equal(t, types.Allow, c.egress(t, 0, "10.0.0.2", 80))
		})
	}
}

func forgetSinglePrefixes(c *cluster) {
	gone := map[netip.Prefix]bool{}
	for p := range c.prefixes {
		gone[p] = p.IsSingleIP()
	}
	e := policy.Events{Removed: c.index.Identities()}
	for id, a := range e.Removed {
		if p, ok := a.Prefix(); !ok || !gone[p] {
			delete(e.Removed, id)
		}
	}
	c.index, _ = c.index.Apply(e)
	for p, single := range gone {
		if single {
			delete(c.prefixes, p)
		}
	}
}

func TestUnknownNamedPortMatchesNothingAndIsReported(t *testing.T) {
	none := []types.Port{{Proto: wtypes.ProtoTCP, Name: "none"}, {Proto: wtypes.ProtoTCP, Port: 80}}
	c := newCluster(twins(), []*types.Policy{onePolicy(
		types.Rule{Direction: types.Ingress, Verdict: types.Allow, Ports: none},
		types.Rule{Direction: types.Egress, Verdict: types.Allow, Ports: none})}, types.ModeDefault)
	sp := c.resolve(c.world.Pods[0])
	ms, err := sp.MapState(c.index)
	require.NoError(t, err)
	require.Len(t, ms, 5, "the number is enforced: two defaults, the node, one port each way")
	un := sp.UnresolvedPorts(c.index)
	require.Len(t, un, 2)
	require.Equal(t, "none/TCP", un[0].Port.String())
}

func TestNamedPortChangesAreNamed(t *testing.T) {
	c := newCluster(twins(), nil, types.ModeDefault)
	_, ch := c.index.Apply(policy.Events{Pods: map[netip.Addr]policy.Pod{addr("10.0.0.4"): {Identity: c.number(podLabels("x", "web"))}}})
	require.Empty(t, ch.NamedPorts, "they differed before")
	x, ch := c.index.Apply(policy.Events{GonePods: []netip.Addr{addr("10.0.0.3")}})
	require.True(t, ch.NamedPorts[httpTCP])
	_, ch = x.Apply(policy.Events{Pods: map[netip.Addr]policy.Pod{addr("10.0.0.4"): {Identity: c.number(podLabels("x", "web"))}}})
	require.True(t, ch.NamedPorts[httpTCP], "a pod without the name makes the number a matter of addresses")
	_, ch = x.Apply(policy.Events{Pods: map[netip.Addr]policy.Pod{addr("10.0.0.2"): {Identity: c.number(podLabels("x", "web")), NamedPorts: types.NamedPorts{httpTCP: 8000}}}})
	require.True(t, ch.Empty(), "the same again changes nothing")
}
