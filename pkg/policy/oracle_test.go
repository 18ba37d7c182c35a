package policy_test

import (
	"maps"
	"math/rand"
	"net/netip"
	"slices"
	"testing"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/oracle"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
	"pgregory.net/rapid"
)

// compare judges every pair of addresses and every probe both ways.
func compare(t *rapid.T, c *cluster) {
	for _, subject := range c.world.Pods {
		sp := c.resolve(subject)
		ms, err := sp.MapState(c.index)
		if err != nil {
			t.Fatal(err)
		}
		own := subject.Addrs
		for _, peer := range c.addrs() {
			if slices.Contains(own, peer) {
				continue
			}
			id, where := c.locate(peer)
			mine := own[0]
			if peer.Is6() {
				mine = own[1]
			}
			for _, p := range probes {
				in := oracle.Judge(c.world, c.policies, c.mode, oracle.Connection{Src: peer, Dst: mine, Proto: p.proto, Port: p.port}).Ingress
				check(t, c, subject, peer, p, types.Ingress, ms.Decide(types.Ingress, id, where, p.proto, p.port), in)
				out := oracle.Judge(c.world, c.policies, c.mode, oracle.Connection{Src: mine, Dst: peer, Proto: p.proto, Port: p.port}).Egress
				check(t, c, subject, peer, p, types.Egress, ms.Decide(types.Egress, id, where, p.proto, p.port), out)
			}
		}
	}
}

func check(t *rapid.T, c *cluster, subject oracle.Pod, peer netip.Addr, p probe, dir types.Direction, got types.Decision, want oracle.Judgement) {
	if !got.Found || got.Rule == 0 {
		t.Fatalf("%s %s %v %v: no entry decides", subject.Name, dir, peer, p)
	}
	ref := c.rules[got.Rule-1]
	if got.Verdict != want.Verdict || ref.Key() != want.Ref.Key() {
		t.Fatalf("%s %s %v %v: map state says %s by %s (%s), the oracle %s by %s",
			subject.Name, dir, peer, p, got.Verdict, ref, got.Key, want.Verdict, want.Ref)
	}
}

func TestMapStateDecidesAsTheOracleRuleIncluded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		compare(t, newCluster(genWorld(t, false), genPolicies(t), genMode(t)))
	})
}

func TestMapStateDecidesAsTheOracleWhenEveryPodHasItsOwnIdentity(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		compare(t, newCluster(genWorld(t, true), genPolicies(t), genMode(t)))
	})
}

// Until the addresses of pods that differ in named ports have prefix identities
// of their own, an allow may be missing, but nothing denied may pass.
func TestNamedPortsWithoutSinglePrefixesNeverAllowMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(genWorld(t, false), genPolicies(t), genMode(t))
		plain, _ := policy.NewIndex(nil).Apply(policy.Events{})
		prefixes := policy.Prefixes(c.policies, plain)
		gone := identity.IdentityMap{}
		for p := range c.prefixes {
			pods, keep := prefixes[p]
			outside, where := labels.NewLabelArray(labels.CIDRLabel(p), labels.WorldLabel(p.Addr())), labels.NewLabelArray(labels.CIDRLabel(p))
			if !keep {
				gone[c.number(outside)] = outside
			}
			if !pods { // an except of a block without pods may be the address of one
				gone[c.number(where)] = where
			}
		}
		c.index, _ = c.index.Apply(policy.Events{Removed: gone})
		c.prefixes = prefixes
		for _, subject := range c.world.Pods {
			ms, err := c.resolve(subject).MapState(c.index)
			if err != nil {
				t.Fatal(err)
			}
			for _, peer := range c.addrs() {
				id, where := c.locate(peer)
				for _, p := range probes {
					want := oracle.Judge(c.world, c.policies, c.mode, oracle.Connection{Src: subject.Addrs[0], Dst: peer, Proto: p.proto, Port: p.port}).Egress
					got := ms.Decide(types.Egress, id, where, p.proto, p.port)
					if got.Verdict == types.Allow && want.Verdict == types.Deny {
						t.Fatalf("%s to %v %v: allowed by %s, the oracle denies by %s", subject.Name, peer, p, c.rules[got.Rule-1], want.Ref)
					}
				}
			}
		}
	})
}

func TestFoldingEqualsBruteForceOverAllMatches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(genWorld(t, false), genPolicies(t), genMode(t))
		for _, subject := range c.world.Pods {
			sp := c.resolve(subject)
			ms, err := sp.MapState(c.index)
			if err != nil {
				t.Fatal(err)
			}
			for _, peer := range c.addrs() {
				id, where := c.locate(peer)
				for _, p := range probes {
					for _, dir := range []types.Direction{types.Ingress, types.Egress} {
						got := ms.Decide(dir, id, where, p.proto, p.port)
						want := sp.Matching(c.index, dir, id, where, p.proto, p.port)[0]
						if got.Rule != want.Entry.Rule || got.Verdict != want.Entry.Verdict {
							t.Fatalf("%s %s %d/%d %v: folded %s, unfolded %s", subject.Name, dir, id, where, p, c.rules[got.Rule-1], want.Ref)
						}
					}
				}
			}
			for k, e := range ms {
				if wider(ms, k, e) {
					t.Fatalf("line %s can never decide", k)
				}
			}
		}
	})
}

// wider reports whether a line of the same plane that covers k is as strong.
func wider(ms policy.MapState, k types.Key, e types.Entry) bool {
	for o, oe := range ms {
		if o == k || o.Identity != k.Identity || o.Direction != k.Direction || o.Stage != k.Stage || o.Proto != 0 && o.Proto != k.Proto || o.PortBits > k.PortBits {
			continue
		}
		if mask := ^(uint16(uint32(0xFFFF) >> o.PortBits)); k.Port&mask == o.Port && !e.Beats(oe) {
			return true
		}
	}
	return false
}

func TestOrderOfPoliciesAndOfEventsMakesNoDifference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(genWorld(t, false), genPolicies(t), genMode(t))
		seed := rapid.Int64().Draw(t, "shuffle")
		rng := rand.New(rand.NewSource(seed))
		want := states(t, c, c.index)
		rng.Shuffle(len(c.policies), func(i, j int) { c.policies[i], c.policies[j] = c.policies[j], c.policies[i] })

		// The same index from one event at a time, selectors kept from a random moment on,
		// with detours that are taken back.
		x := policy.NewIndex(nil)
		var steps []policy.Events
		for id, a := range c.index.Identities() {
			steps = append(steps, policy.Events{Added: identity.IdentityMap{id: a}})
		}
		for _, p := range c.world.Pods {
			for _, a := range p.Addrs {
				steps = append(steps, policy.Events{Pods: map[netip.Addr]policy.Pod{a: {Identity: c.number(p.Labels), NamedPorts: p.NamedPorts}}})
			}
		}
		for _, p := range c.policies {
			for _, r := range p.Rules {
				steps = append(steps, policy.Events{Select: r.Peers})
			}
		}
		slices.SortFunc(steps, func(a, b policy.Events) int { return eventKey(a) - eventKey(b) })
		rng.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
		detour := addr("10.9.9.9")
		for i, s := range steps {
			x, _ = x.Apply(s)
			if i%3 == 0 {
				x, _ = x.Apply(policy.Events{Added: identity.IdentityMap{77: podLabels("x", "a")}, Pods: map[netip.Addr]policy.Pod{detour: {Identity: 77}}})
				x, _ = x.Apply(policy.Events{Removed: identity.IdentityMap{77: nil}, GonePods: []netip.Addr{detour}})
			}
		}
		got := states(t, c, x)
		for i := range want {
			if !maps.Equal(want[i], got[i]) {
				t.Fatalf("pod %d: map state depends on order:\n%v\n%v", i, want[i], got[i])
			}
		}
	})
}

func eventKey(e policy.Events) int {
	for id := range e.Added {
		return int(id)
	}
	for a := range e.Pods {
		b := a.As16()
		return 1<<20 + int(b[15]) + int(b[0])<<8
	}
	return 1 << 30
}

func states(t *rapid.T, c *cluster, x *policy.Index) []policy.MapState {
	var out []policy.MapState
	for _, p := range c.world.Pods {
		out = append(out, fromScratch(t, c.resolve(p), x))
	}
	return out
}

func TestChangesNameEverySelectorWhoseMatchesMoved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(genWorld(t, false), genPolicies(t), types.ModeDefault)
		var peers []types.Peer
		for _, p := range c.policies {
			for _, r := range p.Rules {
				peers = append(peers, r.Peers...)
			}
		}
		x, _ := c.index.Apply(policy.Events{Select: peers})
		all := c.index.Identities()
		gone := identity.IdentityMap{}
		for _, id := range all.IDs() {
			if rapid.Bool().Draw(t, "gone") {
				gone[id] = all[id]
			}
		}
		added := identity.IdentityMap{4242: podLabels("x", "a")}
		for _, id := range all.IDs() {
			if id >= 1000 && rapid.IntRange(0, 3).Draw(t, "other labels") == 0 {
				added[id] = podLabels("y", "b")
			}
		}
		y, ch := x.Apply(policy.Events{Removed: gone, Added: added})
		fresh := policy.NewIndex(y.Identities())
		for _, p := range peers {
			before, wild := x.Matches(p)
			after, _ := y.Matches(p)
			if scanned, _ := fresh.Matches(p); !slices.Equal(after, scanned) {
				t.Fatalf("%s: kept up to date %v, from scratch %v", policy.PeerKey(p), after, scanned)
			}
			d := ch.Selectors[policy.PeerKey(p)]
			if wild && len(d.Added)+len(d.Removed) > 0 {
				t.Fatalf("a wildcard was enumerated: %v", d)
			}
			for _, id := range d.Removed {
				if !slices.Contains(before, id) || slices.Contains(after, id) {
					t.Fatalf("removed %d was not a match, or still is", id)
				}
			}
			rest := slices.DeleteFunc(slices.Clone(before), func(id identity.NumericIdentity) bool { return slices.Contains(d.Removed, id) })
			rest = append(rest, d.Added...)
			slices.Sort(rest)
			if !slices.Equal(rest, after) {
				t.Fatalf("%s: %v with %v is not %v", policy.PeerKey(p), before, d, after)
			}
		}
	})
}

func TestPortRangesCoverExactlyTheirPorts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.Uint16Range(1, 65535).Draw(t, "first")
		last := rapid.Uint16Range(first, 65535).Draw(t, "last")
		p := &types.Policy{Resource: types.Resource{Kind: "NetworkPolicy", Name: "r"}, IsolatesIngress: true, Rules: []types.Rule{{
			Verdict: types.Allow, Ports: []types.Port{{Proto: wtypes.ProtoTCP, Port: first, End: last}}}}}
		sp := policy.Resolve(policy.Subject{}, []*types.Policy{p}, types.ModeDefault, func(types.RuleRef) types.RuleID { return 1 })
		ms, err := sp.MapState(policy.NewIndex(nil))
		if err != nil {
			t.Fatal(err)
		}
		if len(ms) > 30+2+1 {
			t.Fatalf("%d entries for one range", len(ms))
		}
		ask := func(port uint16) bool {
			return ms.Decide(types.Ingress, 5000, 0, wtypes.ProtoTCP, port).Verdict == types.Allow
		}
		for _, port := range []uint16{0, 1, first - 1, first, first + 1, last - 1, last, last + 1, 65535, rapid.Uint16().Draw(t, "port")} {
			if ask(port) != (port >= first && port <= last) {
				t.Fatalf("%d to %d: port %d is %v", first, last, port, ask(port))
			}
		}
	})
}
