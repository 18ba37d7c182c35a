package ipcache

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/identity/cache"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/maps/ipcachemap"
)

// answers are what the kernel finds for each of the probes.
type answers map[string]ipcachemap.Entry

func (f *fakes) answers() answers {
	out := answers{}
	for _, s := range probes {
		a, best := netip.MustParseAddr(s), -1
		for p, e := range f.kernel {
			if p.Contains(a) && p.Bits() > best {
				out[s], best = e, p.Bits()
			}
		}
	}
	return out
}

func denied(e ipcachemap.Entry) bool {
	return e.Identity == closed.Identity || e.PrefixIdentity == closed.PrefixIdentity
}

// wish is what the kernel should find for an address; not ok: a number is missing.
func (m model) wish(f *fakes, s string) (e ipcachemap.Entry, ok bool) {
	number := func(a labels.LabelArray) (uint32, bool) {
		if a == nil {
			return 0, true
		}
		id, ok := f.identity.LookupByLabels(a)
		if !ok {
			return 0, false
		}
		return uint32(id.ID), true
	}
	who, where := m.judge(netip.MustParseAddr(s))
	a, ok1 := number(who)
	b, ok2 := number(where)
	return ipcachemap.Entry{Identity: a, PrefixIdentity: b}, ok1 && ok2
}

// rounds makes what the worker makes until nothing but a want of numbers or room is
// left to be done. Whatever the kernel says in between, also half way through a
// call and after one that failed, is what it said before, what it is to say, or
// closed.
func (f *fakes) rounds(t *rapid.T, c *IPCache, m model) {
	before := f.answers()
	var seen []answers
	f.look = func() { seen = append(seen, f.answers()) }
	defer func() { f.look = func() {} }()
	var err error
	for i := 0; i == 0 || err != nil; i++ {
		if err = c.round(bg); errors.Is(err, cache.ErrExhausted) && !errors.Is(err, errFault) {
			break
		}
		require.Less(t, i, 50, "it does not come to an end: %v", err)
		if err != nil && rapid.IntRange(0, 3).Draw(t, "wishes change while it fails") == 0 {
			break
		}
	}
	for _, s := range probes {
		want, ok := m.wish(f, s)
		for i, now := range seen {
			require.True(t, denied(now[s]) || now[s] == before[s] || ok && now[s] == want,
				"%s is answered by %v after change %d of %d; before: %v, wanted: %v", s, now[s], i+1, len(seen), before[s], want)
		}
		if errors.Is(err, errFault) {
			continue
		}
		last := f.at(s)
		require.True(t, denied(last) || ok && last == want, "%s is answered by %v in the end, wanted: %v", s, last, want)
		if c.Problem() == nil {
			require.Equal(t, want, last, s)
		}
		got := c.Lookup(netip.MustParseAddr(s))
		require.Equal(t, denied(last), got.Identity == identity.ReservedClosed || got.PrefixIdentity == identity.ReservedClosed, "what the agent says of %s", s)
	}
	if errors.Is(err, errFault) {
		return
	}
	wide := 0
	for p := range f.kernel {
		if p.Bits() == 0 {
			wide++
		}
	}
	require.LessOrEqual(t, len(f.kernel)-wide, f.room-reservedPlaces, "a place for each family is free")
	asked := map[netip.Prefix]bool{}
	for _, p := range universe {
		if _, inP := m.policy[p]; (inP || len(m.owners[p]) > 0) && p.Bits() > 0 {
			asked[p] = true
		}
	}
	require.Equal(t, len(asked) > f.room-reservedPlaces, errors.Is(c.Problem(), ipcachemap.ErrFull), "%d of %d: %v", len(asked), f.room, c.Problem())
	require.Equal(t, c.Problem() == nil, c.Synced())
	require.Empty(t, f.broken)
}

func TestAnyHistoryInAnyRoomIsAnsweredAsWantedOrClosed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, f := start(t)
		f.room = rapid.IntRange(3, len(universe)+2).Draw(t, "room")
		if rapid.Bool().Draw(t, "numbers are few") {
			ids, err := cache.New(cache.Config{Rest: -1, LocalMin: 1<<24 + 1, LocalMax: identity.NumericIdentity(1<<24 + rapid.IntRange(1, 20).Draw(t, "numbers")), Min: 300, Max: 300})
			require.NoError(t, err)
			f.identity, c.cfg.Identities = ids, ids
		}
		require.NoError(t, c.restore(f.kernel))
		m := model{owners: map[netip.Prefix]map[string]string{}, policy: map[netip.Prefix]bool{}}
		for range rapid.IntRange(1, 12).Draw(t, "rounds") {
			for range rapid.IntRange(0, 12).Draw(t, "steps") {
				p := rapid.SampledFrom(universe).Draw(t, "prefix")
				switch rapid.SampledFrom([]string{"upsert", "remove", "policy", "policy", "policy", "no policy"}).Draw(t, "step") {
				case "upsert":
					if m.owners[p] == nil {
						m.owners[p] = map[string]string{}
					}
					app := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "app")
					m.owners[p]["owner"] = app
					c.UpsertMetadata(p, SourceKubernetes, "owner", pod(app))
				case "remove":
					delete(m.owners, p)
					c.RemoveMetadata(p, "owner")
				case "policy":
					m.policy[p] = rapid.Bool().Draw(t, "pods")
					c.setPolicyPrefixes(m.policy)
				case "no policy":
					delete(m.policy, p)
					c.setPolicyPrefixes(m.policy)
				}
			}
			for _, call := range []string{"add", "upsert", "delete", "remove", "dump"} {
				f.faults[call] = rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, call+" faults")
			}
			f.rounds(t, c, m)
			if rapid.IntRange(0, 3).Draw(t, "restart") == 0 {
				clear(f.faults)
				f.rounds(t, c, m)
				c = f.again(t, c, m)
			}
		}
	})
}

// again is the agent's next life, with other room.
func (f *fakes) again(t *rapid.T, former *IPCache, m model) *IPCache {
	f.room = max(len(f.kernel)+reservedPlaces, rapid.IntRange(3, len(universe)+2).Draw(t, "next room"))
	c := f.restart(t, func(cfg *Config) { cfg.Identities = former.cfg.Identities })
	c.setPolicyPrefixes(m.policy)
	for p, o := range m.owners {
		for resource, app := range o {
			c.UpsertMetadata(p, SourceKubernetes, resource, pod(app))
		}
	}
	require.NoError(t, c.restore(f.kernel))
	before := f.answers()
	_ = c.round(bg)
	for _, s := range probes {
		want, ok := m.wish(f, s)
		now := f.at(s)
		require.True(t, denied(now) || now == before[s] || ok && now == want, "%s is answered by %v after the start; before: %v, wanted: %v", s, now, before[s], want)
	}
	c.Prune()
	f.rounds(t, c, m)
	return c
}

// life is a cache over room for n prefixes beside the reserved places, which does
// its rounds when the test says so.
func life(t *testing.T, f *fakes, n int, policy ...string) *IPCache {
	t.Helper()
	f.room = n + reservedPlaces
	c := f.restart(t)
	require.NoError(t, c.restore(f.kernel))
	named(c, policy...)
	return c
}

func named(c *IPCache, policy ...string) {
	all := map[netip.Prefix]bool{}
	for _, s := range policy {
		all[pfx(s)] = false
	}
	c.setPolicyPrefixes(all)
}

func TestWhatIsLeftOutClosesTheNearestAroundItAndOpensAgainByItself(t *testing.T) {
	_, f := start(t)
	c := life(t, f, 3, "10.0.0.0/24", "10.0.0.1/32", "10.0.0.2/32", "10.0.0.3/32", "192.0.2.0/24")
	require.NoError(t, c.round(bg))
	for addr, shut := range map[string]bool{"10.0.0.1": false, "10.0.0.2": false, "10.0.0.3": true, "10.0.0.9": true, "192.0.2.1": true, "8.8.8.8": true, "fd00::1": false} {
		require.Equal(t, shut, denied(f.at(addr)), addr)
		require.Equal(t, shut, c.Lookup(netip.MustParseAddr(addr)).Identity == identity.ReservedClosed, addr)
	}
	require.ErrorIs(t, c.Problem(), ipcachemap.ErrFull)
	require.ErrorContains(t, c.Problem(), "2 of 5 prefixes have no place among 5")
	require.False(t, c.Synced())
	require.NoError(t, c.WaitSynced(bg), "there is nothing to wait for")
	require.Len(t, c.Dump(), 4, "three prefixes and the one that is closed for those with nothing around them")

	pods := []string{"10.0.9.1/32", "10.0.9.2/32", "10.0.9.3/32"}
	for _, p := range pods {
		c.UpsertMetadata(pfx(p), SourceKubernetes, "pod", pod("a"))
	}
	c.UpsertMetadata(pfx("198.51.100.7/32"), SourceLocal, "node", Metadata{Identity: identity.ReservedHost})
	require.NoError(t, c.round(bg))
	require.EqualValues(t, identity.ReservedHost, f.at("198.51.100.7").Identity, "the node's own address comes first")
	require.False(t, denied(f.at("10.0.9.2")), "then those of the cluster")
	require.True(t, denied(f.at("10.0.9.3")))
	require.True(t, denied(f.at("10.0.0.1")))
	c.RemoveMetadata(pfx("198.51.100.7/32"), "node")
	for _, p := range pods {
		c.RemoveMetadata(pfx(p), "pod")
	}

	named(c, "10.0.0.0/24", "10.0.0.1/32", "10.0.0.2/32")
	require.NoError(t, c.round(bg))
	for _, addr := range []string{"10.0.0.1", "10.0.0.9", "192.0.2.1"} {
		require.False(t, denied(f.at(addr)), addr)
	}
	require.Len(t, f.kernel, 3)
	require.NoError(t, c.Problem())
	require.True(t, c.Synced())
}

// After a restart with more room nothing is opened before all sources have told
// what they know: what was closed may be the place of an address yet to come.
func TestWhatWasClosedBeforeTheStartStaysSoUntilAllIsKnown(t *testing.T) {
	_, f := start(t)
	c := life(t, f, 1, "10.0.0.0/24", "10.0.0.1/32")
	require.NoError(t, c.round(bg))
	require.True(t, denied(f.at("10.0.0.9")))
	c = life(t, f, 10, "10.0.0.0/24", "10.0.0.1/32")
	require.NoError(t, c.round(bg))
	require.True(t, denied(f.at("10.0.0.9")), "others may be left out still")
	require.False(t, denied(f.at("10.0.0.1")), "this one has its own place now")
	require.NoError(t, c.Problem())
	c.Prune()
	require.NoError(t, c.round(bg))
	require.Equal(t, f.number(t, "cidr:10.0.0.0/24", "reserved:world-ipv4"), f.at("10.0.0.9").Identity)
	require.Len(t, f.kernel, 2)
}

func TestAMapWithoutThePlacesToCloseIsNotStartedWith(t *testing.T) {
	_, f := start(t)
	c := life(t, f, 2, "10.0.0.1/32", "10.0.0.2/32")
	require.NoError(t, c.round(bg))
	f.room = 3
	require.ErrorContains(t, f.restart(t).Start(bg), "raise ipcache-entries to 4 or more")
}

func TestAPodWhosePrefixHasNoNumberIsClosed(t *testing.T) {
	_, f := start(t)
	ids, err := cache.New(cache.Config{Rest: -1, LocalMin: 1<<24 + 1, LocalMax: 1<<24 + 1})
	require.NoError(t, err)
	f.identity = ids
	c := f.restart(t, func(cfg *Config) { cfg.PodPrefixes = []netip.Prefix{pfx("10.42.0.0/16")} })
	require.NoError(t, c.restore(f.kernel))
	c.setPolicyPrefixes(map[netip.Prefix]bool{pfx("10.42.0.0/24"): true})
	c.Publish(netip.MustParseAddr("10.42.0.7"), "endpoint/1", identity.ReservedHealth)
	require.NoError(t, c.round(bg))
	require.ErrorIs(t, c.Problem(), cache.ErrExhausted)
	require.Equal(t, identity.ReservedClosed, c.PrefixIdentity(netip.MustParseAddr("10.42.0.8")), "a pod to come")
	require.Contains(t, []identity.NumericIdentity{identity.ReservedClosed, identity.MinLocalIdentity}, f.told[netip.MustParseAddr("10.42.0.7")][1])
	c.setPolicyPrefixes(nil)
	require.NoError(t, c.round(bg))
	require.Zero(t, c.PrefixIdentity(netip.MustParseAddr("10.42.0.8")))
}
