package repository

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/explain"
	"github.com/weirnet/weir/pkg/policy/oracle"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
	"pgregory.net/rapid"
)

// history is a node whose pods live in namespaces with labels that change.
type history struct {
	*node
	teams map[string]string   // label of a namespace
	specs map[netip.Addr]spec // of pods
}

// spec is a pod as its author wrote it.
type spec struct {
	namespace, app string
	http, dns      uint16 // named ports; 0: none
}

var (
	namespaces = []string{"x", "y"}
	dns        = types.NamedPort{Name: "dns", Proto: wtypes.ProtoUDP}
)

func newHistory(t require.TestingT) *history {
	return &history{newNode(t), map[string]string{"x": "red", "y": "red"}, map[netip.Addr]spec{}}
}

func (h *history) pod(a netip.Addr, s spec) oracle.Pod {
	p := oracle.Pod{Addrs: []netip.Addr{a}, NamedPorts: types.NamedPorts{}, Labels: labels.PodLabels(labels.Pod{Namespace: s.namespace, Cluster: "c",
		Labels: map[string]string{"app": s.app}, NamespaceLabels: map[string]string{"team": h.teams[s.namespace]}})}
	if s.http != 0 {
		p.NamedPorts[http] = s.http
	}
	if s.dns != 0 {
		p.NamedPorts[dns] = s.dns
	}
	return p
}

// setPod makes a pod, or gives one other labels and ports.
func (h *history) setPod(t require.TestingT, a netip.Addr, s spec) {
	h.specs[a] = s
	h.addPod(t, h.pod(a, s))
}

func (h *history) unsetPod(t require.TestingT, a netip.Addr) {
	delete(h.specs, a)
	h.deletePod(t, a)
}

// setTeam changes the label of a namespace: all its pods get other identities.
func (h *history) setTeam(t require.TestingT, namespace, team string) {
	h.teams[namespace] = team
	for _, a := range h.addrs() {
		if h.specs[a].namespace == namespace {
			h.setPod(t, a, h.specs[a])
		}
	}
}

func (h *history) addrs() []netip.Addr {
	return slices.SortedFunc(maps.Keys(h.specs), netip.Addr.Compare)
}

// event is something that happens, and what takes it back.
type event struct{ do, undo func(require.TestingT) }

// draw makes up the next event.
func (h *history) draw(t *rapid.T) event {
	switch rapid.IntRange(0, 6).Draw(t, "event") {
	case 0, 1, 2:
		name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "resource")
		old, now := h.policies[name], drawRules(t, name)
		return event{func(t require.TestingT) { h.put(t, name, now) }, func(t require.TestingT) { h.put(t, name, old) }}
	case 3, 4, 5:
		a := netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(1, 4).Draw(t, "address"))})
		old, was := h.specs[a]
		back := func(t require.TestingT) { h.unsetPod(t, a) }
		if was {
			back = func(t require.TestingT) { h.setPod(t, a, old) }
			if rapid.IntRange(0, 2).Draw(t, "goes") == 0 {
				return event{func(t require.TestingT) { h.unsetPod(t, a) }, back}
			}
		}
		s := spec{rapid.SampledFrom(namespaces).Draw(t, "namespace"), rapid.SampledFrom([]string{"web", "db"}).Draw(t, "app"),
			rapid.SampledFrom([]uint16{0, 80, 81}).Draw(t, "http"), rapid.SampledFrom([]uint16{0, 0, 81}).Draw(t, "dns")}
		return event{func(t require.TestingT) { h.setPod(t, a, s) }, back}
	}
	ns, team := rapid.SampledFrom(namespaces).Draw(t, "namespace"), rapid.SampledFrom([]string{"red", "blue"}).Draw(t, "team")
	old := h.teams[ns]
	return event{func(t require.TestingT) { h.setTeam(t, ns, team) }, func(t require.TestingT) { h.setTeam(t, ns, old) }}
}

// heldBy is what the endpoints hold, in words that do not depend on which numbers
// rules have.
func (h *history) heldBy(t require.TestingT) map[netip.Addr]map[types.Key]string {
	out := map[netip.Addr]map[types.Key]string{}
	for a, state := range h.held {
		out[a] = map[types.Key]string{}
		for k, e := range state {
			ref, known := h.repo.Rule(e.Rule)
			require.True(t, known)
			out[a][k] = fmt.Sprintf("%s %d %d %d by %s", e.Verdict, e.Precedence, e.Rank, e.Next, ref.Key())
		}
	}
	return out
}

// again brings what the node holds now to a new node, in another order. Numbers
// of identities are the same.
func (h *history) again(t *rapid.T) *history {
	n := newHistory(t)
	n.numbers = h.numbers
	maps.Copy(n.teams, h.teams)
	var steps []func()
	for _, name := range slices.Sorted(maps.Keys(h.policies)) {
		steps = append(steps, func() { n.put(t, name, h.policies[name]) })
	}
	for _, a := range h.addrs() {
		steps = append(steps, func() { n.setPod(t, a, h.specs[a]) })
	}
	if len(steps) > 0 {
		steps = rapid.Permutation(steps).Draw(t, "order")
	}
	for _, step := range steps {
		step()
	}
	return n
}

// observe asks everything that can be asked; nothing may come of it.
func (h *history) observe(t *rapid.T) {
	revision, ids, pods := h.repo.Revision(), h.repo.Index().Len(), h.repo.Index().PodCount()
	before := h.heldBy(t)
	asked := maps.Clone(h.asked)
	_, list := h.repo.Policies()
	x := h.repo.Index()
	strange := policy.Subject{Identity: 77, Labels: app("nobody"), NamedPorts: types.NamedPorts{http: 9}}
	subjects := []policy.Subject{strange}
	for _, a := range h.addrs() {
		subjects = append(subjects, h.subject(h.pods[a]))
	}
	for _, s := range subjects {
		answer, err := h.repo.Resolve(s)
		require.NoError(t, err)
		answer.Policy.UnresolvedPorts(x)
		for p := range answer.Policy.Peers() {
			x.Matches(p)
		}
		for _, to := range []string{"10.0.0.1", "203.0.113.9"} {
			id, where := h.locate(netip.MustParseAddr(to))
			answer.Policy.Matching(x, types.Egress, id, where, http.Proto, 80)
			answer.State.Decide(types.Ingress, id, where, http.Proto, 80)
			explain.Explain(x, explain.Question{From: explain.Peer{Identity: s.Identity, Policy: answer.Policy, Addr: netip.MustParseAddr("10.0.0.9")},
				To: explain.Peer{Identity: id, PrefixIdentity: where, Addr: netip.MustParseAddr(to)}, Proto: http.Proto, Port: 80, Policies: list})
		}
	}
	policy.Prefixes(list, x)
	x.Identities()
	require.Equal(t, revision, h.repo.Revision(), "to ask is no change")
	require.Equal(t, []int{ids, pods}, []int{h.repo.Index().Len(), h.repo.Index().PodCount()})
	require.Equal(t, before, h.heldBy(t))
	require.Equal(t, asked, h.asked)
	require.NoError(t, h.repo.UpdateIdentities(context.Background(), nil, identity.IdentityMap{77: strange.Labels})) // as an endpoint does that goes
}

func drawRules(t *rapid.T, name string) []*types.Policy {
	var out []*types.Policy
	for range rapid.IntRange(0, 2).Draw(t, "policies") {
		p := &types.Policy{Resource: types.Resource{Kind: "NetworkPolicy", Namespace: "x", Name: name}, Subject: drawSelector(t, "subject"),
			IsolatesIngress: rapid.Bool().Draw(t, "ingress"), IsolatesEgress: rapid.Bool().Draw(t, "egress")}
		for range rapid.IntRange(0, 3).Draw(t, "rules") {
			r := types.Rule{Direction: types.Direction(rapid.IntRange(0, 1).Draw(t, "direction")), Verdict: types.Verdict(rapid.IntRange(0, 1).Draw(t, "verdict")),
				Tier: types.Tier(rapid.SampledFrom([]int{0, 0, -1, 1}).Draw(t, "tier")), Priority: uint16(rapid.SampledFrom([]int{0, 7}).Draw(t, "priority"))}
			if r.Tier.Ordered() && rapid.IntRange(0, 2).Draw(t, "pass") == 0 {
				r.Verdict = types.Pass
			}
			r.Ref = types.RuleRef{Resource: p.Resource, Section: fmt.Sprintf("specs[%d].%s", len(out), r.Direction), Index: len(p.Rules)}
			for range rapid.IntRange(0, 2).Draw(t, "peers") { // none: anybody
				r.Peers = append(r.Peers, drawPeer(t))
			}
			r.Ports = rapid.SampledFrom([][]types.Port{nil, {{Proto: http.Proto, Port: 80}}, {{Proto: http.Proto, Port: 80, End: 443}}, {{Proto: http.Proto, Name: http.Name}},
				{{Proto: dns.Proto, Name: dns.Name}, {Proto: http.Proto, Name: http.Name}}}).Draw(t, "ports")
			p.Rules = append(p.Rules, r)
		}
		out = append(out, p)
	}
	return out
}

func drawSelector(t *rapid.T, label string) labels.Selector {
	team := labels.KeyNamespaceLabels + ".team"
	return labels.NewSelector(rapid.SampledFrom([][]labels.Requirement{
		nil,
		{{Key: labels.KeyPodNamespace, Values: []string{"x"}}},
		{{Key: labels.KeyPodNamespace, Values: []string{"x", "y"}}, {Key: "app", Values: []string{"web"}}},
		{{Source: labels.SourceK8s, Key: team, Values: []string{"red"}}},
		{{Key: team, Operator: labels.NotIn, Values: []string{"red"}}},
		{{Key: "app", Operator: labels.NotIn, Values: []string{"web"}}, {Key: labels.KeyPodNamespace, Operator: labels.Exists}},
		{{Key: "app", Operator: labels.DoesNotExist}},
	}).Draw(t, label)...)
}

func drawPeer(t *rapid.T) types.Peer {
	if rapid.Bool().Draw(t, "by labels") {
		s := drawSelector(t, "peer")
		return types.Peer{Labels: &s}
	}
	c := &types.CIDRPeer{Prefix: netip.MustParsePrefix(rapid.SampledFrom([]string{"10.0.0.0/30", "0.0.0.0/0", "203.0.113.0/24", "10.0.0.2/32"}).Draw(t, "block")),
		Pods: rapid.Bool().Draw(t, "pods")}
	if c.Prefix.Bits() < 31 && rapid.Bool().Draw(t, "except") {
		c.Except = []netip.Prefix{netip.PrefixFrom(c.Prefix.Addr(), 31)}
	}
	return types.Peer{CIDR: c}
}

// rounds of random histories, each of as many as -rapid.checks says (100). The
// default run has 1,000 of them; -rapid.checks=1000 makes 10,000.
const rounds = 10

// Whatever happens in whatever order: an endpoint that builds only when it is
// told to holds what a computation from scratch gives, and what a repository
// gives that was told the same in another order. What is done and taken back
// leaves the maps as they were, also when somebody asked in between.
func TestHistoriesLeaveNothingBehind(t *testing.T) {
	for round := range rounds {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			rapid.Check(t, lives)
		})
	}
}

func lives(t *rapid.T) {
	h := newHistory(t)
	for range rapid.IntRange(1, 10).Draw(t, "events") {
		h.draw(t).do(t)
		h.check(t)
		if rapid.IntRange(0, 3).Draw(t, "observed") == 0 {
			h.observe(t)
		}
	}
	h.judge(t)
	before, asked, selectors := h.heldBy(t), maps.Clone(h.asked), h.repo.Index()
	require.Equal(t, before, h.again(t).heldBy(t), "the order of events shows")

	var undo []func(require.TestingT)
	for range rapid.IntRange(1, 3).Draw(t, "detour") {
		e := h.draw(t)
		e.do(t)
		undo = append(undo, e.undo)
		if rapid.Bool().Draw(t, "observed on the way") {
			h.observe(t)
		}
	}
	for _, back := range slices.Backward(undo) {
		back(t)
	}
	h.check(t)
	require.Equal(t, before, h.heldBy(t), "what was taken back shows")
	require.Equal(t, asked, h.asked)
	require.Equal(t, selectors.Identities(), h.repo.Index().Identities())
}

// FuzzHistories lets the fuzzer choose what happens.
func FuzzHistories(f *testing.F) {
	f.Add([]byte{})
	f.Fuzz(rapid.MakeFuzz(lives))
}
