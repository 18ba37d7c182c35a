package policy_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
	"pgregory.net/rapid"
)

// What denies goes in first, also where what allows is of a stronger tier; where it
// has no room, nothing goes in.
func TestB41_WhatDeniesGoesInFirst(t *testing.T) {
	ms := policy.MapState{{}: {Verdict: types.Allow, Precedence: types.DefaultPrecedence}}
	for i := range identity.NumericIdentity(20) {
		ms[types.Key{Identity: 1000 + i}] = types.Entry{Verdict: types.Allow, Precedence: types.MakePrecedence(types.TierAdmin, 1, types.ClassOrdered)}
	}
	deny := types.Entry{Verdict: types.Deny, Precedence: types.MakePrecedence(types.TierNormal, 0, types.ClassDeny)}
	for i := range identity.NumericIdentity(5) {
		ms[types.Key{Identity: 2000 + i}] = deny
	}
	fits, left := ms.Fit(10)
	require.Len(t, fits, 10)
	require.Equal(t, len(ms)-10, left)
	for i := range identity.NumericIdentity(5) {
		require.Equal(t, deny, fits[types.Key{Identity: 2000 + i}])
	}
	require.Contains(t, fits, types.Key{}, "the default")
	fits, _ = ms.Fit(5)
	require.Nil(t, fits)
}

func TestAMapStateThatIsCutToFitNeverAllowsMore(t *testing.T) {
	cut, whole := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(genWorld(t, false), genPolicies(t), genMode(t))
		for _, subject := range c.world.Pods {
			ms, err := c.resolve(subject).MapState(c.index)
			if err != nil {
				t.Fatal(err)
			}
			limit := rapid.IntRange(0, len(ms)+1).Draw(t, "limit")
			fits, left := ms.Fit(limit)
			switch {
			case len(fits) > limit || fits != nil && len(fits)+left != len(ms):
				t.Fatalf("%d of %d lines fit into %d, %d are left out", len(fits), len(ms), limit, left)
			case left > 0 && fits != nil && len(fits) != limit:
				t.Fatalf("there is room for %d lines and %d are put in", limit, len(fits))
			case fits != nil && left > 0:
				cut++
			default:
				whole++
			}
			for _, peer := range c.addrs() {
				id, where := c.locate(peer)
				for _, p := range probes {
					for _, dir := range []types.Direction{types.Ingress, types.Egress} {
						got, want := fits.Decide(dir, id, where, p.proto, p.port), ms.Decide(dir, id, where, p.proto, p.port)
						if got.Verdict == types.Allow && want.Verdict != types.Allow {
							t.Fatalf("%s %s %v %v: cut to %d of %d lines allows by %s what %s denies", subject.Name, dir, peer, p, limit, len(ms), got.Key, want.Key)
						}
					}
				}
			}
		}
	})
	if cut == 0 || whole == 0 {
		t.Errorf("%d map states were cut, %d not: the test shows nothing", cut, whole)
	}
}
