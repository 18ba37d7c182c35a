package repository

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// told records what an updater hears.
type told struct {
	revisions []uint64
	affected  []func(labels.LabelArray) bool
	waited    int
}

func (u *told) PolicyChanged(affected func(labels.LabelArray) bool, revision uint64) func(context.Context) {
	u.revisions, u.affected = append(u.revisions, revision), append(u.affected, affected)
	return func(context.Context) { u.waited++ }
}

func replace(t *testing.T, r *Repository, p *types.Policy) uint64 {
	t.Helper()
	revision, err := r.ReplaceByResource(p.Resource.ID(), []*types.Policy{p})
	require.NoError(t, err)
	return revision
}

func resolve(t *testing.T, r *Repository, name string, id identity.NumericIdentity) Resolved {
	t.Helper()
	answer, err := r.Resolve(policy.Subject{Identity: id, Labels: app(name)})
	require.NoError(t, err)
	return answer
}

func TestAPolicyConcernsThoseItSelectsAndThoseItSelectedBefore(t *testing.T) {
	r, u := newRepository(t, ""), &told{}
	r.Observe(u)
	require.EqualValues(t, 1, r.Revision())
	replace(t, r, allowFrom("n", "web", "client", 80))
	require.True(t, u.affected[0](app("web")))
	require.False(t, u.affected[0](app("db")))
	replace(t, r, allowFrom("n", "db", "client", 80))
	require.True(t, u.affected[1](app("web")), "it is not isolated any more")
	require.True(t, u.affected[1](app("db")))
	revision, err := r.DeleteByResource("NetworkPolicy/x/n")
	require.NoError(t, err)
	require.EqualValues(t, 4, revision)
	require.Equal(t, []uint64{2, 3, 4}, u.revisions)
	revision, err = r.DeleteByResource("NetworkPolicy/x/n")
	require.NoError(t, err)
	require.EqualValues(t, 4, revision, "nothing was there")
	require.Zero(t, u.waited, "policies do not wait for the kernel")
	_, err = r.ReplaceByResource("", nil)
	require.Error(t, err)
	_, list := r.Policies()
	require.Empty(t, list)
}

func TestG17RevokingTheOnlyAllowIsToldWithoutAnyOtherEvent(t *testing.T) {
	r, u := newRepository(t, ""), &told{}
	require.NoError(t, r.UpdateIdentities(t.Context(), identity.IdentityMap{2000: app("client")}, nil))
	replace(t, r, onlyIsolates("base"))
	replace(t, r, allowFrom("grant", "web", "client", 80))
	ask := func() types.Verdict {
		return resolve(t, r, "web", 1000).State.Decide(types.Ingress, 2000, 0, wtypes.ProtoTCP, 80).Verdict
	}
	require.Equal(t, types.Allow, ask())
	r.Observe(u)
	_, err := r.DeleteByResource("NetworkPolicy/x/grant")
	require.NoError(t, err)
	require.True(t, u.affected[0](app("web")))
	require.Equal(t, types.Deny, ask())
}

func onlyIsolates(name string) *types.Policy {
	return &types.Policy{Resource: types.Resource{Kind: "NetworkPolicy", Namespace: "x", Name: name}, Subject: selects("web"), IsolatesIngress: true}
}

func TestIdentitiesAreToldOnlyToThoseWhoseSelectorsMatchAndAwaited(t *testing.T) {
	r, u := newRepository(t, ""), &told{}
	r.Observe(u)
	replace(t, r, allowFrom("n", "web", "client", 80))
	resolve(t, r, "web", 1000)
	resolve(t, r, "db", 1001)
	u.affected, u.revisions = nil, nil

	require.NoError(t, r.UpdateIdentities(t.Context(), identity.IdentityMap{2000: app("other")}, nil))
	require.Empty(t, u.affected, "no selector matches it")
	before := r.Revision()
	require.NoError(t, r.UpdateIdentities(t.Context(), identity.IdentityMap{2001: app("client")}, nil))
	require.Equal(t, []uint64{before + 1}, u.revisions)
	require.Equal(t, 1, u.waited)
	require.True(t, u.affected[0](app("web")))
	require.False(t, u.affected[0](app("db")))
	require.True(t, u.affected[0](app("new")), "one that has no answer yet may be computing it")

	answer := resolve(t, r, "web", 1000)
	require.Equal(t, types.Allow, answer.State.Decide(types.Ingress, 2001, 0, wtypes.ProtoTCP, 80).Verdict)
	require.NoError(t, r.UpdateIdentities(t.Context(), nil, identity.IdentityMap{2001: nil}))
	require.Equal(t, 2, u.waited)
	require.Equal(t, types.Deny, resolve(t, r, "web", 1000).State.Decide(types.Ingress, 2001, 0, wtypes.ProtoTCP, 80).Verdict)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, r.UpdateIdentities(ctx, identity.IdentityMap{2002: app("client")}, nil), context.Canceled)
}

func TestAnAnswerIsSharedWhileNothingChanged(t *testing.T) {
	r := newRepository(t, "")
	replace(t, r, allowFrom("n", "web", "client", 80))
	a, b := resolve(t, r, "web", 1000), resolve(t, r, "web", 1000)
	require.True(t, shared(a, b))
	require.Equal(t, r.Revision(), a.Revision)
	replace(t, r, allowFrom("m", "db", "client", 80))
	c := resolve(t, r, "web", 1000)
	require.Equal(t, r.Revision(), c.Revision)
	require.Equal(t, r.Revision(), c.Policy.Revision)
	require.True(t, shared(a, c), "a policy of others changes nothing")
	require.NoError(t, r.UpdateIdentities(t.Context(), identity.IdentityMap{2000: app("db"), 2001: app("client")}, nil))
	d := resolve(t, r, "web", 1000)
	require.Len(t, d.State, len(c.State)+1, "2001 is a client")
	replace(t, r, allowFrom("n", "web", "client", 81))
	require.False(t, shared(d, resolve(t, r, "web", 1000)))
	named, err := r.Resolve(policy.Subject{Identity: 1000, Labels: app("web"), NamedPorts: types.NamedPorts{{Name: "http", Proto: wtypes.ProtoTCP}: 80}})
	require.NoError(t, err)
	require.False(t, shared(c, named), "other named ports are another subject")
}

// The lines of a named port may be those of the pods' addresses, which are other
// identities than the one that the selector is about.
func TestAnotherMatchOfARuleWithNamedPortsConcernsTheAddressesToo(t *testing.T) {
	r := newRepository(t, "")
	one, two := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	db := selects("db")
	p := onlyIsolates("n")
	p.Rules = []types.Rule{{Direction: types.Egress, Verdict: types.Allow, Ref: types.RuleRef{Resource: p.Resource, Section: types.SectionEgress},
		Peers: []types.Peer{{Labels: &db}}, Ports: []types.Port{{Proto: http.Proto, Name: http.Name}}}}
	p.IsolatesEgress = true
	replace(t, r, p)
	r.UpdatePods(map[netip.Addr]policy.Pod{one: {Identity: 2000, NamedPorts: types.NamedPorts{http: 80}},
		two: {Identity: 2000, NamedPorts: types.NamedPorts{http: 81}}}, nil)
	at := func(a netip.Addr) labels.LabelArray {
		return labels.NewLabelArray(labels.CIDRLabel(netip.PrefixFrom(a, 32)))
	}
	known := identity.IdentityMap{2000: app("other"), 3001: at(one), 3002: at(two)}
	require.NoError(t, r.UpdateIdentities(t.Context(), known, nil))
	require.Equal(t, types.Deny, resolve(t, r, "web", 1000).State.Decide(types.Egress, 2000, 3001, http.Proto, 80).Verdict)
	require.NoError(t, r.UpdateIdentities(t.Context(), identity.IdentityMap{2000: app("db")}, nil))
	state := resolve(t, r, "web", 1000).State
	require.Equal(t, types.Allow, state.Decide(types.Egress, 2000, 3001, http.Proto, 80).Verdict)
	require.Equal(t, types.Allow, state.Decide(types.Egress, 2000, 3002, http.Proto, 81).Verdict)
	require.Equal(t, types.Deny, state.Decide(types.Egress, 2000, 3002, http.Proto, 80).Verdict)
	require.NoError(t, r.UpdateIdentities(t.Context(), identity.IdentityMap{2000: app("other")}, nil))
	require.Equal(t, types.Deny, resolve(t, r, "web", 1000).State.Decide(types.Egress, 2000, 3001, http.Proto, 80).Verdict)
}

func shared(a, b Resolved) bool {
	return reflect.ValueOf(a.State).Pointer() == reflect.ValueOf(b.State).Pointer()
}

// A slow Resolve that read the policies before they changed must not put its
// dependencies in the place of a newer answer's.
func TestAnOlderComputationDoesNotHideWhatANewerOneDependsOn(t *testing.T) {
	r, u := newRepository(t, ""), &told{}
	r.Observe(u)
	subject := policy.Subject{Identity: 1000, Labels: app("web")}
	replace(t, r, allowFrom("n", "web", "old", 80))
	stale := r.current.Load()
	slow := policy.Resolve(subject, stale.list, r.mode, r.rules.number)
	replace(t, r, allowFrom("n", "web", "client", 80))
	resolve(t, r, "web", 1000)
	r.register(subject, stale, slow)
	u.affected = nil
	require.NoError(t, r.UpdateIdentities(t.Context(), identity.IdentityMap{2000: app("client")}, nil))
	require.Len(t, u.affected, 1)
	require.True(t, u.affected[0](app("web")))
}

func TestPrefixesAreToldNowAndOnEveryChange(t *testing.T) {
	r := newRepository(t, "")
	var heard []map[netip.Prefix]bool
	r.ObservePrefixes(func(p map[netip.Prefix]bool) { heard = append(heard, p) })
	require.Len(t, heard, 1)
	require.Empty(t, heard[0])

	block := netip.MustParsePrefix("10.0.0.0/8")
	except := netip.MustParsePrefix("10.1.0.0/16")
	p := onlyIsolates("n")
	p.Rules = []types.Rule{{Direction: types.Egress, Verdict: types.Allow,
		Peers: []types.Peer{{CIDR: &types.CIDRPeer{Prefix: block, Except: []netip.Prefix{except}, Pods: true}}},
		Ports: []types.Port{{Proto: wtypes.ProtoTCP, Name: "http"}}}}
	replace(t, r, p)
	require.Equal(t, map[netip.Prefix]bool{block: true, except: true}, heard[1])
	replace(t, r, allowFrom("m", "db", "client", 80))
	require.Len(t, heard, 2, "the same prefixes are not told again")

	pod := netip.MustParseAddr("10.2.0.1")
	r.UpdatePods(map[netip.Addr]policy.Pod{pod: {Identity: 3000, NamedPorts: types.NamedPorts{{Name: "http", Proto: wtypes.ProtoTCP}: 80}}}, nil)
	require.Equal(t, map[netip.Prefix]bool{block: true, except: true, netip.PrefixFrom(pod, 32): true}, heard[2],
		"a named port behind a block needs the pod's own prefix")
	r.UpdatePods(nil, []netip.Addr{pod})
	require.Equal(t, heard[1], heard[3])
	_, err := r.DeleteByResource(p.Resource.ID())
	require.NoError(t, err)
	require.Empty(t, heard[4])
}

// The observer also hears of a prefix that only an identity makes necessary,
// while no subject of this node follows its selector.
func TestPrefixesAreToldWhenAnIdentityComesAfterItsPods(t *testing.T) {
	r := newRepository(t, "")
	var heard map[netip.Prefix]bool
	r.ObservePrefixes(func(p map[netip.Prefix]bool) { heard = p })
	db := selects("db")
	p := onlyIsolates("n")
	p.Rules = []types.Rule{{Direction: types.Egress, Verdict: types.Allow, Peers: []types.Peer{{Labels: &db}}, Ports: []types.Port{{Proto: wtypes.ProtoTCP, Name: "http"}}}}
	replace(t, r, p)
	pods := map[netip.Addr]policy.Pod{}
	for i := range 2 {
		pods[netip.AddrFrom4([4]byte{10, 2, 0, byte(i)})] = policy.Pod{Identity: 3000,
			NamedPorts: types.NamedPorts{{Name: "http", Proto: wtypes.ProtoTCP}: uint16(8000 + i)}}
	}
	r.UpdatePods(pods, nil)
	require.Empty(t, heard)
	require.NoError(t, r.UpdateIdentities(t.Context(), identity.IdentityMap{3000: app("db")}, nil))
	require.Len(t, heard, 2, "the pods differ, so each needs its own prefix")
}

func TestTheOrderOfPoliciesDoesNotDependOnThatOfTheirArrival(t *testing.T) {
	for range 20 {
		r := newRepository(t, "")
		for _, key := range []string{"b", "c", "a", "d"} { // one object, from four files
			p := allowFrom("n", "web", key, 80)
			_, err := r.ReplaceByResource(key, []*types.Policy{p})
			require.NoError(t, err)
		}
		_, list := r.Policies()
		for i, key := range []string{"a", "b", "c", "d"} {
			require.Equal(t, selects(key).Key(), list[i].Rules[0].Peers[0].Labels.Key())
		}
	}
}

func TestNothingIsLeftOfSubjectsThatWent(t *testing.T) {
	r, u := newRepository(t, ""), &told{}
	r.Observe(u)
	replace(t, r, allowFrom("n", "web", "client", 80))
	both := policy.Events{} // two label sets that the same policy selects
	both.Added = identity.IdentityMap{1000: app("web"), 1001: app("web").With(labels.New(labels.SourceK8s, "version", "2"))}
	require.NoError(t, r.UpdateIdentities(t.Context(), both.Added, nil))
	for id, a := range both.Added {
		_, err := r.Resolve(policy.Subject{Identity: id, Labels: a})
		require.NoError(t, err)
	}
	clients := func(id identity.NumericIdentity) int {
		u.affected = nil
		require.NoError(t, r.UpdateIdentities(t.Context(), identity.IdentityMap{id: app("client")}, nil))
		return len(u.affected)
	}
	require.NoError(t, r.UpdateIdentities(t.Context(), nil, identity.IdentityMap{1000: nil}))
	require.Equal(t, 1, clients(2000), "1001 still depends on the selector")
	require.NoError(t, r.UpdateIdentities(t.Context(), nil, identity.IdentityMap{1001: nil}))
	require.Zero(t, clients(2001), "nobody does")
	require.Empty(t, r.needs)

	resolve(t, r, "web", 1000) // too late: it has gone
	require.Len(t, r.needs, 1)
	require.NoError(t, r.UpdateIdentities(t.Context(), nil, identity.IdentityMap{2001: nil}))
	require.Empty(t, r.needs)
	require.Zero(t, clients(2002))
}

// A later call for a number whose first call was given up must not say that the
// policy maps know it.
func TestANumberThatWasNotAwaitedIsAwaitedByTheNextCall(t *testing.T) {
	r, u := newRepository(t, ""), &told{}
	r.Observe(u)
	replace(t, r, allowFrom("n", "web", "client", 80))
	resolve(t, r, "web", 1000)
	client, another := identity.IdentityMap{2000: app("client")}, identity.IdentityMap{2001: app("nobody")}
	given, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, r.UpdateIdentities(given, client, nil), context.Canceled)
	u.waited = 0
	require.NoError(t, r.UpdateIdentities(t.Context(), another, nil))
	require.Zero(t, u.waited)
	require.ErrorIs(t, r.UpdateIdentities(given, client, nil), context.Canceled)
	require.NoError(t, r.UpdateIdentities(t.Context(), client, nil))
	require.Equal(t, 2, u.waited)
	require.NoError(t, r.UpdateIdentities(t.Context(), client, nil))
	require.Equal(t, 2, u.waited, "it has been awaited")

	require.ErrorIs(t, r.UpdateIdentities(given, identity.IdentityMap{2002: app("client")}, nil), context.Canceled)
	require.NoError(t, r.UpdateIdentities(t.Context(), nil, identity.IdentityMap{2002: nil}))
	require.Empty(t, r.unsettled, "what went need not be awaited")
}

// Changes are told in order: one that does not concern an endpoint lets it claim
// the revision, and with it every one before.
func TestChangesAreToldInOrder(t *testing.T) {
	r, u := newRepository(t, ""), &told{}
	r.Observe(u)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				_, err := r.ReplaceByResource(fmt.Sprint(i), []*types.Policy{allowFrom(fmt.Sprint(i), "web", "client", 80)})
				assert.NoError(t, err)
			}
		})
	}
	wg.Wait()
	require.Len(t, u.revisions, 400)
	for i, revision := range u.revisions {
		require.EqualValues(t, i+2, revision)
	}
}

func TestOneIdentityWithDifferentNamedPortsIsTwoAnswers(t *testing.T) {
	r := newRepository(t, "")
	http := types.NamedPort{Name: "http", Proto: wtypes.ProtoTCP}
	p := allowFrom("n", "web", "client", 0)
	p.Rules[0].Ports = []types.Port{{Proto: http.Proto, Name: http.Name}}
	replace(t, r, p)
	require.NoError(t, r.UpdateIdentities(t.Context(), identity.IdentityMap{1000: app("web"), 2000: app("client")}, nil))
	for _, own := range []uint16{8000, 8080} {
		answer, err := r.Resolve(policy.Subject{Identity: 1000, Labels: app("web"), NamedPorts: types.NamedPorts{http: own}})
		require.NoError(t, err)
		for _, port := range []uint16{8000, 8080} {
			v := answer.State.Decide(types.Ingress, 2000, 0, http.Proto, port).Verdict
			require.Equal(t, port == own, v == types.Allow, "the pod that says http=%d, asked at %d", own, port)
		}
	}
}
