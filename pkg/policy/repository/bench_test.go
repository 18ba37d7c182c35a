package repository

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
)

// start is a repository of 3,000 policies of one rule each and 1,000 identities.
func start(b *testing.B) *Repository {
	r, err := New(Config{StateDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	r.ObservePrefixes(func(map[netip.Prefix]bool) {})
	for i := range 3000 {
		if _, err := r.ReplaceByResource(fmt.Sprint(i), []*types.Policy{allowFrom(fmt.Sprintf("n%04d", i), "web", fmt.Sprint(i%1000), uint16(i+1))}); err != nil {
			b.Fatal(err)
		}
	}
	ids := identity.IdentityMap{5000: app("web")}
	for i := range 1000 {
		ids[identity.NumericIdentity(1000+i)] = app(fmt.Sprint(i))
	}
	if err := r.UpdateIdentities(b.Context(), ids, nil); err != nil {
		b.Fatal(err)
	}
	return r
}

func BenchmarkStartWith3000Policies(b *testing.B) {
	for b.Loop() {
		if _, err := start(b).Resolve(policy.Subject{Identity: 5000, Labels: app("web")}); err != nil {
			b.Fatal(err)
		}
	}
}

// One policy of 3,000 changes, and an endpoint that they all select builds.
func BenchmarkChangeOnePolicyOf3000(b *testing.B) {
	r := start(b)
	n := 0
	for b.Loop() {
		n++
		if _, err := r.ReplaceByResource("7", []*types.Policy{allowFrom("n0007", "web", "7", uint16(4000+n%100))}); err != nil {
			b.Fatal(err)
		}
		if _, err := r.Resolve(policy.Subject{Identity: 5000, Labels: app("web")}); err != nil {
			b.Fatal(err)
		}
	}
}

// One identity comes and goes, and an endpoint of which a rule is about it builds
// each time.
func BenchmarkAddOneIdentityUnder3000Policies(b *testing.B) {
	r := start(b)
	build := func() {
		if _, err := r.Resolve(policy.Subject{Identity: 5000, Labels: app("web")}); err != nil {
			b.Fatal(err)
		}
	}
	build()
	ids := identity.IdentityMap{9000: app("7")}
	for b.Loop() {
		if err := r.UpdateIdentities(b.Context(), ids, nil); err != nil {
			b.Fatal(err)
		}
		build()
		if err := r.UpdateIdentities(b.Context(), nil, ids); err != nil {
			b.Fatal(err)
		}
		build()
	}
}
