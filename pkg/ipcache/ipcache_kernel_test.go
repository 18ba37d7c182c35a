package ipcache

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/maps/ipcachemap"
	"github.com/weirnet/weir/pkg/testutils"
)

func TestKernelResolvesAddressesAsTheCacheDoes(t *testing.T) {
	env := testutils.Kernel(t)
	m, err := ipcachemap.OpenOrCreate(bpf.Root{Path: env.BPFRoot}, 4096)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(m.Map().Unpin(), m.Close())) })
	c, f := start(t, func(cfg *Config) { cfg.Kernel = m })
	c.setPolicyPrefixes(map[netip.Prefix]bool{pfx("10.0.0.0/8"): true, pfx("10.0.0.0/24"): false, pfx("2001:db8::/32"): true})
	c.UpsertMetadata(pfx("10.0.0.7/32"), SourceKubernetes, "pod/a", pod("a"))
	c.UpsertMetadata(pfx("2001:db8::7/128"), SourceKubernetes, "pod/a", pod("a"))
	run(t, c)
	sync1(t, c)
	check := func() {
		for _, s := range []string{"10.0.0.7", "10.0.0.8", "10.9.9.9", "192.0.2.1", "2001:db8::7", "2001:db8::8", "fd00::1"} {
			e, found, err := m.Lookup(netip.MustParseAddr(s))
			require.NoError(t, err)
			want := c.Lookup(netip.MustParseAddr(s))
			require.Equal(t, want.Prefix.IsValid(), found, s)
			if found {
				require.Equal(t, ipcachemap.Entry{Identity: uint32(want.Identity), PrefixIdentity: uint32(want.PrefixIdentity)}, e, s)
			}
		}
	}
	check()
	require.EqualValues(t, f.number(t, "k8s:app=a"), c.Lookup(netip.MustParseAddr("10.0.0.7")).Identity)
	c.setPolicyPrefixes(map[netip.Prefix]bool{pfx("10.0.0.0/24"): true})
	c.RemoveMetadata(pfx("2001:db8::7/128"), "pod/a")
	sync1(t, c)
	check()
	left, err := m.Dump()
	require.NoError(t, err)
	require.Len(t, left, 2)
}
