package ipcache

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatChangesOfThePrefixesIsAsGoodAsAllOfThem(t *testing.T) {
	begin := func() (*IPCache, *fakes) {
		c, f := start(t)
		c.SetPolicyPrefixes(map[netip.Prefix]bool{pfx("203.0.113.0/24"): true, pfx("10.0.0.0/8"): false, pfx("2001:db8::/32"): true})
		c.UpsertMetadata(pfx("10.0.0.1/32"), SourceKubernetes, "pod/a", pod("a"))
		run(t, c)
		sync1(t, c)
		f.dialogue()
		return c, f
	}
	c, f := begin()
	c.SetPolicyPrefixes(map[netip.Prefix]bool{pfx("10.0.0.0/8"): true, pfx("2001:db8::/32"): true, pfx("198.51.100.7/32"): false})
	sync1(t, c)
	d, g := begin()
	d.ChangePolicyPrefixes(map[netip.Prefix]bool{pfx("10.0.0.0/8"): true, pfx("198.51.100.7/32"): false}, []netip.Prefix{pfx("203.0.113.0/24"), pfx("192.0.2.0/24")})
	sync1(t, d)
	require.ElementsMatch(t, f.dialogue(), g.dialogue())
	for _, a := range []string{"203.0.113.9", "10.0.0.1", "10.0.0.2", "2001:db8::1", "198.51.100.7"} {
		x, y := c.Lookup(netip.MustParseAddr(a)), d.Lookup(netip.MustParseAddr(a))
		require.Equal(t, x.PrefixIdentity == 0, y.PrefixIdentity == 0, a)
		require.Equal(t, x.Identity.IsReserved(), y.Identity.IsReserved(), a)
	}
}
