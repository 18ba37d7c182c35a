package pool

import (
	"math"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func make1(t require.TestingT, prefix, gateway string) *Pool {
	var gw netip.Addr
	if gateway != "" {
		gw = netip.MustParseAddr(gateway)
	}
	p, err := New("x", netip.MustParsePrefix(prefix), gw)
	require.NoError(t, err)
	return p
}

func TestWhatIsHandedOut(t *testing.T) {
	for _, c := range []struct {
		name, prefix, gateway string
		want                  []string
	}{
		{"IPv4 without network, gateway and broadcast", "10.0.0.0/29", "", []string{"10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"}},
		{"another gateway", "10.0.0.0/29", "10.0.0.6", []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"}},
		{"a gateway outside the prefix", "10.0.0.0/30", "169.254.1.1", []string{"10.0.0.1", "10.0.0.2"}},
		{"the network address as gateway costs nothing", "10.0.0.0/30", "10.0.0.0", []string{"10.0.0.1", "10.0.0.2"}},
		{"a /31 has two addresses", "10.0.0.0/31", "", []string{"10.0.0.1"}},
		{"a /32 with a gateway elsewhere", "10.0.0.7/32", "169.254.1.1", []string{"10.0.0.7"}},
		{"IPv6 without the anycast address", "fd00::/126", "", []string{"fd00::2", "fd00::3"}},
		{"an IPv6 /127", "fd00::/127", "", []string{"fd00::1"}},
		{"the top of the address space", "255.255.255.252/30", "255.255.255.253", []string{"255.255.255.254"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := make1(t, c.prefix, c.gateway)
			for _, want := range c.want {
				a, err := p.Take("o")
				require.NoError(t, err)
				require.Equal(t, want, a.String())
			}
			used, size := p.Size()
			require.EqualValues(t, len(c.want), used)
			require.Equal(t, used, size)
			_, err := p.Take("o")
			require.ErrorIs(t, err, ErrExhausted)
		})
	}
}

func TestExhaustionSaysHowMany(t *testing.T) {
	p := make1(t, "10.0.0.0/24", "")
	for range 253 {
		_, err := p.Take("o")
		require.NoError(t, err)
	}
	_, err := p.Take("o")
	require.EqualError(t, err, "pool x exhausted: 253 of 253")
	p = make1(t, "10.0.0.0/24", "169.254.1.1")
	for range 254 {
		_, err := p.Take("o")
		require.NoError(t, err)
	}
	_, err = p.Take("o")
	require.EqualError(t, err, "pool x exhausted: 254 of 254")
}

func TestRefusedPools(t *testing.T) {
	for _, c := range []struct{ prefix, gateway, why string }{
		{"10.0.0.1/24", "", "write 10.0.0.0/24"}, {"10.0.0.0/32", "", "no address beside the gateway"},
		{"10.0.0.0/24", "fd00::1", "not of the family"}, {"fd00::/64", "10.0.0.1", "not of the family"},
	} {
		var gw netip.Addr
		if c.gateway != "" {
			gw = netip.MustParseAddr(c.gateway)
		}
		_, err := New("x", netip.MustParsePrefix(c.prefix), gw)
		require.ErrorContains(t, err, c.why)
	}
	_, err := New("x", netip.Prefix{}, netip.Addr{})
	require.ErrorContains(t, err, "not valid")
}

func TestRequestedAddress(t *testing.T) {
	p := make1(t, "10.0.0.0/29", "")
	require.NoError(t, p.TakeAddr(netip.MustParseAddr("10.0.0.2"), "a"))
	err := p.TakeAddr(netip.MustParseAddr("10.0.0.2"), "b")
	require.ErrorIs(t, err, ErrInUse)
	require.EqualError(t, err, "address 10.0.0.2 in use by a")
	for _, bad := range []string{"10.0.0.0", "10.0.0.1", "10.0.0.7", "10.0.0.8", "10.0.1.2", "fd00::1", "::ffff:10.0.0.3"} {
		require.ErrorIs(t, p.TakeAddr(netip.MustParseAddr(bad), "b"), ErrNotInPool, bad)
	}
	require.ErrorIs(t, p.TakeAddr(netip.Addr{}, "b"), ErrNotInPool)
	a, err := p.Take("b")
	require.NoError(t, err)
	require.Equal(t, "10.0.0.3", a.String(), "what was requested is skipped")
	require.Equal(t, "b", p.used[a])
}

func TestHugePool(t *testing.T) {
	p := make1(t, "fd00::/48", "")
	_, size := p.Size()
	require.EqualValues(t, uint64(math.MaxUint64)-1, size)
	a, err := p.Take("o")
	require.NoError(t, err)
	require.Equal(t, "fd00::2", a.String())
	p = make1(t, "fd00::/64", "")
	_, size = p.Size()
	require.EqualValues(t, uint64(math.MaxUint64)-1, size)
	p = make1(t, "fd00::/65", "")
	_, size = p.Size()
	require.EqualValues(t, uint64(1)<<63-2, size)
}

func TestSearchGoesOnAfterARestart(t *testing.T) {
	p := make1(t, "10.0.0.0/29", "")
	p.SetNext(netip.MustParseAddr("10.0.0.5"))
	p.SetNext(netip.MustParseAddr("10.9.9.9"))
	require.Equal(t, "10.0.0.5", p.Next().String())
	for _, want := range []string{"10.0.0.5", "10.0.0.6", "10.0.0.2"} {
		a, err := p.Take("o")
		require.NoError(t, err)
		require.Equal(t, want, a.String())
	}
}

// The address handed out is never one that was given back later than another
// free one, no two owners share one, and the count is right.
func TestAddressesComeBackAsLateAsPossible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := make1(t, rapid.SampledFrom([]string{"10.0.0.0/29", "10.0.0.0/28", "fd00::/125"}).Draw(t, "prefix"), "")
		_, size := p.Size()
		var freed []netip.Addr // oldest first
		var used []netip.Addr
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch {
			case rapid.Bool().Draw(t, "take"):
				a, err := p.Take("o")
				if uint64(len(used)) == size {
					require.ErrorIs(t, err, ErrExhausted)
					continue
				}
				require.NoError(t, err)
				require.NotContains(t, used, a)
				if i := slices.Index(freed, a); i >= 0 {
					require.Zero(t, i, "an older one is free")
					require.EqualValues(t, size, len(used)+len(freed), "a fresh one is free")
					freed = freed[1:]
				}
				used = append(used, a)
			case len(freed) > 0 && rapid.IntRange(0, 4).Draw(t, "by name") == 0:
				i := rapid.IntRange(0, len(freed)-1).Draw(t, "which")
				require.NoError(t, p.TakeAddr(freed[i], "o"))
				used, freed = append(used, freed[i]), slices.Delete(freed, i, i+1)
			case len(used) > 0:
				i := rapid.IntRange(0, len(used)-1).Draw(t, "which")
				require.True(t, p.Free(used[i]))
				require.False(t, p.Free(used[i]))
				freed, used = append(freed, used[i]), slices.Delete(used, i, i+1)
			}
		}
	})
}

func TestN30WhatIsAvoidedIsNotPickedHoweverThePoolWasUsed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := make1(t, "10.0.0.0/28", "")
		all := make([]netip.Addr, 0, 13)
		for a := netip.MustParseAddr("10.0.0.2"); a.Compare(netip.MustParseAddr("10.0.0.15")) < 0; a = a.Next() {
			all = append(all, a)
		}
		used, avoid := map[netip.Addr]bool{}, []netip.Addr{}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				avoid = rapid.SliceOfN(rapid.SampledFrom(append(all, p.Gateway(), netip.MustParseAddr("10.9.9.9"))), 0, 14).Draw(t, "avoid")
				p.Avoid(avoid)
			case 1:
				a := rapid.SampledFrom(all).Draw(t, "free")
				require.Equal(t, used[a], p.Free(a))
				delete(used, a)
			default:
				a, err := p.Take("o")
				left := slices.ContainsFunc(all, func(a netip.Addr) bool { return !used[a] && !slices.Contains(avoid, a) })
				require.Equal(t, left, err == nil, "%v", err)
				if err == nil {
					require.False(t, used[a] || slices.Contains(avoid, a), "%s", a)
					used[a] = true
				}
			}
		}
	})
}
