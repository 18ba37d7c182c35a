package explain

import (
	"strings"
	"testing"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

func app(name string) labels.LabelArray {
	return labels.NewLabelArray(labels.Label{Source: labels.SourceK8s, Key: "app", Value: name})
}

func selects(name string) labels.Selector {
	return labels.NewSelector(labels.Requirement{Source: labels.SourceK8s, Key: "app", Operator: labels.In, Values: []string{name}})
}

func rule(res types.Resource, section string, index int, v types.Verdict, peer string, port uint16) types.Rule {
	s := selects(peer)
	return types.Rule{
		Ref: types.RuleRef{Resource: res, Section: section, Index: index, Line: 10 + index}, Direction: types.Ingress, Verdict: v,
		Peers: []types.Peer{{Labels: &s}}, Ports: []types.Port{{Proto: wtypes.ProtoTCP, Port: port}},
	}
}

func TestAnExplanationNamesWhatDecidedAndWhatLost(t *testing.T) {
	res := types.Resource{Kind: "NetworkPolicy", Namespace: "shop", Name: "api", File: "api.yaml", Line: 3}
	p := &types.Policy{Resource: res, Subject: selects("api"), IsolatesIngress: true, Rules: []types.Rule{
		rule(res, types.SectionIngress, 0, types.Allow, "web", 80), rule(res, types.SectionIngressDeny, 1, types.Deny, "web", 80),
		rule(res, types.SectionIngress, 2, types.Allow, "web", 443),
	}}
	index := policy.NewIndex(identity.IdentityMap{1000: app("web"), 1001: app("api")})
	n := types.RuleID(0)
	number := func(types.RuleRef) types.RuleID { n++; return n }
	web := policy.Resolve(policy.Subject{Identity: 1000, Labels: app("web")}, []*types.Policy{p}, types.ModeDefault, number)
	api := policy.Resolve(policy.Subject{Identity: 1001, Labels: app("api")}, []*types.Policy{p}, types.ModeDefault, number)
	audit := false
	ask := func(port uint16) Explanation {
		return Explain(index, Question{From: Peer{Name: "shop/web", Identity: 1000, Policy: web, Audit: audit}, To: Peer{Name: "shop/api", Identity: 1001, Policy: api, Audit: audit}, Proto: wtypes.ProtoTCP, Port: port})
	}
	e := ask(80)
	if e.Verdict != types.Deny || e.Egress.Verdict != types.Allow || e.Ingress.Rule.Ref.Section != types.SectionIngressDeny || len(e.Ingress.Losers) != 1 {
		t.Fatalf("%+v", e)
	}
	text := e.String()
	for _, want := range []string{
		"shop/web -> shop/api 80/TCP: deny", "egress of shop/web: allow by default allow, because no policy selects the pod",
		"ingress of shop/api: deny by NetworkPolicy shop/api ingressDeny[1] (api.yaml:11)",
		"lost: allow by NetworkPolicy shop/api ingress[0] (api.yaml:10), since a deny beats an allow",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if e := ask(443); e.Verdict != types.Allow {
		t.Errorf("allowed port: %s", e)
	}
	through := "    let through all the same: shop/api is in audit mode\n"
	if strings.Contains(text, "let through") {
		t.Errorf("no end audits: %s", text)
	}
	audit = true
	if e := ask(80); e.Verdict != types.Deny || !strings.Contains(e.String(), "ingressDeny[1] (api.yaml:11)\n"+through) || strings.Count(e.String(), "audit mode") != 1 {
		t.Errorf("both ends audit and one denies: %s", e)
	}
	if e := ask(443); strings.Contains(e.String(), "audit mode") {
		t.Errorf("nothing is denied: %s", e)
	}
	audit = false
	e = ask(22)
	if e.Verdict != types.Deny || !strings.Contains(e.String(), "default deny, because the pod is selected by NetworkPolicy shop/api (api.yaml:3)") {
		t.Errorf("default deny: %s", e)
	}
	strict := policy.Resolve(policy.Subject{Identity: 1001, Labels: app("api"), Enforcement: types.EnforcementOf(types.ModeAlways)}, nil, types.ModeDefault, number)
	free := policy.Resolve(policy.Subject{Identity: 1000, Labels: app("web"), Enforcement: types.EnforcementOf(types.ModeNever)}, nil, types.ModeDefault, number)
	e = Explain(index, Question{From: Peer{Name: "shop/web", Identity: 1000, Policy: free}, To: Peer{Name: "shop/api", Identity: 1001, Policy: strict}, Proto: wtypes.ProtoTCP, Port: 80, Policies: []*types.Policy{p}})
	for _, want := range []string{"egress of shop/web: allow by enforcement never of the endpoint\n", "ingress of shop/api: deny by enforcement always of the endpoint, and no rule allows\n"} {
		if !strings.Contains(e.String(), want) {
			t.Errorf("%q is not in\n%s", want, e)
		}
	}
	e = Explain(index, Question{From: Peer{Name: "203.0.113.7", Identity: identity.ReservedWorldIPv4}, To: Peer{Name: "shop/web", Identity: 1000, Policy: web}, Proto: wtypes.ProtoICMP, Port: 8})
	if e.Verdict != types.Allow || !strings.Contains(e.String(), "egress of 203.0.113.7: not judged") {
		t.Errorf("from outside: %s", e)
	}
}

// What the kernel denies without asking a policy is told as that, and no rule is
// said to change it.
func TestAClosedEndIsDeniedWhateverThePolicySays(t *testing.T) {
	index := policy.NewIndex(identity.IdentityMap{1000: app("web")})
	web := policy.Resolve(policy.Subject{Identity: 1000, Labels: app("web")}, nil, types.ModeDefault, func(types.RuleRef) types.RuleID { return 1 })
	pod := Peer{Name: "shop/web", Identity: 1000, Policy: web, Audit: true}
	for _, out := range []Peer{
		{Name: "203.0.113.9", Identity: identity.ReservedClosed, PrefixIdentity: identity.ReservedClosed},
		{Name: "203.0.113.9", Identity: identity.ReservedClosed}, {Name: "203.0.113.9", Identity: 1001, PrefixIdentity: identity.ReservedClosed},
	} {
		for _, q := range []Question{{From: pod, To: out}, {From: out, To: pod}} {
			q.Proto, q.Port = wtypes.ProtoTCP, 80
			e := Explain(index, q)
			text := e.String()
			if e.Verdict != types.Deny || !strings.Contains(text, "gress of shop/web: deny by the other end's prefix, which has no room") {
				t.Errorf("%+v: %s", out, text)
			}
			if strings.Contains(text, "audit") || strings.Contains(text, "would be") {
				t.Errorf("%+v: %s", out, text)
			}
		}
	}
}
