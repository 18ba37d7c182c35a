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
	"github.com/weirnet/weir/pkg/policy/oracle"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
	"pgregory.net/rapid"
)

var http = types.NamedPort{Name: "http", Proto: wtypes.ProtoTCP}

// node is a repository with what surrounds it in an agent: pods, whose endpoints
// build when told to, and prefixes, which get identities. Nothing runs at the
// same time as something else.
type node struct {
	repo      *Repository
	mode      types.Mode
	policies  map[string][]*types.Policy
	pods      map[netip.Addr]oracle.Pod
	held      map[netip.Addr]policy.MapState // of endpoints
	numbers   map[string]identity.NumericIdentity
	ids       identity.IdentityMap // announced
	asked     map[netip.Prefix]bool
	revisions []uint64
}

func newNode(t require.TestingT) *node { return newNodeIn(t, types.ModeDefault) }

func newNodeIn(t require.TestingT, mode types.Mode) *node {
	r, err := New(Config{Mode: mode})
	require.NoError(t, err)
	n := &node{repo: r, mode: mode, policies: map[string][]*types.Policy{}, pods: map[netip.Addr]oracle.Pod{}, held: map[netip.Addr]policy.MapState{},
		numbers: map[string]identity.NumericIdentity{}, ids: identity.IdentityMap{}}
	r.Observe(n)
	r.ObservePrefixes(func(p map[netip.Prefix]bool) { n.asked = p })
	return n
}

// PolicyChanged builds the endpoints that are concerned, and no other.
func (n *node) PolicyChanged(affected func(labels.LabelArray) bool, revision uint64) func(context.Context) {
	n.revisions = append(n.revisions, revision)
	for a, p := range n.pods {
		if n.held[a] != nil && affected(p.Labels) {
			n.build(a)
		}
	}
	return func(context.Context) {}
}

func (n *node) subject(p oracle.Pod) policy.Subject {
	return policy.Subject{Identity: n.number(p.Labels), Labels: p.Labels, NamedPorts: p.NamedPorts, Enforcement: p.Enforcement}
}

// enforce gives an endpoint another mode. Nobody is told.
func (n *node) enforce(a netip.Addr, e types.Enforcement) {
	p := n.pods[a]
	p.Enforcement = e
	n.pods[a] = p
	n.build(a)
}

func (n *node) build(a netip.Addr) {
	answer, err := n.repo.Resolve(n.subject(n.pods[a]))
	if err != nil {
		panic(err)
	}
	n.held[a] = answer.State
}

func (n *node) number(a labels.LabelArray) identity.NumericIdentity {
	id, ok := n.numbers[a.Key()]
	if !ok {
		id = 1000 + identity.NumericIdentity(len(n.numbers))
		n.numbers[a.Key()] = id
	}
	return id
}

// announce makes the repository know exactly the identities in use.
func (n *node) announce(t require.TestingT) {
	want := identity.IdentityMap{}
	for _, p := range n.pods {
		want[n.number(p.Labels)] = p.Labels
	}
	for p, pods := range n.asked {
		sets := []labels.LabelArray{labels.NewLabelArray(labels.CIDRLabel(p), labels.WorldLabel(p.Addr()))}
		if pods {
			sets = append(sets, labels.NewLabelArray(labels.CIDRLabel(p)))
		}
		for _, a := range sets {
			want[n.number(a)] = a
		}
	}
	added, removed := identity.IdentityMap{}, identity.IdentityMap{}
	for id, a := range want {
		if n.ids[id] == nil {
			added[id] = a
		}
	}
	for id, a := range n.ids {
		if want[id] == nil {
			removed[id] = a
		}
	}
	n.ids = want
	require.NoError(t, n.repo.UpdateIdentities(context.Background(), added, nil))
	require.NoError(t, n.repo.UpdateIdentities(context.Background(), nil, removed))
}

// addPod is what happens from an ADD to the end of the first build.
func (n *node) addPod(t require.TestingT, p oracle.Pod) {
	a := p.Addrs[0]
	n.pods[a] = p
	n.announce(t)
	n.repo.UpdatePods(map[netip.Addr]policy.Pod{a: {Identity: n.number(p.Labels), NamedPorts: p.NamedPorts}}, nil)
	n.build(a)
	n.announce(t)
}

func (n *node) deletePod(t require.TestingT, a netip.Addr) {
	delete(n.held, a)
	delete(n.pods, a)
	n.repo.UpdatePods(nil, []netip.Addr{a})
	n.announce(t)
}

func (n *node) put(t require.TestingT, resource string, ps []*types.Policy) {
	if n.policies[resource] = ps; len(ps) == 0 {
		delete(n.policies, resource)
	}
	_, err := n.repo.ReplaceByResource(resource, ps)
	require.NoError(t, err)
	n.announce(t)
}

// check compares what every endpoint holds with a computation from scratch.
func (n *node) check(t require.TestingT) {
	ids := identity.ReservedIdentities()
	maps.Copy(ids, n.ids)
	pods := map[netip.Addr]policy.Pod{}
	for a, p := range n.pods {
		pods[a] = policy.Pod{Identity: n.number(p.Labels), NamedPorts: p.NamedPorts}
	}
	index, _ := policy.NewIndex(ids).Apply(policy.Events{Pods: pods})
	list := slices.Concat(slices.Collect(maps.Values(n.policies))...)
	require.True(t, maps.Equal(policy.Prefixes(list, index), n.asked), "prefixes: %v", n.asked)
	for a, p := range n.pods {
		want, err := policy.Resolve(n.subject(p), list, n.mode, n.repo.rules.number).MapState(index)
		require.NoError(t, err)
		require.True(t, maps.Equal(want, n.held[a]), "%v holds\n%v, from scratch it is\n%v", a, n.held[a], want)
	}
	for i, revision := range n.revisions {
		require.EqualValues(t, i+2, revision, "each revision is told once, in order")
	}
	require.LessOrEqual(t, len(n.repo.needs), 4*len(n.pods), "one for each mode that pods of the labels had")
}

// judge compares every endpoint's decisions with the oracle's.
func (n *node) judge(t require.TestingT) {
	w := &oracle.World{Pods: slices.Collect(maps.Values(n.pods))}
	list := slices.Concat(slices.Collect(maps.Values(n.policies))...)
	for a, p := range n.pods {
		// A node all of which is in the endpoint's mode says the same.
		alike, mode := &oracle.World{}, n.mode
		if own, has := p.Enforcement.Own(); has {
			mode = own
		}
		for _, q := range w.Pods {
			q.Enforcement = types.EnforcementNode
			alike.Pods = append(alike.Pods, q)
		}
		for _, peer := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "203.0.113.9"} {
			peer := netip.MustParseAddr(peer)
			if peer == a {
				continue
			}
			for _, port := range []uint16{80, 81, 443} {
				from, to := oracle.Connection{Src: a, Dst: peer, Proto: http.Proto, Port: port}, oracle.Connection{Src: peer, Dst: a, Proto: http.Proto, Port: port}
				out, in := oracle.Judge(w, list, n.mode, from).Egress, oracle.Judge(w, list, n.mode, to).Ingress
				require.Equal(t, oracle.Judge(alike, list, mode, from).Egress.Verdict, out.Verdict)
				require.Equal(t, oracle.Judge(alike, list, mode, to).Ingress.Verdict, in.Verdict)
				for dir, want := range map[types.Direction]oracle.Judgement{types.Egress: out, types.Ingress: in} {
					id, where := n.locate(peer)
					got := n.held[a].Decide(dir, id, where, http.Proto, port)
					ref, known := n.repo.Rule(got.Rule)
					require.True(t, known)
					require.Equal(t, want.Ref.Key(), ref.Key(), "%s of %v with %v:%d", dir, a, peer, port)
					require.Equal(t, want.Verdict, got.Verdict)
				}
			}
		}
	}
}

func (n *node) locate(a netip.Addr) (id, where identity.NumericIdentity) {
	pod, isPod := n.pods[a]
	var best netip.Prefix
	for p, pods := range n.asked {
		if p.Contains(a) && (!isPod || pods) && p.Bits() > best.Bits() {
			best = p
		}
	}
	switch {
	case isPod && !best.IsValid():
		return n.number(pod.Labels), 0
	case isPod:
		return n.number(pod.Labels), n.number(labels.NewLabelArray(labels.CIDRLabel(best)))
	case !best.IsValid():
		return identity.ReservedWorldIPv4, 0
	}
	id = n.number(labels.NewLabelArray(labels.CIDRLabel(best), labels.WorldLabel(a)))
	return id, id
}

func drawPod(t *rapid.T) oracle.Pod {
	p := oracle.Pod{Labels: app(rapid.SampledFrom([]string{"web", "db"}).Draw(t, "app")),
		Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(1, 4).Draw(t, "address"))})}}
	if n := rapid.SampledFrom([]uint16{0, 80, 81}).Draw(t, "http"); n != 0 {
		p.NamedPorts = types.NamedPorts{http: n}
	}
	p.Enforcement = drawEnforcement(t)
	return p
}

func drawEnforcement(t *rapid.T) types.Enforcement {
	return rapid.SampledFrom([]types.Enforcement{types.EnforcementNode, types.EnforcementNode, types.EnforcementOf(types.ModeDefault),
		types.EnforcementOf(types.ModeAlways), types.EnforcementOf(types.ModeNever)}).Draw(t, "enforcement")
}

func drawPolicies(t *rapid.T, name string) []*types.Policy {
	var out []*types.Policy
	for range rapid.IntRange(0, 2).Draw(t, "policies") {
		p := &types.Policy{Resource: types.Resource{Kind: "NetworkPolicy", Namespace: "x", Name: name},
			Subject:         rapid.SampledFrom([]labels.Selector{selects("web"), selects("db"), {}}).Draw(t, "subject"),
			IsolatesIngress: rapid.Bool().Draw(t, "ingress"), IsolatesEgress: rapid.Bool().Draw(t, "egress")}
		for range rapid.IntRange(0, 3).Draw(t, "rules") {
			r := types.Rule{Direction: types.Direction(rapid.IntRange(0, 1).Draw(t, "direction")), Verdict: types.Verdict(rapid.IntRange(0, 1).Draw(t, "verdict"))}
			r.Ref = types.RuleRef{Resource: p.Resource, Section: fmt.Sprintf("specs[%d].%s", len(out), r.Direction), Index: len(p.Rules)}
			web, db := selects("web"), selects("db")
			block := &types.CIDRPeer{Prefix: netip.MustParsePrefix("10.0.0.0/30"), Except: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/32")}, Pods: true}
			r.Peers = rapid.SampledFrom([][]types.Peer{nil, {{Labels: &web}}, {{Labels: &db}}, {{CIDR: block}},
				{{CIDR: &types.CIDRPeer{Prefix: netip.MustParsePrefix("0.0.0.0/0")}}}}).Draw(t, "peers")
			r.Ports = rapid.SampledFrom([][]types.Port{nil, {{Proto: http.Proto, Port: 80}}, {{Proto: http.Proto, Name: http.Name}}}).Draw(t, "ports")
			p.Rules = append(p.Rules, r)
		}
		out = append(out, p)
	}
	return out
}

// Whatever changes, in whatever order: an endpoint that builds only when it is
// told to holds what a computation from scratch gives, and the oracle agrees.
// The same contents brought in another order end the same.
func TestEndpointsThatBuildOnlyWhenToldHoldWhatTheOracleSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mode := rapid.SampledFrom([]types.Mode{types.ModeDefault, types.ModeDefault, types.ModeAlways, types.ModeNever}).Draw(t, "mode")
		n := newNodeIn(t, mode)
		for range rapid.IntRange(1, 12).Draw(t, "changes") {
			switch rapid.IntRange(0, 6).Draw(t, "change") {
			case 0, 1:
				name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "resource")
				n.put(t, name, drawPolicies(t, name))
			case 2, 3:
				p := drawPod(t)
				if _, taken := n.pods[p.Addrs[0]]; taken {
					n.deletePod(t, p.Addrs[0])
				}
				n.addPod(t, p)
			case 4:
				for a := range n.pods {
					n.deletePod(t, a)
					break
				}
			case 5, 6:
				if addrs := slices.SortedFunc(maps.Keys(n.pods), netip.Addr.Compare); len(addrs) > 0 {
					n.enforce(rapid.SampledFrom(addrs).Draw(t, "of"), drawEnforcement(t))
				}
			}
			n.check(t)
		}
		n.judge(t)

		again := newNodeIn(t, mode)
		var steps []func()
		for name, ps := range n.policies {
			steps = append(steps, func() { again.put(t, name, ps) })
		}
		for _, p := range n.pods {
			steps = append(steps, func() { again.addPod(t, p) })
		}
		for _, step := range rapid.Permutation(steps).Draw(t, "order") {
			step()
		}
		again.check(t)
		again.judge(t)
	})
}
