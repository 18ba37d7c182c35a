package types

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	wtypes "github.com/weirnet/weir/pkg/types"
	"pgregory.net/rapid"
)

func TestARuleIsPrintedWithItsPlace(t *testing.T) {
	shop := Resource{Kind: "NetworkPolicy", Namespace: "shop", Name: "api", File: "shop/api.yaml", Line: 3}
	wide := Resource{Kind: "CiliumClusterwideNetworkPolicy", Name: "base"}
	for want, r := range map[string]RuleRef{
		"NetworkPolicy shop/api ingress[2] (shop/api.yaml:17)":        {Resource: shop, Section: SectionIngress, Index: 2, Line: 17},
		"NetworkPolicy shop/api egress[0] (shop/api.yaml:3)":          {Resource: shop, Section: SectionEgress}, // the rule's line is not known
		"CiliumClusterwideNetworkPolicy base egressDeny[1]":           {Resource: wide, Section: SectionEgressDeny, Index: 1, Line: 9},
		"CiliumClusterwideNetworkPolicy base specs[1].ingressDeny[0]": {Resource: wide, Section: "specs[1]." + SectionIngressDeny},
		"default deny, because the pod is selected by CiliumClusterwideNetworkPolicy base, NetworkPolicy shop/api (shop/api.yaml:3)": {
			Kind: KindDefaultDeny, Isolated: []Resource{wide, shop}},
		"default allow, because no policy selects the pod in this direction": {Kind: KindNotIsolated},
		"enforcement mode never":                                 {Kind: KindModeNever},
		"enforcement mode always, and no rule allows":            {Kind: KindModeAlways},
		"the local node may always reach its pods":               {Kind: KindLocalNode},
		"the pod has no identity from its labels yet":            {Kind: KindInit},
		"enforcement never of the endpoint":                      {Kind: KindEndpointNever},
		"enforcement always of the endpoint, and no rule allows": {Kind: KindEndpointAlways},
		"rule kind 200": {Kind: 200},
	} {
		require.Equal(t, want, r.String())
	}
}

func TestKeysPrintTheirWildcards(t *testing.T) {
	require.Equal(t, "ingress 1001 TCP/8080/12", Key{Identity: 1001, Proto: wtypes.ProtoTCP, Port: 8080, PortBits: 12}.String())
	require.Equal(t, "egress * UDP/53", Key{Direction: Egress, Proto: wtypes.ProtoUDP, Port: 53, PortBits: 16}.String())
	require.Equal(t, "egress 7 SCTP/*", Key{Identity: 7, Direction: Egress, Proto: wtypes.ProtoSCTP}.String())
}

func drawResource(t *rapid.T) Resource {
	return Resource{
		Kind:      rapid.SampledFrom([]string{"CiliumNetworkPolicy", "NetworkPolicy"}).Draw(t, "kind"),
		Namespace: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "namespace"),
		Name:      rapid.SampledFrom([]string{"n", "n2", "o"}).Draw(t, "name"),
		Line:      rapid.IntRange(0, 2).Draw(t, "line of the object"),
	}
}

func drawRef(t *rapid.T) RuleRef {
	r := RuleRef{Kind: RuleKind(rapid.IntRange(0, 6).Draw(t, "rule kind"))}
	switch r.Kind {
	case KindPolicy:
		r.Resource, r.Line = drawResource(t), rapid.IntRange(0, 2).Draw(t, "line")
		r.Section = rapid.SampledFrom([]string{SectionIngress, SectionEgressDeny, "specs[1].ingress"}).Draw(t, "section")
		r.Index = rapid.IntRange(0, 11).Draw(t, "index")
	case KindDefaultDeny:
		r.Isolated = []Resource{drawResource(t)}
	}
	return r
}

func TestCompareIsAnOrderThatTellsRulesApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rs := rapid.SliceOfN(rapid.Custom(drawRef), 3, 3).Draw(t, "rules")
		a, b, c := rs[0], rs[1], rs[2]
		if a.Compare(b) != -b.Compare(a) {
			t.Fatalf("%v and %v: %d, the other way %d", a, b, a.Compare(b), b.Compare(a))
		}
		if a.Compare(b) <= 0 && b.Compare(c) <= 0 && a.Compare(c) > 0 {
			t.Fatalf("%v, %v, %v: no order", a, b, c)
		}
		if a.Kind == KindPolicy && b.Kind == KindPolicy && (a.Compare(b) == 0) != (a.Key() == b.Key()) {
			t.Fatalf("%v and %v: compare %d, keys %q and %q", a, b, a.Compare(b), a.Key(), b.Key())
		}
		if a.Kind == KindPolicy && b.Kind != KindPolicy && a.Compare(b) >= 0 {
			t.Fatalf("%v does not come after %v", b, a)
		}
	})
}

// The tie between equally strong rules: kind, namespace/name, then place. The
// tenth rule comes after the second.
func TestTheOrderOfTies(t *testing.T) {
	at := func(kind, namespace, name, section string, index int) RuleRef {
		return RuleRef{Resource: Resource{Kind: kind, Namespace: namespace, Name: name}, Section: section, Index: index}
	}
	want := []RuleRef{
		at("CiliumNetworkPolicy", "z", "z", SectionIngress, 0),
		at("NetworkPolicy", "a", "m", SectionEgress, 0),
		at("NetworkPolicy", "a", "m", SectionIngress, 2),
		at("NetworkPolicy", "a", "m", SectionIngress, 10),
		at("NetworkPolicy", "a", "n", SectionEgress, 0),
		at("NetworkPolicy", "b", "a", SectionEgress, 0),
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, RuleRef.Compare)
	require.Equal(t, want, got)
}

// The lower tier is stronger whatever the priority, the lower priority whatever
// the class; below all are the local node and the default.
func TestPrecedencePacksTierPriorityAndClassInThisOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func() (Tier, uint16, uint8) {
			return Tier(rapid.Int8Range(-1, 1).Draw(t, "tier")), rapid.Uint16().Draw(t, "priority"), rapid.Uint8Range(ClassAllow, ClassDeny).Draw(t, "class")
		}
		tier, priority, class := draw()
		tier2, priority2, class2 := draw()
		if rapid.Bool().Draw(t, "same tier") {
			tier2 = tier
		}
		if rapid.Bool().Draw(t, "same priority") {
			priority2 = priority
		}
		stronger := tier < tier2 || tier == tier2 && (priority < priority2 || priority == priority2 && class > class2)
		a, b := MakePrecedence(tier, priority, class), MakePrecedence(tier2, priority2, class2)
		if (a > b) != stronger {
			t.Fatalf("%d/%d/%d has %#x, %d/%d/%d %#x", tier, priority, class, a, tier2, priority2, class2, b)
		}
		if a <= ImplicitPrecedence || ImplicitPrecedence <= DefaultPrecedence {
			t.Fatalf("%#x is not above the local node's %#x, or that not above the default's %#x", a, ImplicitPrecedence, DefaultPrecedence)
		}
	})
	require.Equal(t, Precedence(math.MaxUint32), MakePrecedence(TierAdmin, 0, ClassDeny))
	require.Greater(t, MakePrecedence(TierBaseline, 65535, ClassAllow), ImplicitPrecedence)
}

func TestBeatsAsksPrecedenceThenRank(t *testing.T) {
	deny, allow := MakePrecedence(0, 0, ClassDeny), MakePrecedence(0, 0, ClassAllow)
	require.True(t, Entry{Precedence: deny, Rank: 9}.Beats(Entry{Precedence: allow, Rank: 1}))
	require.True(t, Entry{Precedence: allow, Rank: 1}.Beats(Entry{Precedence: allow, Rank: 2}))
	require.False(t, Entry{Precedence: allow, Rank: 2}.Beats(Entry{Precedence: allow, Rank: 2}), "nothing beats itself")
}

func TestParseEnforcement(t *testing.T) {
	for _, word := range []string{"node", "default", "always", "never"} {
		e, err := ParseEnforcement(strings.ToUpper(word))
		require.NoError(t, err)
		require.Equal(t, word, e.String())
		m, own := e.Own()
		require.Equal(t, word != "node", own)
		if own {
			require.Equal(t, word, m.String())
			require.Equal(t, e, EnforcementOf(m))
		}
		text, err := json.Marshal(e)
		require.NoError(t, err)
		var again Enforcement
		require.NoError(t, json.Unmarshal(text, &again))
		require.Equal(t, e, again)
	}
	require.Zero(t, EnforcementNode, "what was never set follows the node")
	_, err := ParseEnforcement("sometimes")
	require.ErrorContains(t, err, `enforcement "sometimes" of an endpoint is not known; give node, default, always or never`)
}

func TestParseMode(t *testing.T) {
	for m := ModeDefault; m <= ModeNever; m++ {
		got, err := ParseMode(m.String())
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
	got, err := ParseMode("Always")
	require.NoError(t, err)
	require.Equal(t, ModeAlways, got)
	_, err = ParseMode("sometimes")
	require.ErrorContains(t, err, "give default, always or never")
}
