package ipcache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/identity/cache"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/maps/ipcachemap"
)

var bg = context.Background()

func TestPolicyHearsFirstOnAddAndLastOnDelete(t *testing.T) {
	c, f := start(t)
	c.setPolicyPrefixes(map[netip.Prefix]bool{pfx("203.0.113.0/24"): true})
	c.UpsertMetadata(pfx("10.0.0.1/32"), SourceKubernetes, "pod/a", pod("a"))
	run(t, c)
	sync1(t, c)
	require.Equal(t, []string{
		"dump",
		"add cidr:203.0.113.0/24=;reserved:world-ipv4=; k8s:app=a;",
		"upsert 10.0.0.1/32 203.0.113.0/24",
		"tell 10.0.0.1",
		"changed",
	}, f.dialogue())

	c.UpsertMetadata(pfx("10.0.0.1/32"), SourceKubernetes, "pod/a", pod("b"))
	sync1(t, c)
	require.Equal(t, []string{"add k8s:app=b;", "upsert 10.0.0.1/32", "tell 10.0.0.1", "changed", "remove k8s:app=a;"}, f.dialogue())

	c.RemoveMetadata(pfx("10.0.0.1/32"), "pod/a")
	sync1(t, c)
	require.Equal(t, []string{"delete 10.0.0.1/32", "changed", "remove k8s:app=b;"}, f.dialogue())
	c.setPolicyPrefixes(nil)
	sync1(t, c)
	require.Equal(t, []string{"delete 203.0.113.0/24", "changed", "remove cidr:203.0.113.0/24=;reserved:world-ipv4=;"}, f.dialogue())
	require.Empty(t, f.kernel)
	require.Len(t, f.identity.Snapshot(), len(identity.ReservedIdentities()), "every reference was given back")
}

func TestSyncedOnlyOnceTheKernelHasWhatWasAsked(t *testing.T) {
	c, _ := start(t)
	c.setPolicyPrefixes(map[netip.Prefix]bool{pfx("203.0.113.0/24"): true})
	require.False(t, c.Synced())
	run(t, c)
	sync1(t, c)
	require.True(t, c.Synced())
}

func TestOutsideAddressIsItsLongestPolicyPrefix(t *testing.T) {
	c, f := start(t)
	c.setPolicyPrefixes(map[netip.Prefix]bool{pfx("0.0.0.0/0"): true, pfx("203.0.113.0/24"): false, pfx("2001:db8::/32"): false})
	run(t, c)
	sync1(t, c)
	inner := f.number(t, "cidr:203.0.113.0/24", "reserved:world-ipv4")
	require.Equal(t, ipcachemap.Entry{Identity: inner, PrefixIdentity: inner}, f.at("203.0.113.9"))
	outer := f.number(t, "cidr:0.0.0.0/0", "reserved:world-ipv4")
	require.Equal(t, ipcachemap.Entry{Identity: outer, PrefixIdentity: outer}, f.at("8.8.8.8"))
	six := f.number(t, "cidr:2001-db8--0/32", "reserved:world-ipv6")
	require.Equal(t, ipcachemap.Entry{Identity: six, PrefixIdentity: six}, f.at("2001:db8::1"))

	require.Equal(t, Entry{pfx("203.0.113.0/24"), identity.NumericIdentity(inner), identity.NumericIdentity(inner), SourceGenerated, ""},
		c.Lookup(netip.MustParseAddr("::ffff:203.0.113.9")))
	require.Equal(t, Entry{Identity: identity.ReservedWorldIPv6}, c.Lookup(netip.MustParseAddr("fd00::1")), "no prefix covers it")
	require.Equal(t, Entry{}, c.Lookup(netip.Addr{}))
	require.Len(t, c.Dump(), 3)
	require.Equal(t, []netip.Prefix{pfx("203.0.113.0/24")}, c.usersOf(identity.NumericIdentity(inner)))
}

func TestPodKeepsItsIdentityAndHasThePrefixOfPodBlocksBeside(t *testing.T) {
	c, f := start(t)
	c.UpsertMetadata(pfx("10.0.0.1/32"), SourceKubernetes, "pod/a", pod("x"))
	c.UpsertMetadata(pfx("10.0.0.200/32"), SourceKubernetes, "pod/b", pod("x"))
	c.setPolicyPrefixes(map[netip.Prefix]bool{pfx("10.0.0.0/25"): true, pfx("10.0.0.0/8"): false, pfx("10.0.0.1/32"): false})
	run(t, c)
	sync1(t, c)
	who := f.number(t, "k8s:app=x")
	require.Equal(t, ipcachemap.Entry{Identity: who, PrefixIdentity: f.number(t, "cidr:10.0.0.0/25")}, f.at("10.0.0.1"),
		"a longer prefix that no pod block uses does not count")
	require.Equal(t, ipcachemap.Entry{Identity: who}, f.at("10.0.0.200"), "equal labels, outside the block")
	require.Equal(t, f.number(t, "cidr:10.0.0.0/25", "reserved:world-ipv4"), f.at("10.0.0.2").Identity, "nobody's address is outside")

	f.dialogue()
	c.setPolicyPrefixes(map[netip.Prefix]bool{pfx("10.0.0.0/25"): false, pfx("10.0.0.0/8"): false, pfx("10.0.0.1/32"): false})
	sync1(t, c)
	require.Equal(t, []string{"upsert 10.0.0.1/32", "tell 10.0.0.1", "changed", "remove cidr:10.0.0.0/25=;"}, f.dialogue(),
		"only what the change concerns is touched")
	require.Equal(t, [2]identity.NumericIdentity{identity.NumericIdentity(who), 0}, f.told[netip.MustParseAddr("10.0.0.1")])
}

func TestPrefixInsideALargerOwnerBelongsToTheOwner(t *testing.T) {
	c, f := start(t)
	c.UpsertMetadata(pfx("10.1.0.0/16"), SourceDirectory, "file/x", pod("net"))
	c.setPolicyPrefixes(map[netip.Prefix]bool{pfx("10.1.2.0/24"): true, pfx("10.0.0.0/8"): true})
	run(t, c)
	sync1(t, c)
	who := f.number(t, "k8s:app=net")
	require.Equal(t, ipcachemap.Entry{Identity: who, PrefixIdentity: f.number(t, "cidr:10.1.2.0/24")}, f.at("10.1.2.3"))
	require.Equal(t, ipcachemap.Entry{Identity: who, PrefixIdentity: f.number(t, "cidr:10.0.0.0/8")}, f.at("10.1.9.9"))
	c.RemoveMetadata(pfx("10.1.0.0/16"), "file/x")
	sync1(t, c)
	require.Equal(t, f.number(t, "cidr:10.1.2.0/24", "reserved:world-ipv4"), f.at("10.1.2.3").Identity)
}

// An address changes hands and the old owner's events come late.
func TestB20_LateEventsOfTheOldOwnerChangeNothing(t *testing.T) {
	p := pfx("10.0.0.1/32")
	steps := map[string]func(*IPCache){
		"add A": func(c *IPCache) { c.UpsertMetadata(p, SourceKubernetes, "pod/A", pod("A")) },
		"del A": func(c *IPCache) { c.RemoveMetadata(p, "pod/A") },
		"add B": func(c *IPCache) { c.UpsertMetadata(p, SourceKubernetes, "pod/B", pod("B")) },
	}
	for _, order := range [][]string{
		{"add A", "del A", "add B"}, {"add A", "add B", "del A"}, {"del A", "add A", "add B"},
		{"del A", "add B", "add A"}, {"add B", "add A", "del A"}, {"add B", "del A", "add A"},
	} {
		for _, everyStep := range []bool{false, true} {
			t.Run(fmt.Sprint(order, everyStep), func(t *testing.T) {
				c, f := start(t)
				run(t, c)
				for _, s := range order {
					if steps[s](c); everyStep {
						sync1(t, c)
					}
				}
				sync1(t, c)
				require.Equal(t, f.number(t, "k8s:app=B"), f.at("10.0.0.1").Identity)
				require.Len(t, f.kernel, 1)
			})
		}
	}
}

func TestStrongestSourceWinsAndItsRemovalBringsTheNextBack(t *testing.T) {
	c, f := start(t)
	run(t, c)
	p := pfx("10.0.0.1/32")
	order := []Source{SourceKubeAPIServer, SourceLocal, SourceKVStore, SourceCustomResource, SourceKubernetes, SourceClusterMesh,
		SourceDirectory, SourceAPI, SourceGenerated, SourceRestored, SourceUnspec}
	for i := len(order) - 1; i >= 0; i -= 2 { // not in the order of strength
		c.UpsertMetadata(p, order[i], order[i].String(), pod(order[i].String()))
	}
	for i := 1; i < len(order); i += 2 {
		c.UpsertMetadata(p, order[i], order[i].String(), pod(order[i].String()))
	}
	for _, s := range order {
		sync1(t, c)
		require.Equal(t, f.number(t, "k8s:app="+s.String()), f.at("10.0.0.1").Identity)
		require.Equal(t, s, c.Lookup(p.Addr()).Source)
		require.Equal(t, s.String(), c.Lookup(p.Addr()).Resource)
		c.RemoveMetadata(p, s.String())
	}
	sync1(t, c)
	require.Empty(t, f.kernel)
	c.UpsertMetadata(p, SourceLocal, "nobody", Metadata{})
	c.UpsertMetadata(netip.Prefix{}, SourceLocal, "x", pod("x"))
	c.RemoveMetadata(netip.Prefix{}, "x")
	sync1(t, c)
	require.Empty(t, f.kernel, "metadata that says nothing is no owner")
}

func TestPublishedEndpointKeepsItsIdentityAliveUntilTheKernelForgetsIt(t *testing.T) {
	c, f := start(t)
	run(t, c)
	id, _, err := f.identity.Allocate(bg, pod("a").Labels)
	require.NoError(t, err)
	a := netip.MustParseAddr("fd00::1")
	c.Publish(a, "endpoint/1", id.ID)
	sync1(t, c)
	require.Equal(t, uint32(id.ID), f.at("fd00::1").Identity)
	gone, err := f.identity.Release(bg, id.ID)
	require.NoError(t, err)
	require.False(t, gone)
	c.Withdraw(a, "endpoint/2")
	sync1(t, c)
	require.Len(t, f.kernel, 1, "another owner cannot withdraw it")
	c.Withdraw(a, "endpoint/1")
	sync1(t, c)
	_, ok := f.identity.LookupByID(id.ID)
	require.False(t, ok)

	c.Publish(a, "endpoint/3", identity.ReservedHost)
	sync1(t, c)
	require.EqualValues(t, 1, f.at("fd00::1").Identity)
}

func TestPrefixIdentityIsThereBeforeThePod(t *testing.T) {
	c, f := start(t, func(cfg *Config) { cfg.PodPrefixes = []netip.Prefix{pfx("10.42.0.0/16")} })
	c.setPolicyPrefixes(map[netip.Prefix]bool{pfx("10.42.1.3/32"): true, pfx("0.0.0.0/0"): true, pfx("203.0.113.0/24"): true, pfx("10.42.9.0/24"): false})
	run(t, c)
	sync1(t, c)
	a := netip.MustParseAddr("10.42.1.3")
	want := f.number(t, "cidr:10.42.1.3/32")
	require.EqualValues(t, want, c.PrefixIdentity(a))
	require.EqualValues(t, f.number(t, "cidr:0.0.0.0/0"), c.PrefixIdentity(netip.MustParseAddr("10.42.9.9")))
	require.Zero(t, c.PrefixIdentity(netip.MustParseAddr("203.0.113.1")), "no pod can be there")
	require.Zero(t, c.PrefixIdentity(netip.Addr{}))
	_, ok := f.identity.LookupByLabels(labels.NewLabelArray(labels.CIDRLabel(pfx("203.0.113.0/24"))))
	require.False(t, ok, "so it costs no number")

	c.UpsertMetadata(pfx("10.42.1.3/32"), SourceLocal, "endpoint/1", pod("a"))
	sync1(t, c)
	require.EqualValues(t, want, c.PrefixIdentity(a))
	require.EqualValues(t, want, f.told[a][1])
}

func TestFailuresAreRepairedWithoutBreakingTheOrder(t *testing.T) {
	for _, call := range []string{"add", "upsert", "delete", "remove"} {
		t.Run(call, func(t *testing.T) {
			c, f := start(t)
			f.faults[call] = 3
			run(t, c)
			c.setPolicyPrefixes(map[netip.Prefix]bool{pfx("10.0.0.0/8"): true, pfx("10.0.0.0/24"): true})
			c.UpsertMetadata(pfx("10.0.0.1/32"), SourceKubernetes, "pod/a", pod("a"))
			sync1(t, c)
			require.Equal(t, f.number(t, "cidr:10.0.0.0/24"), f.at("10.0.0.1").PrefixIdentity)
			c.UpsertMetadata(pfx("10.0.0.1/32"), SourceKubernetes, "pod/a", pod("b"))
			c.setPolicyPrefixes(nil)
			sync1(t, c)
			require.Equal(t, ipcachemap.Entry{Identity: f.number(t, "k8s:app=b")}, f.at("10.0.0.1"))
			require.Len(t, f.kernel, 1)
			require.Zero(t, f.faults[call], "all faults have struck")
			require.NoError(t, c.Problem())
			require.Len(t, f.identity.Snapshot(), len(identity.ReservedIdentities())+1, "no reference is lost or left")
			require.Equal(t, 1, len(f.known), "the policy forgot the others")
		})
	}
}

func TestWaiterLearnsWhatGoesWrong(t *testing.T) {
	c, f := start(t)
	f.faults["upsert"] = 1 << 30
	run(t, c)
	c.UpsertMetadata(pfx("10.0.0.1/32"), SourceKubernetes, "pod/a", pod("a"))
	require.Eventually(t, func() bool { return c.Problem() != nil }, 10*time.Second, time.Millisecond)
	ctx, cancel := context.WithCancel(bg)
	cancel()
	err := c.WaitSynced(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, errFault)
}

func TestPrefixWithoutANumberIsClosedAndNotItsParent(t *testing.T) {
	c, f := start(t)
	ids, err := cache.New(cache.Config{Rest: -1, LocalMin: 1<<24 + 1, LocalMax: 1<<24 + 1, Min: 300, Max: 300})
	require.NoError(t, err)
	f.identity, c.cfg.Identities = ids, ids
	run(t, c)
	c.setPolicyPrefixes(map[netip.Prefix]bool{pfx("203.0.113.0/24"): false})
	c.UpsertMetadata(pfx("10.0.0.1/32"), SourceKubernetes, "pod/a", pod("a"))
	sync1(t, c)
	c.setPolicyPrefixes(map[netip.Prefix]bool{pfx("203.0.113.0/24"): false, pfx("203.0.113.10/32"): false})
	c.UpsertMetadata(pfx("10.0.0.2/32"), SourceKubernetes, "pod/b", pod("b"))
	require.Eventually(t, func() bool { // the problem is told at the end of the round that writes
		return f.at("203.0.113.10") == closed && f.at("10.0.0.2").Identity == closed.Identity && errors.Is(c.Problem(), cache.ErrExhausted)
	}, 10*time.Second, time.Millisecond)
	require.Equal(t, f.number(t, "cidr:203.0.113.0/24", "reserved:world-ipv4"), f.at("203.0.113.11").Identity)

	c.setPolicyPrefixes(map[netip.Prefix]bool{pfx("203.0.113.10/32"): false})
	c.RemoveMetadata(pfx("10.0.0.1/32"), "pod/a")
	require.Eventually(t, c.Synced, 20*time.Second, time.Millisecond, "numbers were free again")
	require.Equal(t, f.number(t, "cidr:203.0.113.10/32", "reserved:world-ipv4"), f.at("203.0.113.10").Identity)
	require.Equal(t, f.number(t, "k8s:app=b"), f.at("10.0.0.2").Identity)
}

func TestRestartWritesNothingThatIsThereAndPrunesTheRestLater(t *testing.T) {
	c, f := start(t)
	run(t, c)
	c.setPolicyPrefixes(map[netip.Prefix]bool{pfx("203.0.113.0/24"): true})
	c.UpsertMetadata(pfx("10.0.0.1/32"), SourceKubernetes, "pod/a", pod("a"))
	c.UpsertMetadata(pfx("10.0.0.2/32"), SourceKubernetes, "pod/b", pod("b"))
	sync1(t, c)
	c.Stop()
	f.dialogue()

	c = f.restart(t)
	c.setPolicyPrefixes(map[netip.Prefix]bool{pfx("10.0.0.2/32"): false}) // touched, and not wanted in the end
	c.setPolicyPrefixes(map[netip.Prefix]bool{pfx("203.0.113.0/24"): true})
	run(t, c)
	c.UpsertMetadata(pfx("10.0.0.1/32"), SourceKubernetes, "pod/a", pod("a"))
	c.RemoveMetadata(pfx("10.0.0.2/32"), "pod/z")
	sync1(t, c)
	for _, line := range f.dialogue() {
		require.NotContains(t, line, "upsert")
		require.NotContains(t, line, "delete")
	}
	require.Equal(t, f.number(t, "k8s:app=b"), f.at("10.0.0.2").Identity, "not in sync yet: nothing goes")
	c.Prune()
	sync1(t, c)
	require.Equal(t, []string{"delete 10.0.0.2/32", "changed"}, f.dialogue())
}

func TestManyPrefixesCostOneRoundAndAChangeOnlyWhatItConcerns(t *testing.T) {
	c, f := start(t)
	p := map[netip.Prefix]bool{}
	for i := range 50000 {
		p[netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(i >> 8), byte(i), 0}), 24)] = true
	}
	for i := range 200 {
		c.UpsertMetadata(netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 0, byte(i), 7}), 32), SourceKubernetes, fmt.Sprint(i), pod(fmt.Sprint(i)))
	}
	c.setPolicyPrefixes(p)
	run(t, c)
	sync1(t, c)
	require.Len(t, f.dialogue(), 2+1+200+1, "dump, add, one upsert, 200 told, changed")
	clear(f.touched)
	delete(p, pfx("100.0.7.0/24"))
	p[pfx("100.0.0.0/17")] = true
	c.setPolicyPrefixes(p)
	sync1(t, c)
	require.Equal(t, map[netip.Prefix]int{pfx("100.0.7.7/32"): 1, pfx("100.0.0.0/17"): 1}, f.touched)
}

// What somebody takes out of the kernel's map, changes or puts into it does not last.
func TestB54_TheMapIsMended(t *testing.T) {
	_, f := start(t)
	c := life(t, f, 100, "10.0.0.0/24", "10.0.0.1/32", "192.0.2.0/24")
	require.NoError(t, c.round(bg))
	whole := maps.Clone(f.kernel)
	require.Len(t, whole, 3)
	f.dialogue()
	c.Check()
	require.NoError(t, c.round(bg))
	require.Equal(t, []string{"dump"}, f.dialogue(), "nothing was touched, so nothing is written")

	delete(f.kernel, pfx("10.0.0.1/32"))
	f.kernel[pfx("192.0.2.0/24")] = f.kernel[pfx("10.0.0.0/24")]
	f.kernel[pfx("198.51.100.0/24")] = f.kernel[pfx("10.0.0.0/24")]
	require.NoError(t, c.round(bg))
	require.NotEqual(t, whole, f.kernel, "nobody looked")
	c.Check()
	require.NoError(t, c.round(bg))
	require.Equal(t, whole, f.kernel)

	f.kernel[pfx("198.51.100.0/24")] = f.kernel[pfx("10.0.0.0/24")]
	f.faults["delete"] = 1
	c.Check()
	require.Error(t, c.round(bg))
	require.NoError(t, c.round(bg))
	require.Equal(t, whole, f.kernel, "a failure is tried again")
}

// Nor does it keep the agent from its own work that others took all the room, and
// flows that were judged by what they wrote are judged again.
func TestB54_AMapThatOthersFilledIsMended(t *testing.T) {
	_, f := start(t)
	c := life(t, f, 6, "10.0.0.0/24", "10.0.0.1/32")
	require.NoError(t, c.round(bg))
	whole := maps.Clone(f.kernel)
	for i := 0; len(f.kernel) < f.room; i++ {
		f.kernel[pfx(fmt.Sprintf("203.0.%d.0/24", i))] = f.kernel[pfx("10.0.0.0/24")]
	}
	f.dialogue()
	f.faults["delete"] = 1
	c.Check()
	require.ErrorContains(t, c.round(bg), "not of this agent")
	require.NoError(t, c.round(bg))
	require.Equal(t, whole, f.kernel)
	require.Contains(t, f.dialogue(), "changed")
	named(c, "10.0.0.0/24", "10.0.0.1/32", "192.0.2.0/24")
	require.NoError(t, c.round(bg))
	require.Len(t, f.kernel, 3)
}

// What closes a family while room is made looks like somebody else's, and stays.
func TestB54_WhatIsClosedMeanwhileIsNotTakenForAStrangers(t *testing.T) {
	_, f := start(t)
	c := life(t, f, 1, "10.0.0.0/24")
	require.NoError(t, c.round(bg))
	f.look = func() {
		require.NotEmpty(t, f.kernel, "10.0.0.1 is open")
		if _, former := f.kernel[pfx("10.0.0.0/24")]; !former && len(f.kernel) == 1 {
			f.faults["upsert"] = 1 - f.touched[pfx("10.0.0.0/25")]
		}
	}
	named(c, "10.0.0.0/25")
	require.Error(t, c.round(bg))
	require.Equal(t, map[netip.Prefix]ipcachemap.Entry{pfx("0.0.0.0/0"): closed}, f.kernel)
	require.NoError(t, c.round(bg))
	require.Len(t, f.kernel, 1)
	require.Contains(t, f.kernel, pfx("10.0.0.0/25"))
}
