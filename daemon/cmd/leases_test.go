package cmd

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/pkg/api"
	endpointapi "github.com/weirnet/weir/pkg/endpoint/api"
	"github.com/weirnet/weir/pkg/ipam"
)

func testLeases(t *testing.T, used map[string]uint16) *leases {
	m, err := ipam.New(ipam.Config{Pools: map[string]ipam.PoolConfig{
		defaultPool: {V4: netip.MustParsePrefix("10.0.0.0/24"), V6: netip.MustParsePrefix("fd00::/64")},
	}})
	require.NoError(t, err)
	return &leases{IPAM: m, user: func(a netip.Addr) uint16 { return used[a.String()] }}
}

func TestTheAddressOfAnEndpointIsNotReleased(t *testing.T) {
	used := map[string]uint16{}
	l := testLeases(t, used)
	lease, err := l.Allocate(t.Context(), api.LeaseRequest{Owner: "c:eth0"})
	require.NoError(t, err)
	used[lease.Ipv6] = 7
	v4 := netip.MustParseAddr(lease.Ipv4)
	for _, id := range []string{"", lease.ID} {
		err = l.Release(t.Context(), v4, id)
		require.Equal(t, v1.CodeConflict, v1.CodeOf(err), "the other family is in use")
		require.ErrorContains(t, err, "endpoint 7 has "+lease.Ipv6)
	}
	require.Len(t, l.IPAM.Leases(), 1)
	require.NoError(t, l.Release(t.Context(), v4, "an earlier lease"), "nothing of it is left")
	require.Len(t, l.IPAM.Leases(), 1)
	delete(used, lease.Ipv6)
	require.NoError(t, l.Release(t.Context(), v4, ""))
	require.Empty(t, l.IPAM.Leases())
}

func TestAnEndpointGetsNoAddressThatIsNotLeasedToIt(t *testing.T) {
	l := testLeases(t, nil)
	other, err := l.Allocate(t.Context(), api.LeaseRequest{Owner: "other:eth0"})
	require.NoError(t, err)
	ask := func(lease string, addr string) (string, bool, error) {
		return l.claim(endpointapi.Request{ContainerID: "c", IfName: "eth0", PodNamespace: "a", PodName: "b", LeaseID: lease, IPv4: netip.MustParseAddr(addr)})
	}
	for what, c := range map[string]struct {
		lease, addr, field string
		code               v1.Code
	}{
		"the gateway":           {"", "10.0.0.1", "addressing", v1.CodeInvalid},
		"outside the pools":     {"", "8.8.8.8", "addressing", v1.CodeInvalid},
		"somebody else's":       {"", other.Ipv4, "addressing", v1.CodeConflict},
		"somebody else's lease": {other.ID, other.Ipv4, "leaseId", v1.CodeConflict},
		"no such lease":         {"x", "10.0.0.9", "leaseId", v1.CodeNotFound},
	} {
		_, made, err := ask(c.lease, c.addr)
		require.Equal(t, c.code, v1.CodeOf(err), what)
		require.ErrorContains(t, err, "field "+c.field+": ", what)
		require.False(t, made)
	}
	id, made, err := ask("", "10.0.0.9")
	require.NoError(t, err)
	require.True(t, made)
	again, made, err := ask(id, "10.0.0.9")
	require.NoError(t, err)
	require.False(t, made)
	require.Equal(t, id, again)
	require.NoError(t, l.confirm(id))
	for _, held := range l.IPAM.Leases() {
		if held.ID == id {
			require.Equal(t, "c:eth0", held.Owner)
			require.Equal(t, "a/b", held.Pod)
			require.Zero(t, held.Expires)
		}
	}
}
