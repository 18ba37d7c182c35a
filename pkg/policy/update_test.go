package policy_test

import (
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
)

// Update gives what a computation from scratch gives, there and back, also where
// more identities are named than have changed.
func TestUpdateIsAComputationFromScratch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(genWorld(t, false), genPolicies(t), genMode(t))
		var peers []types.Peer
		for _, p := range c.policies {
			for _, r := range p.Rules {
				peers = append(peers, r.Peers...)
			}
		}
		before, _ := c.index.Apply(policy.Events{Select: peers})
		gone, changed := identity.IdentityMap{}, map[identity.NumericIdentity]bool{}
		for id, a := range before.Identities() {
			if rapid.Bool().Draw(t, "gone") {
				gone[id] = a
			}
			if rapid.Bool().Draw(t, "named all the same") {
				changed[id] = true
			}
		}
		after, changes := before.Apply(policy.Events{Removed: gone})
		for _, d := range changes.Selectors {
			for _, id := range append(d.Added, d.Removed...) {
				changed[id] = true
			}
		}
		for _, p := range c.world.Pods {
			sp := c.resolve(p)
			if len(sp.NamedPorts()) > 0 && !changes.Empty() {
				continue // see Update
			}
			was, is := fromScratch(t, sp, before), fromScratch(t, sp, after)
			if got := sp.Update(was, after, changed); !maps.Equal(got, is) {
				t.Fatalf("%v became %v, from scratch it is %v", was, got, is)
			}
			if got := sp.Update(is, before, changed); !maps.Equal(got, was) {
				t.Fatalf("%v became %v, from scratch it is %v", is, got, was)
			}
		}
	})
}

func fromScratch(t *rapid.T, sp *policy.SelectorPolicy, x *policy.Index) policy.MapState {
	m, err := sp.MapState(x)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
