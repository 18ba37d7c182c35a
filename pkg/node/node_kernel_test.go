package node

import (
	"context"
	"log/slog"
	"net"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/pkg/workload"
)

func TestAddressesOfTheNamespaceBecomeHost(t *testing.T) {
	testutils.Kernel(t)
	tables, err := workload.NewTables(statedb.New())
	require.NoError(t, err)
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "n0"}, PeerName: "n1"}
	require.NoError(t, netlink.LinkAdd(veth))
	defer func() { require.NoError(t, netlink.LinkDel(veth)) }()
	add := func(ip string, bits, of int) *netlink.Addr {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(ip), Mask: net.CIDRMask(bits, of)}, Flags: 2 /* IFA_F_NODAD */}
		require.NoError(t, netlink.AddrAdd(veth, a))
		return a
	}
	first := add("192.0.2.1", 24, 32)

	b := &book{m: map[string]string{}}
	n, err := New(Config{Logger: slog.New(slog.DiscardHandler), Name: "n1", Tables: tables, Book: b})
	require.NoError(t, err)
	require.NoError(t, n.Start(context.Background()))
	require.Equal(t, map[string]string{"192.0.2.1/32 node/local": "local host"}, b.m, "loopback is nobody's")

	add("2001:db8::1", 64, 128)
	eventually(t, b.is(map[string]string{"192.0.2.1/32 node/local": "local host", "2001:db8::1/128 node/local": "local host"}), b)
	require.NoError(t, netlink.AddrDel(veth, first))
	eventually(t, b.is(map[string]string{"2001:db8::1/128 node/local": "local host"}), b)
	n.Stop()
}
