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

func TestB03ExceptOfACatchAllBlockIsDenied(t *testing.T) {
	for family, at := range map[string]struct{ all, except, inside, outside string }{
		"IPv4": {"0.0.0.0/0", "203.0.113.10/32", "203.0.113.10", "203.0.113.200"},
		"IPv6": {"::/0", "2001:db8::10/128", "2001:db8::10", "2001:db8:ffff::7"},
	} {
		for ports, list := range map[string][]types.Port{"without ports": nil, "TCP/80": {{Proto: wtypes.ProtoTCP, Port: 80}}} {
			t.Run(family+" "+ports, func(t *testing.T) {
				block := types.Rule{Direction: types.Egress, Verdict: types.Allow, Ports: list, Peers: []types.Peer{{CIDR: &types.CIDRPeer{
					Prefix: prefix(at.all), Except: []netip.Prefix{prefix(at.except)}, Pods: true}}}}
				c := newCluster(office(), []*types.Policy{onePolicy(block)}, types.ModeDefault)
				require.Equal(t, types.Deny, c.verdict(t, types.Egress, at.inside, wtypes.ProtoTCP, 80))
				require.Equal(t, types.Allow, c.verdict(t, types.Egress, at.outside, wtypes.ProtoTCP, 80))

				again := types.Rule{Direction: types.Egress, Verdict: types.Allow, Ports: list,
					Peers: []types.Peer{{CIDR: &types.CIDRPeer{Prefix: prefix(at.except), Pods: true}}}}
				c = newCluster(office(), []*types.Policy{onePolicy(block, again)}, types.ModeDefault)
				require.Equal(t, types.Allow, c.verdict(t, types.Egress, at.inside, wtypes.ProtoTCP, 80), "rules are a union")
				require.Equal(t, types.Allow, c.verdict(t, types.Egress, at.outside, wtypes.ProtoTCP, 80))
			})
		}
	}
}

func TestB10WideDenyBeatsNarrowAllowInAnyOrder(t *testing.T) {
	deny := types.Rule{Direction: types.Egress, Verdict: types.Deny, Peers: []types.Peer{{CIDR: &types.CIDRPeer{Prefix: prefix("203.0.113.0/24")}}}}
	allow := types.Rule{Direction: types.Egress, Verdict: types.Allow, Peers: []types.Peer{{CIDR: &types.CIDRPeer{Prefix: prefix("203.0.113.10/32")}}},
		Ports: []types.Port{{Proto: wtypes.ProtoTCP, Port: 80}}}
	for _, rules := range [][]types.Rule{{deny, allow}, {allow, deny}} {
		c := newCluster(office(), []*types.Policy{onePolicy(rules...)}, types.ModeDefault)
		require.Equal(t, types.Deny, c.verdict(t, types.Egress, "203.0.113.10", wtypes.ProtoTCP, 80))
	}
}

func TestB16EveryNamespaceIsNotTheWorld(t *testing.T) {
	anyNamespace := labels.NewSelector(labels.Requirement{Source: labels.SourceK8s, Key: labels.KeyPodNamespace, Operator: labels.Exists})
	for _, dir := range []types.Direction{types.Egress, types.Ingress} {
		c := newCluster(office(), []*types.Policy{onePolicy(types.Rule{Direction: dir, Verdict: types.Allow, Peers: []types.Peer{{Labels: &anyNamespace}}})}, types.ModeDefault)
		for _, out := range []string{"203.0.113.10", "2001:db8::10", "10.0.1.2"} {
			require.Equal(t, types.Deny, c.verdict(t, dir, out, wtypes.ProtoTCP, 80), out)
		}
		for _, pod := range []string{"10.0.0.2", "10.0.0.3", "fd00::3"} {
			require.Equal(t, types.Allow, c.verdict(t, dir, pod, wtypes.ProtoTCP, 80), pod)
		}
	}
	c := newCluster(office(), []*types.Policy{onePolicy(types.Rule{Direction: types.Ingress, Verdict: types.Allow, Peers: []types.Peer{{Labels: &anyNamespace}}})}, types.ModeDefault)
	v, kind := c.ask(t, types.Ingress, "10.0.1.1", wtypes.ProtoTCP, 80)
	require.Equal(t, types.Allow, v)
	require.Equal(t, types.KindLocalNode, kind, "by the local-node rule, not by the selector")
}

func TestB22TheLocalNodeReachesItsPodsInFourModes(t *testing.T) {
	noEgress := onePolicy()
	noEgress.IsolatesIngress = false
	for name, at := range map[string]struct {
		policies []*types.Policy
		mode     types.Mode
		remote   types.Verdict
	}{
		"deny all":                  {[]*types.Policy{onePolicy()}, types.ModeDefault, types.Deny},
		"egress deny":               {[]*types.Policy{noEgress}, types.ModeDefault, types.Allow}, // does not isolate ingress (B25)
		"always, no policy":         {nil, types.ModeAlways, types.Deny},
		"always, deny all policies": {[]*types.Policy{onePolicy()}, types.ModeAlways, types.Deny},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(office(), at.policies, at.mode)
			for _, host := range []string{"10.0.1.1", "fd00:1::1"} {
				require.Equal(t, types.Allow, c.verdict(t, types.Ingress, host, wtypes.ProtoTCP, 80), host)
			}
			for _, remote := range []string{"10.0.1.2", "fd00:1::2"} {
				require.Equal(t, at.remote, c.verdict(t, types.Ingress, remote, wtypes.ProtoTCP, 80), remote)
			}
		})
	}
	host := labels.Equals(labels.Reserved(labels.NameHost))
	c := newCluster(office(), []*types.Policy{onePolicy(types.Rule{Direction: types.Ingress, Verdict: types.Deny, Peers: []types.Peer{{Labels: &host}}})}, types.ModeDefault)
	require.Equal(t, types.Deny, c.verdict(t, types.Ingress, "10.0.1.1", wtypes.ProtoTCP, 80), "an explicit deny overrides")
	require.Equal(t, types.Deny, newCluster(office(), []*types.Policy{onePolicy()}, types.ModeDefault).verdict(t, types.Egress, "10.0.1.1", wtypes.ProtoTCP, 80),
		"the way out to the node is not free")
}

func TestB25OneDirectionDoesNotIsolateTheOther(t *testing.T) {
	for _, dir := range []types.Direction{types.Ingress, types.Egress} {
		p := onePolicy()
		p.IsolatesIngress, p.IsolatesEgress = dir == types.Ingress, dir == types.Egress
		c := newCluster(office(), []*types.Policy{p}, types.ModeDefault)
		for _, proto := range []wtypes.Proto{wtypes.ProtoTCP, wtypes.ProtoUDP} {
			require.Equal(t, types.Deny, c.verdict(t, dir, "10.0.0.2", proto, 80))
			v, kind := c.ask(t, 1-dir, "10.0.0.2", proto, 80)
			require.Equal(t, types.Allow, v)
			require.Equal(t, types.KindNotIsolated, kind)
		}
	}
}

func TestB26SCTPRuleOpensItsPortOfSCTPOnly(t *testing.T) {
	c := newCluster(office(), []*types.Policy{onePolicy(types.Rule{Direction: types.Ingress, Verdict: types.Allow, Ports: []types.Port{{Proto: wtypes.ProtoSCTP, Port: 3301}}})}, types.ModeDefault)
	require.Equal(t, types.Deny, c.verdict(t, types.Ingress, "10.0.0.2", wtypes.ProtoTCP, 3301))
	require.Equal(t, types.Allow, c.verdict(t, types.Ingress, "10.0.0.2", wtypes.ProtoSCTP, 3301))
	require.Equal(t, types.Deny, c.verdict(t, types.Ingress, "10.0.0.2", wtypes.ProtoSCTP, 3302))
}

func TestB27PortRuleDoesNotOpenICMP(t *testing.T) {
	c := newCluster(office(), []*types.Policy{onePolicy(types.Rule{Direction: types.Egress, Verdict: types.Allow, Ports: []types.Port{{Proto: wtypes.ProtoTCP, Port: 80}}})}, types.ModeDefault)
	require.Equal(t, types.Allow, c.verdict(t, types.Egress, "10.0.0.2", wtypes.ProtoTCP, 80))
	require.Equal(t, types.Deny, c.verdict(t, types.Egress, "10.0.0.2", wtypes.ProtoICMP, 0))
	require.Equal(t, types.Deny, c.verdict(t, types.Egress, "fd00::2", wtypes.ProtoICMPv6, 128))
}

// A pod that sets the namespace label itself is still of its own namespace, as
// subject and as peer.
func TestG01SmuggledNamespaceLabelSelectsNothingOfTheOtherNamespace(t *testing.T) {
	w := office()
	w.Pods[0].Labels = labels.PodLabels(labels.Pod{Namespace: "x", Cluster: "default", ServiceAccount: "default", Labels: map[string]string{
		"app": "a", labels.KeyPodNamespace: "y", labels.KeyCluster: "elsewhere", labels.KeyServiceAccount: "root"}})
	w.Pods[1].Labels = labels.PodLabels(labels.Pod{Namespace: "x", Cluster: "default", Labels: map[string]string{"app": "b", labels.KeyPodNamespace: "y"}})
	fromY := inNamespace("y")
	of := func(ns string) *types.Policy {
		p := onePolicy(types.Rule{Direction: types.Ingress, Verdict: types.Allow, Peers: []types.Peer{{Labels: &fromY}}})
		p.Resource.Namespace, p.Subject = ns, inNamespace(ns)
		return p
	}
	c := newCluster(w, []*types.Policy{of("y")}, types.ModeDefault)
	_, kind := c.ask(t, types.Ingress, "10.0.0.2", wtypes.ProtoTCP, 80)
	require.Equal(t, types.KindNotIsolated, kind, "the other namespace's policy does not select it")
	c = newCluster(w, []*types.Policy{of("x")}, types.ModeDefault)
	require.Equal(t, types.Deny, c.verdict(t, types.Ingress, "10.0.0.2", wtypes.ProtoTCP, 80), "its own policy does, and the smuggling peer is not of y")
	require.Equal(t, types.Allow, c.verdict(t, types.Ingress, "10.0.0.3", wtypes.ProtoTCP, 80))
	for _, s := range []labels.Selector{
		labels.Equals(labels.New(labels.SourceK8s, labels.KeyCluster, "elsewhere")),
		labels.Equals(labels.New(labels.SourceK8s, labels.KeyServiceAccount, "root"))} {
		ids, _ := c.index.Matches(types.Peer{Labels: &s})
		require.Empty(t, ids, s.String())
	}
}

func TestG03WideCIDRDenyBeatsEveryAllow(t *testing.T) {
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

func TestG04BlockOnlyPeerDoesNotLetTheNamespaceIn(t *testing.T) {
	w := office()
	for i, ns := range []string{"x", "x", "y"} {
		w.Pods[i].Labels = labels.PodLabels(labels.Pod{Namespace: ns, Cluster: "berlin", Labels: map[string]string{"pod": w.Pods[i].Name}})
	}
	c := newCluster(w, []*types.Policy{onePolicy(types.Rule{Direction: types.Ingress, Verdict: types.Allow,
		Peers: []types.Peer{{CIDR: &types.CIDRPeer{Prefix: prefix("203.0.113.0/24"), Pods: true}}}})}, types.ModeDefault)
	require.Equal(t, types.Deny, c.verdict(t, types.Ingress, "10.0.0.2", wtypes.ProtoTCP, 80))
	require.Equal(t, types.Deny, c.verdict(t, types.Ingress, "10.0.0.3", wtypes.ProtoTCP, 80))
	require.Equal(t, types.Allow, c.verdict(t, types.Ingress, "203.0.113.10", wtypes.ProtoTCP, 80))
}

func TestB01BlockMatchesPodsOfNetworkPolicyOnly(t *testing.T) {
	for pods, want := range map[bool]types.Verdict{true: types.Allow, false: types.Deny} {
		c := newCluster(office(), []*types.Policy{onePolicy(types.Rule{Direction: types.Egress, Verdict: types.Allow, Ports: []types.Port{{Proto: wtypes.ProtoTCP, Port: 80}},
			Peers: []types.Peer{{CIDR: &types.CIDRPeer{Prefix: prefix("10.0.0.2/32"), Pods: pods}}}})}, types.ModeDefault)
		require.Equal(t, want, c.verdict(t, types.Egress, "10.0.0.2", wtypes.ProtoTCP, 80))
		require.Equal(t, types.Deny, c.verdict(t, types.Egress, "10.0.0.3", wtypes.ProtoTCP, 80))
	}
}

func TestB15NilAndEmptyPeersDiffer(t *testing.T) {
	for name, at := range map[string]struct {
		peers []types.Peer
		want  types.Verdict
	}{"nil: anybody": {nil, types.Allow}, "empty: nobody": {[]types.Peer{}, types.Deny}} {
		c := newCluster(office(), []*types.Policy{onePolicy(types.Rule{Direction: types.Ingress, Verdict: types.Allow, Peers: at.peers, Ports: []types.Port{{Proto: wtypes.ProtoTCP, Port: 80}}})}, types.ModeDefault)
		require.Equal(t, at.want, c.verdict(t, types.Ingress, "10.0.0.2", wtypes.ProtoTCP, 80), name)
	}
}

// B41: the wildcard is one line, whatever the number of identities.
func TestB41WildcardIsOneLineNotOnePerIdentity(t *testing.T) {
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

func TestDiffLeadsFromOneMapStateToTheOther(t *testing.T) {
	c := newCluster(office(), []*types.Policy{onePolicy(types.Rule{Direction: types.Ingress, Verdict: types.Allow, Ports: []types.Port{{Proto: wtypes.ProtoTCP, Port: 80, End: 90}}})}, types.ModeDefault)
	old, err := c.resolve(c.world.Pods[0]).MapState(c.index)
	require.NoError(t, err)
	c.policies = []*types.Policy{onePolicy(
		types.Rule{Direction: types.Ingress, Verdict: types.Deny, Ports: []types.Port{{Proto: wtypes.ProtoTCP, Port: 80, End: 87}}},
		types.Rule{Direction: types.Ingress, Verdict: types.Allow, Ports: []types.Port{{Proto: wtypes.ProtoUDP}}})}
	now, err := c.resolve(c.world.Pods[0]).MapState(c.index)
	require.NoError(t, err)
	adds, updates, deletes := now.Diff(old)
	require.NotEmpty(t, adds)
	require.NotEmpty(t, updates)
	require.NotEmpty(t, deletes)
	got := policy.MapState{}
	for k, e := range old {
		got[k] = e
	}
	for _, part := range []policy.MapState{adds, updates} {
		for k, e := range part {
			got[k] = e
		}
	}
	for _, k := range deletes {
		delete(got, k)
	}
	require.Equal(t, now, got)
}
