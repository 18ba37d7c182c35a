package repository

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/policy/oracle"
	"github.com/weirnet/weir/pkg/policy/types"
)

// Two pods of one identity, one of which looks at no rule: what the other one
// depends on is not forgotten for it, in whichever order they were built.
func TestAPodOfAnotherModeDoesNotHideWhatItsTwinDependsOn(t *testing.T) {
	for _, neverFirst := range []bool{true, false} {
		n := newNode(t)
		db := selects("db")
		n.put(t, "a", []*types.Policy{{Resource: types.Resource{Kind: "NetworkPolicy", Namespace: "x", Name: "a"}, Subject: selects("web"), IsolatesIngress: true,
			Rules: []types.Rule{{Ref: types.RuleRef{Section: types.SectionIngress}, Verdict: types.Allow, Peers: []types.Peer{{Labels: &db}}}}}})
		held, free := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
		twins := []oracle.Pod{{Labels: app("web"), Addrs: []netip.Addr{held}}, {Labels: app("web"), Addrs: []netip.Addr{free}, Enforcement: types.EnforcementOf(types.ModeNever)}}
		if neverFirst {
			twins[0], twins[1] = twins[1], twins[0]
		}
		for _, p := range twins {
			n.addPod(t, p)
		}
		before, freely := n.held[held], n.held[free]
		require.NotEqual(t, before, freely)
		n.addPod(t, oracle.Pod{Labels: app("db"), Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.3")}})
		require.NotEqual(t, before, n.held[held], "the new identity is in the map of the pod that asks for it")
		require.Equal(t, freely, n.held[free])
		n.check(t)
		n.judge(t)
	}
}

func TestTheDefaultNamesWhoseModeItIs(t *testing.T) {
	for _, c := range []struct {
		node types.Mode
		own  types.Enforcement
		kind types.RuleKind
		says types.Verdict
	}{
		{types.ModeDefault, types.EnforcementNode, types.KindNotIsolated, types.Allow},
		{types.ModeAlways, types.EnforcementNode, types.KindModeAlways, types.Deny},
		{types.ModeNever, types.EnforcementNode, types.KindModeNever, types.Allow},
		{types.ModeAlways, types.EnforcementOf(types.ModeDefault), types.KindNotIsolated, types.Allow},
		{types.ModeAlways, types.EnforcementOf(types.ModeAlways), types.KindEndpointAlways, types.Deny},
		{types.ModeAlways, types.EnforcementOf(types.ModeNever), types.KindEndpointNever, types.Allow},
		{types.ModeNever, types.EnforcementOf(types.ModeAlways), types.KindEndpointAlways, types.Deny},
	} {
		n := newNodeIn(t, c.node)
		n.addPod(t, oracle.Pod{Labels: app("web"), Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Enforcement: c.own})
		for _, dir := range []types.Direction{types.Ingress, types.Egress} {
			got := n.held[netip.MustParseAddr("10.0.0.1")].Decide(dir, 7, 0, http.Proto, 80)
			ref, known := n.repo.Rule(got.Rule)
			require.True(t, known)
			require.Equal(t, types.RuleRef{Kind: c.kind}, ref)
			require.Equal(t, c.says, got.Verdict)
		}
		n.judge(t)
	}
}
