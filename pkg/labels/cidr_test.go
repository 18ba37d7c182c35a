package labels

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestCIDRLabel(t *testing.T) {
	for in, key := range map[string]string{
		"10.1.2.3/8":           "10.0.0.0/8",
		"0.0.0.0/0":            "0.0.0.0/0",
		"::/0":                 "0--0/0",
		"::1/128":              "0--1/128",
		"fe80::/10":            "fe80--0/10",
		"2001:db8::5/128":      "2001-db8--5/128",
		"::ffff:10.0.0.1/104":  "10.0.0.0/8",
		"2001:db8:1:2:3:4:5::": "2001-db8-1-2-3-4-5-0/128",
	} {
		p, err := netip.ParsePrefix(in)
		if err != nil {
			p = netip.PrefixFrom(netip.MustParseAddr(in), 128)
		}
		require.Equal(t, Label{SourceCIDR, key, ""}, CIDRLabel(p), in)
	}
	require.Equal(t, Label{}, CIDRLabel(netip.Prefix{}))
	require.Equal(t, Label{}, CIDRLabel(netip.PrefixFrom(netip.MustParseAddr("10.0.0.1"), 33)))
}

func TestPrefixOfALabel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a netip.Addr
		if rapid.Bool().Draw(t, "v4") {
			a = netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "addr")))
		} else {
			group := rapid.SampledFrom([]byte{0, 0, 0, 1, 0xff})
			a = netip.AddrFrom16([16]byte(rapid.SliceOfN(group, 16, 16).Draw(t, "addr")))
		}
		p := netip.PrefixFrom(a, rapid.IntRange(0, a.BitLen()).Draw(t, "bits"))
		got, ok := CIDRLabel(p).Prefix()
		require.True(t, ok)
		require.Equal(t, CanonicalPrefix(p), got)
	})
	for _, l := range []Label{
		{"k8s", "10.0.0.0/8", ""}, {"cidr", "10.0.0.1/8", ""}, {"cidr", "10.0.0.0/8", "x"}, {"cidr", "10.0.0.0", ""},
		{"cidr", "::/0", ""}, {"cidr", "x", ""}, {"cidr", "10.0.0.0/33", ""},
	} {
		_, ok := l.Prefix()
		require.False(t, ok, "%v", l)
	}
}

func TestWorld(t *testing.T) {
	require.True(t, NewLabelArray(Reserved(NameWorldIPv6)).HasWorld())
	require.True(t, NewLabelArray(WorldLabel(netip.MustParseAddr("::ffff:1.2.3.4"))).HasReserved(NameWorldIPv4))
	p := netip.MustParsePrefix("10.0.0.0/8")
	a := NewLabelArray(CIDRLabel(p))
	require.False(t, a.HasWorld())
	got, ok := a.Prefix()
	require.True(t, ok)
	require.Equal(t, p, got)
}

func FuzzPrefixOfALabel(f *testing.F) {
	f.Add("10.0.0.0/8")
	f.Add("0--0/0")
	f.Fuzz(func(t *testing.T, key string) {
		l := Label{Source: SourceCIDR, Key: key}
		if p, ok := l.Prefix(); ok && CIDRLabel(p) != l {
			t.Fatalf("%q gave %v, whose label is %v", key, p, CIDRLabel(p))
		}
	})
}
