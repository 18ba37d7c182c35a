package explain

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// Two pods of namespace shop, one of ops, and the world outside.
var (
	shopWeb = labels.PodLabels(labels.Pod{Namespace: "shop", Labels: map[string]string{"app": "web"}, NamespaceLabels: map[string]string{"team": "shop"}})
	shopAPI = labels.PodLabels(labels.Pod{Namespace: "shop", Labels: map[string]string{"app": "api"}, NamespaceLabels: map[string]string{"team": "shop"}})
	opsScan = labels.PodLabels(labels.Pod{Namespace: "ops", Labels: map[string]string{"app": "scan", "old": "yes"}, NamespaceLabels: map[string]string{"team": "ops"}})
)

func sel(rs ...labels.Requirement) labels.Selector {
	for i := range rs {
		rs[i].Source = labels.SourceK8s
	}
	return labels.NewSelector(rs...)
}

func in(key string, values ...string) labels.Requirement {
	return labels.Requirement{Key: key, Operator: labels.In, Values: values}
}

func without(key string) labels.Requirement {
	return labels.Requirement{Key: key, Operator: labels.DoesNotExist}
}

func team(name string) labels.Requirement { return in(labels.KeyNamespaceLabels+".team", name) }

// ask judges one of the pods asking shop/api on a port.
func ask(from identity.NumericIdentity, port uint16, policies ...*types.Policy) Explanation {
	ids := identity.IdentityMap{1000: shopWeb, 1001: shopAPI, 1002: opsScan, identity.ReservedWorldIPv4: labels.NewLabelArray(labels.Reserved(labels.NameWorldIPv4))}
	x, _ := policy.NewIndex(ids).Apply(policy.Events{Pods: map[netip.Addr]policy.Pod{netip.MustParseAddr("10.0.0.2"): {Identity: 1001}}})
	peer := func(name string, id identity.NumericIdentity, addr string) Peer {
		p := Peer{Name: name, Identity: id, Addr: netip.MustParseAddr(addr)}
		if id >= 1000 {
			p.Policy = policy.Resolve(policy.Subject{Identity: id, Labels: ids[id]}, policies, types.ModeDefault, unnumbered)
		}
		return p
	}
	name := map[identity.NumericIdentity]string{1000: "shop/web", 1002: "ops/scan", identity.ReservedWorldIPv4: "192.0.2.1"}[from]
	return Explain(x, Question{From: peer(name, from, "10.0.0.1"), To: peer("shop/api", 1001, "10.0.0.2"), Proto: wtypes.ProtoTCP, Port: port, Policies: policies})
}

func apiPolicy(name string, isolates bool, rules ...types.Rule) *types.Policy {
	p := &types.Policy{Resource: types.Resource{Kind: "P", Namespace: "shop", Name: name, File: "f", Line: 1}, Subject: sel(in("app", "api")), IsolatesIngress: isolates}
	for i, r := range rules {
		r.Ref = types.RuleRef{Resource: p.Resource, Section: "ingress", Index: i, Line: 10 + i}
		p.Rules = append(p.Rules, r)
	}
	return p
}

func ingress(v types.Verdict, port uint16, peers ...labels.Selector) types.Rule {
	r := types.Rule{Direction: types.Ingress, Verdict: v}
	for _, s := range peers {
		r.Peers = append(r.Peers, types.Peer{Labels: &s})
	}
	if port != 0 {
		r.Ports = []types.Port{{Proto: wtypes.ProtoTCP, Port: port}}
	}
	return r
}

func TestTheSmallestChangeIsNamed(t *testing.T) {
	const outside = identity.ReservedWorldIPv4
	for what, c := range map[string]struct {
		from     identity.NumericIdentity
		port     uint16
		policies []*types.Policy
		want     []string
	}{
		"a label that a rule asks for": {1002, 80, []*types.Policy{apiPolicy("a", true, ingress(types.Allow, 80, sel(in("app", "web"))))},
			[]string{"allow with label app=web on ops/scan", "allow with ops/scan among the peers of P shop/a ingress[0] (f:10)"}},
		"of two rules the one that lacks less": {1002, 80, []*types.Policy{apiPolicy("a", true,
			ingress(types.Allow, 80, sel(in("app", "web"), in("tier", "front"))), ingress(types.Allow, 80, sel(in("app", "scan"), in("tier", "back"))))},
			[]string{"allow with label tier=back on ops/scan"}},
		"a label of the namespace": {1002, 80, []*types.Policy{apiPolicy("a", true, ingress(types.Allow, 80, sel(team("shop"))))},
			[]string{"allow with label team=shop on namespace ops"}},
		"a label too much": {1002, 80, []*types.Policy{apiPolicy("a", true, ingress(types.Allow, 80, sel(without("old"))))},
			[]string{"allow without label old on ops/scan"}},
		"a port that the rule lacks": {1000, 81, []*types.Policy{apiPolicy("a", true, ingress(types.Allow, 80, sel(in("app", "web"))))},
			[]string{"allow without label app on shop/api", "allow with port 81/TCP in P shop/a ingress[0] (f:10)"}},
		"a namespace is not a label that one could change": {1002, 80, []*types.Policy{apiPolicy("a", true, ingress(types.Allow, 80, sel(in(labels.KeyPodNamespace, "shop"))))},
			[]string{"allow without label app on shop/api", "allow with ops/scan among the peers"}},
		"no rule at all": {1000, 80, []*types.Policy{apiPolicy("a", true)},
			[]string{"allow without label app on shop/api", "allow with a rule in ingress of P shop/a (f:1) for shop/web on 80/TCP"}},
		"a deny that matches": {1000, 80, []*types.Policy{apiPolicy("a", true, ingress(types.Allow, 0), ingress(types.Deny, 0, sel(in("app", "web"))))},
			[]string{"allow without label app on shop/web", "allow without P shop/a ingress[1] (f:11)"}},
		"two policies isolate, so one label of the pod does not help": {outside, 80, []*types.Policy{apiPolicy("a", true),
			{Resource: types.Resource{Kind: "P", Name: "b"}, Subject: sel(team("shop")), IsolatesIngress: true}},
			[]string{"allow with a rule in ingress of P shop/a"}},
		"an allow that would be gone": {1000, 80, []*types.Policy{apiPolicy("a", true, ingress(types.Allow, 80, sel(in("app", "web"))))},
			[]string{"deny without label app on shop/web", "deny without P shop/a ingress[0] (f:10)"}},
		"an allow that another backs is not lost with its rule": {1000, 80, []*types.Policy{apiPolicy("a", true,
			ingress(types.Allow, 80, sel(in("app", "web"))), ingress(types.Allow, 0, sel(in("app", "web", "other"))))},
			[]string{"deny without label app on shop/web"}},
		"a policy that does not select the pod": {1000, 80, []*types.Policy{{Resource: types.Resource{Kind: "P", Name: "b"}, Subject: sel(in("strict", "yes")), IsolatesIngress: true}},
			[]string{"deny with label strict=yes on shop/api", "deny with a policy that isolates shop/api and does not allow this"}},
	} {
		t.Run(what, func(t *testing.T) {
			e := ask(c.from, c.port, c.policies...)
			var got []string
			for _, ch := range e.Ingress.Changes {
				got = append(got, opposite(e.Ingress.Verdict).String()+" "+ch.String())
			}
			for i, want := range c.want {
				if i >= len(got) || !strings.HasPrefix(got[i], want) {
					t.Fatalf("want %q, got %q of\n%s", c.want, got, e)
				}
			}
			if what[:3] == "an " || strings.HasPrefix(what, "two") {
				require.Len(t, got, len(c.want), "%q", got)
			}
			require.Contains(t, e.String(), "    would be "+got[0])
		})
	}
}

// Without its allow a pod is closed only where its own mode isolates it.
func TestAChangeIsTriedInTheModeOfTheEnd(t *testing.T) {
	ids := identity.IdentityMap{1000: shopWeb, 1001: shopAPI}
	allow := apiPolicy("a", false, ingress(types.Allow, 80, sel(in("app", "web"))))
	for mode, changes := range map[types.Mode]int{types.ModeAlways: 2, types.ModeDefault: 0} {
		end := policy.Resolve(policy.Subject{Identity: 1001, Labels: shopAPI, Enforcement: types.EnforcementOf(mode)}, []*types.Policy{allow}, types.ModeDefault, unnumbered)
		e := Explain(policy.NewIndex(ids), Question{From: Peer{Name: "shop/web", Identity: 1000}, To: Peer{Name: "shop/api", Identity: 1001, Policy: end}, Proto: wtypes.ProtoTCP, Port: 80, Policies: []*types.Policy{allow}})
		require.Equal(t, types.Allow, e.Verdict)
		require.Len(t, e.Ingress.Changes, changes, "%v", e.Ingress.Changes)
	}
}

func TestAChangeThatLeavesTheOtherEndDenyingSaysSo(t *testing.T) {
	egress := &types.Policy{Resource: types.Resource{Kind: "P", Name: "out"}, Subject: sel(in("app", "scan")), IsolatesEgress: true}
	e := ask(1002, 80, egress, apiPolicy("a", true, ingress(types.Allow, 80, sel(in("team", "x")))))
	require.Equal(t, types.Deny, e.Verdict)
	require.Equal(t, "with label team=x on ops/scan (the other end denies all the same)", e.Ingress.Changes[0].String())
	require.Equal(t, "without label app on ops/scan (the other end denies all the same)", e.Egress.Changes[0].String())
}

func TestWithoutPoliciesNothingIsLookedFor(t *testing.T) {
	e := ask(1000, 80)
	require.Empty(t, e.Ingress.Changes)
	e = ask(1000, 80, apiPolicy("a", true))
	require.NotEmpty(t, e.Ingress.Changes)
	require.Empty(t, e.Egress.Changes, "the end that allows is not what to change")
}

// A rule that passes is neither the one that decides nor a loser.
func TestAPassIsPrintedAsOne(t *testing.T) {
	rule := func(v types.Verdict, tier types.Tier, priority uint16) types.Rule {
		r := ingress(v, 0)
		r.Tier, r.Priority = tier, priority
		return r
	}
	admin := apiPolicy("admin", false, rule(types.Pass, types.TierAdmin, 1), rule(types.Deny, types.TierAdmin, 2))
	e := ask(1000, 80, admin, apiPolicy("a", true, ingress(types.Allow, 0)))
	require.Equal(t, types.Allow, e.Verdict)
	text := e.String()
	require.Contains(t, text, "ingress of shop/api: allow by P shop/a ingress[0] (f:10)\n")
	require.Contains(t, text, "    passed to the next tier by P shop/admin ingress[0] (f:10)\n")
	require.Contains(t, text, "    lost: deny by P shop/admin ingress[1] (f:11), not asked, since a stronger rule of its tier passed\n")
	require.Equal(t, "passed to the next tier", e.Ingress.Losers[0].Why)
}

func TestNoLabelIsSuggestedThatNobodyCanChange(t *testing.T) {
	for _, key := range []string{labels.KeyNamespaceLabels + ".kubernetes.io/metadata.name", labels.KeyPodNamespace, labels.KeyServiceAccount, labels.KeyCluster} {
		peer := sel(in(key, "other"))
		e := ask(1000, 80, apiPolicy("one", true, types.Rule{Verdict: types.Allow, Peers: []types.Peer{{Labels: &peer}}}))
		require.Equal(t, types.Deny, e.Verdict)
		for _, c := range e.Ingress.Changes {
			require.NotContains(t, c.Text, "label "+strings.TrimPrefix(key, labels.KeyNamespaceLabels+"."))
		}
	}
	peer := sel(team("other"))
	e := ask(1000, 80, apiPolicy("one", true, types.Rule{Verdict: types.Allow, Peers: []types.Peer{{Labels: &peer}}}))
	require.Contains(t, e.Ingress.Changes[0].Text, "label team=other", "which a person can set")
}
