package ipcache

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/maps/ipcachemap"
)

var universe = func() (out []netip.Prefix) {
	for _, s := range []string{"0.0.0.0/0", "10.0.0.0/27", "10.0.0.0/28", "10.0.0.0/30", "10.0.0.4/30", "10.0.0.1/32", "10.0.0.2/32", "10.0.0.5/32",
		"10.0.0.16/30", "10.0.0.17/32", "192.0.2.0/24", "192.0.2.1/32", "::/0", "fd00::/126", "fd00::1/128", "fd00::2/128"} {
		out = append(out, pfx(s))
	}
	return out
}()

// probes has an address for every answer that the universe can give.
var probes = []string{"8.8.8.8", "10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.4", "10.0.0.5", "10.0.0.9", "10.0.0.16", "10.0.0.17", "10.0.0.24",
	"192.0.2.1", "192.0.2.2", "fd00::", "fd00::1", "fd00::2", "2001:db8::1"}

// model is the state that a series of calls leads to, kept in the plainest way.
type model struct {
	owners map[netip.Prefix]map[string]string // resource -> app; the strongest source is the greatest resource
	policy map[netip.Prefix]bool
}

// judge resolves an address by scanning everything.
func (m model) judge(a netip.Addr) (who, where labels.LabelArray) {
	longest := func(ok func(netip.Prefix) bool) (best netip.Prefix) {
		for _, p := range universe {
			if p.Contains(a) && ok(p) && (!best.IsValid() || p.Bits() > best.Bits()) {
				best = p
			}
		}
		return best
	}
	if p := longest(func(p netip.Prefix) bool { return len(m.owners[p]) > 0 }); p.IsValid() {
		names := []string{}
		for r := range m.owners[p] {
			names = append(names, r)
		}
		who = pod(m.owners[p][slices.Max(names)]).Labels
		if q := longest(func(q netip.Prefix) bool { return m.policy[q] }); q.IsValid() {
			where = labels.NewLabelArray(labels.CIDRLabel(q))
		}
		return who, where
	}
	if p := longest(func(p netip.Prefix) bool { _, ok := m.policy[p]; return ok }); p.IsValid() {
		who = labels.NewLabelArray(labels.CIDRLabel(p), labels.WorldLabel(a))
		return who, who
	}
	return nil, nil
}

func TestAnyHistoryEndsInTheKernelMapOfItsFacts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, f := start(t)
		for _, call := range []string{"add", "upsert", "delete", "remove"} {
			f.faults[call] = rapid.IntRange(0, 2).Draw(t, call+" faults")
		}
		m := model{owners: map[netip.Prefix]map[string]string{}, policy: map[netip.Prefix]bool{}}
		running := false
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			p := rapid.SampledFrom(universe).Draw(t, "prefix")
			n := rapid.IntRange(0, 2).Draw(t, "owner")
			resource := fmt.Sprint("owner", n)
			switch rapid.SampledFrom([]string{"upsert", "upsert", "remove", "policy", "policy", "wait"}).Draw(t, "step") {
			case "upsert":
				app := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "app")
				if m.owners[p] == nil {
					m.owners[p] = map[string]string{}
				}
				m.owners[p][resource] = app
				c.UpsertMetadata(p, Source(n), resource, pod(app))
			case "remove":
				delete(m.owners[p], resource)
				c.RemoveMetadata(p, resource)
			case "policy":
				if rapid.Bool().Draw(t, "there") {
					m.policy[p] = rapid.Bool().Draw(t, "pods")
				} else {
					delete(m.policy, p)
				}
				c.setPolicyPrefixes(m.policy)
			case "wait":
				if !running {
					running = true
					run(t, c)
				}
				sync1(t, c)
			}
		}
		if !running {
			run(t, c)
		}
		sync1(t, c)
		c.Stop()
		m.compare(t, c, f)
	})
}

func (m model) compare(t *rapid.T, c *IPCache, f *fakes) {
	live := map[string]bool{}
	number := func(a labels.LabelArray) uint32 {
		if a == nil {
			return 0
		}
		id, ok := f.identity.LookupByLabels(a)
		require.True(t, ok, "%s has a number", a)
		return uint32(id.ID)
	}
	for _, s := range probes {
		who, where := m.judge(netip.MustParseAddr(s))
		live[who.Key()], live[where.Key()] = true, true
		want := ipcachemap.Entry{Identity: number(who), PrefixIdentity: number(where)}
		require.Equal(t, want, f.at(s), s)
		got := c.Lookup(netip.MustParseAddr(s))
		if who == nil {
			require.True(t, got.Identity == identity.ReservedWorldIPv4 || got.Identity == identity.ReservedWorldIPv6)
			continue
		}
		require.Equal(t, want, ipcachemap.Entry{Identity: uint32(got.Identity), PrefixIdentity: uint32(got.PrefixIdentity)})
		require.Contains(t, c.usersOf(got.Identity), got.Prefix)
	}
	for p := range f.kernel {
		_, inP := m.policy[p]
		require.True(t, inP || len(m.owners[p]) > 0, "%s has no reason to be in the kernel", p)
	}
	snapshot := f.identity.Snapshot()
	for id := range identity.ReservedIdentities() {
		delete(snapshot, id)
	}
	require.Equal(t, snapshot, f.known, "the policy knows the numbers in use and no others")
	used := map[uint32]bool{}
	for _, e := range f.kernel {
		used[e.Identity], used[e.PrefixIdentity] = true, true
	}
	for id := range snapshot {
		require.True(t, used[uint32(id)], "identity %d is held for nothing", id)
	}
	require.Empty(t, f.broken)
}

func TestTrieAgreesWithAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tr trie[int]
		m := map[netip.Prefix]int{}
		draw := func() netip.Prefix {
			if rapid.Bool().Draw(t, "v4") {
				a := netip.AddrFrom4([4]byte{10, 0, 0, rapid.Byte().Draw(t, "last")})
				return netip.PrefixFrom(a, rapid.SampledFrom([]int{0, 8, 24, 26, 27, 28, 30, 31, 32}).Draw(t, "bits")).Masked()
			}
			a := netip.AddrFrom16([16]byte{0xfd, 7: rapid.ByteRange(0, 3).Draw(t, "mid"), 15: rapid.ByteRange(0, 3).Draw(t, "last")})
			return netip.PrefixFrom(a, rapid.SampledFrom([]int{0, 8, 62, 63, 64, 65, 126, 127, 128}).Draw(t, "bits")).Masked()
		}
		for i := range rapid.IntRange(0, 40).Draw(t, "steps") {
			p := draw()
			if rapid.IntRange(0, 2).Draw(t, "step") > 0 {
				tr.put(p, i)
				m[p] = i
			} else {
				tr.remove(p)
				delete(m, p)
			}
			require.Equal(t, len(m), tr.size)
		}
		p := draw()
		var wantLongest netip.Prefix
		var wantUnder []netip.Prefix
		for q := range m {
			if q.Bits() <= p.Bits() && q.Contains(p.Addr()) && (!wantLongest.IsValid() || q.Bits() > wantLongest.Bits()) {
				wantLongest = q
			}
			if q.Bits() >= p.Bits() && p.Contains(q.Addr()) {
				wantUnder = append(wantUnder, q)
			}
		}
		q, v, ok := tr.longest(p)
		require.Equal(t, wantLongest.IsValid(), ok)
		require.Equal(t, wantLongest, q)
		require.Equal(t, m[wantLongest], v)
		_, has := m[p]
		_, ok = tr.get(p)
		require.Equal(t, has, ok)
		slices.SortFunc(wantUnder, netip.Prefix.Compare)
		var under []netip.Prefix
		tr.under(p, func(q netip.Prefix, _ int) { under = append(under, q) })
		slices.SortFunc(under, netip.Prefix.Compare)
		require.Equal(t, wantUnder, under)
		n := 0
		tr.all(func(q netip.Prefix, v int) { n++; require.Equal(t, m[q], v) })
		require.Equal(t, len(m), n)
		for q := range m {
			tr.remove(q)
		}
		require.Equal(t, trie[int]{}, tr, "nothing is left behind")
	})
}
