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

// Tests of this file are named after entries of the list of failures that users
// of other systems reported.

// office is two pods of namespace x, one of y, and two nodes.
func office() *oracle.World {
	return &oracle.World{
		Pods: []oracle.Pod{
			{Name: "p1", Labels: podLabels("x", "a"), Addrs: []netip.Addr{addr("10.0.0.1"), addr("fd00::1")}},
			{Name: "p2", Labels: podLabels("x", "b"), Addrs: []netip.Addr{addr("10.0.0.2"), addr("fd00::2")}},
			{Name: "p3", Labels: podLabels("y", "a"), Addrs: []netip.Addr{addr("10.0.0.3"), addr("fd00::3")}},
		},
		Nodes: []oracle.Node{
			{Name: "here", Local: true, Addrs: []netip.Addr{addr("10.0.1.1"), addr("fd00:1::1")}},
			{Name: "there", Addrs: []netip.Addr{addr("10.0.1.2"), addr("fd00:1::2")}},
		},
	}
}

// ask judges a connection between the first pod and a peer, and makes sure that
// the oracle says the same, rule included.
func (c *cluster) ask(t *testing.T, dir types.Direction, peer string, proto wtypes.Proto, port uint16) (types.Verdict, types.RuleKind) {
	t.Helper()
	subject := c.world.Pods[0]
	ms, err := c.resolve(subject).MapState(c.index)
	require.NoError(t, err)
	id, where := c.locate(addr(peer))
	got := ms.Decide(dir, id, where, proto, port)
	require.True(t, got.Found)
	mine := subject.Addrs[0]
	if addr(peer).Is6() {
		mine = subject.Addrs[1]
	}
	conn := oracle.Connection{Src: mine, Dst: addr(peer), Proto: proto, Port: port}
	if dir == types.Ingress {
		conn.Src, conn.Dst = conn.Dst, conn.Src
	}
	v := oracle.Judge(c.world, c.policies, c.mode, conn)
	want := v.Egress
	if dir == types.Ingress {
		want = v.Ingress
	}
	ref := c.rules[got.Rule-1]
	require.Equal(t, want.Verdict, got.Verdict, "the oracle says %s by %s, the map state %s", want.Verdict, want.Ref, ref)
	require.Equal(t, want.Ref.Key(), ref.Key())
	return got.Verdict, ref.Kind
}

func (c *cluster) verdict(t *testing.T, dir types.Direction, peer string, proto wtypes.Proto, port uint16) types.Verdict {
	t.Helper()
	v, _ := c.ask(t, dir, peer, proto, port)
	return v
}

func TestB10_WideDenyBeatsNarrowAllowInAnyOrder(t *testing.T) {
	deny := types.Rule{Direction: types.Egress, Verdict: types.Deny, Peers: []types.Peer{{CIDR: &types.CIDRPeer{Prefix: prefix("203.0.113.0/24")}}}}
	allow := types.Rule{Direction: types.Egress, Verdict: types.Allow, Peers: []types.Peer{{CIDR: &types.CIDRPeer{Prefix: prefix("203.0.113.10/32")}}},
		Ports: []types.Port{{Proto: wtypes.ProtoTCP, Port: 80}}}
	another := func(r types.Rule) *types.Policy {
		p := onePolicy(r)
		p.Resource.Name, p.Rules[0].Ref.Resource.Name = "another", "another"
		return p
	}
	for _, policies := range [][]*types.Policy{
		{onePolicy(deny, allow)}, {onePolicy(allow, deny)}, // in one policy, and in two that come in either order under either name
		{onePolicy(deny), another(allow)}, {another(allow), onePolicy(deny)}, {onePolicy(allow), another(deny)}, {another(deny), onePolicy(allow)},
	} {
		c := newCluster(office(), policies, types.ModeDefault)
		require.Equal(t, types.Deny, c.verdict(t, types.Egress, "203.0.113.10", wtypes.ProtoTCP, 80))
	}
}

func TestB27_PortRuleDoesNotOpenICMP(t *testing.T) {
	c := newCluster(office(), []*types.Policy{onePolicy(types.Rule{Direction: types.Egress, Verdict: types.Allow, Ports: []types.Port{{Proto: wtypes.ProtoTCP, Port: 80}}})}, types.ModeDefault)
	require.Equal(t, types.Allow, c.verdict(t, types.Egress, "10.0.0.2", wtypes.ProtoTCP, 80))
	require.Equal(t, types.Deny, c.verdict(t, types.Egress, "10.0.0.2", wtypes.ProtoICMP, 0))
	require.Equal(t, types.Deny, c.verdict(t, types.Egress, "fd00::2", wtypes.ProtoICMPv6, 128))
}

func TestG03_WideCIDRDenyBeatsEveryAllow(t *testing.T) {
	deny := types.Rule{Direction: types.Egress, Verdict: types.Deny, Peers: []types.Peer{{CIDR: &types.CIDRPeer{Prefix: prefix("1.1.1.0/24")}}}}
	for name, peer := range map[string]types.Peer{
		"narrower prefix": {CIDR: &types.CIDRPeer{Prefix: prefix("1.1.1.2/32")}},
		"everybody":       {Entity: types.EntityAll},
	} {
		p, q := onePolicy(deny), onePolicy(types.Rule{Direction: types.Egress, Verdict: types.Allow, Peers: []types.Peer{peer}})
		p.IsolatesEgress, q.IsolatesEgress = false, false
		q.Resource.Name, q.Rules[0].Ref.Resource.Name = "another", "another"
		c := newCluster(office(), []*types.Policy{p, q}, types.ModeDefault)
		require.Equal(t, types.Deny, c.verdict(t, types.Egress, "1.1.1.2", wtypes.ProtoTCP, 80), name)
		require.Equal(t, types.Allow, c.verdict(t, types.Egress, "1.1.2.2", wtypes.ProtoTCP, 80), name)
	}
}

func TestB01_BlockMatchesPodsOfNetworkPolicyOnly(t *testing.T) {
	for pods, want := range map[bool]types.Verdict{true: types.Allow, false: types.Deny} {
		c := newCluster(office(), []*types.Policy{onePolicy(types.Rule{Direction: types.Egress, Verdict: types.Allow, Ports: []types.Port{{Proto: wtypes.ProtoTCP, Port: 80}},
			Peers: []types.Peer{{CIDR: &types.CIDRPeer{Prefix: prefix("10.0.0.2/32"), Pods: pods}}}})}, types.ModeDefault)
		require.Equal(t, want, c.verdict(t, types.Egress, "10.0.0.2", wtypes.ProtoTCP, 80))
		require.Equal(t, types.Deny, c.verdict(t, types.Egress, "10.0.0.3", wtypes.ProtoTCP, 80))
	}
}

func TestB15_NilAndEmptyPeersDiffer(t *testing.T) {
	for name, at := range map[string]struct {
		peers []types.Peer
		want  types.Verdict
	}{"nil: anybody": {nil, types.Allow}, "empty: nobody": {[]types.Peer{}, types.Deny}} {
		c := newCluster(office(), []*types.Policy{onePolicy(types.Rule{Direction: types.Ingress, Verdict: types.Allow, Peers: at.peers, Ports: []types.Port{{Proto: wtypes.ProtoTCP, Port: 80}}})}, types.ModeDefault)
		require.Equal(t, at.want, c.verdict(t, types.Ingress, "10.0.0.2", wtypes.ProtoTCP, 80), name)
	}
}

// B41: the wildcard is one line, whatever the number of identities.
func TestB41_WildcardIsOneLineNotOnePerIdentity(t *testing.T) {
	web := inNamespace("x")
	rules := []types.Rule{
		{Direction: types.Ingress, Verdict: types.Allow, Peers: []types.Peer{{Labels: &web}, {Labels: &labels.Selector{}}}},
		{Direction: types.Ingress, Verdict: types.Allow, Peers: []types.Peer{{Labels: &web}}, Ports: []types.Port{{Proto: wtypes.ProtoTCP, Port: 80}}},
	}
	c := newCluster(office(), []*types.Policy{onePolicy(rules...)}, types.ModeDefault)
	ms, err := c.resolve(c.world.Pods[0]).MapState(c.index)
	require.NoError(t, err)
	require.Len(t, ms, 2, "%v", ms)
	require.Equal(t, types.RuleID(1), ms[types.Key{Direction: types.Ingress}].Rule)
}

func TestRulesThatNoDialectWritesAreRefusedByName(t *testing.T) {
	s := inNamespace("x")
	for _, p := range []types.Peer{{}, {Entity: "cluster"}, {Entity: types.EntityAll, Labels: &s}} {
		c := newCluster(office(), []*types.Policy{onePolicy(types.Rule{Verdict: types.Allow, Peers: []types.Peer{p}})}, types.ModeDefault)
		_, err := c.resolve(c.world.Pods[0]).MapState(c.index)
		require.ErrorContains(t, err, "NetworkPolicy x/one ingress[0]")
	}
	_, err := (&policy.SelectorPolicy{}).MapState(nil)
	require.Error(t, err)
}
