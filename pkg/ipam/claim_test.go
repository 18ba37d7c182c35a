package ipam

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestClaimWithALeaseAsksThatTheOwnersLeaseHoldsTheAddresses(t *testing.T) {
	c := &clock{time.Now()}
	m := open(t, Config{Now: c.now})
	l := lease(t, m, Request{Owner: "a", Expiration: true})
	other := lease(t, m, Request{Owner: "b"})
	for _, part := range [][]netip.Addr{l.Addrs(), {l.IPv4}, {l.IPv6}} {
		got, made, err := m.Claim("a", "", l.ID, part...)
		require.NoError(t, err)
		require.False(t, made)
		require.Equal(t, l, got)
	}
	for what, ask := range map[string]struct {
		id   string
		addr netip.Addr
		want error
	}{
		"an address of another lease":  {l.ID, other.IPv4, ErrConflict},
		"the gateway":                  {l.ID, addr("10.0.0.1"), ErrConflict},
		"an address outside the pools": {l.ID, addr("8.8.8.8"), ErrConflict},
		"the lease of another owner":   {other.ID, other.IPv4, ErrInUse},
		"a lease that never was":       {"x", l.IPv4, ErrUnknownLease},
	} {
		_, made, err := m.Claim("a", "", ask.id, ask.addr)
		require.ErrorIs(t, err, ask.want, what)
		require.False(t, made, what)
	}
	c.t = c.t.Add(DefaultExpiration)
	_, _, err := m.Claim("a", "", l.ID, l.IPv4)
	require.ErrorIs(t, err, ErrUnknownLease, "it has expired")
	require.Len(t, m.Leases(), 1)
}

func TestClaimWithoutALeaseLeasesExactlyTheAddresses(t *testing.T) {
	m := open(t, Config{})
	for bad, want := range map[string]error{"10.0.0.1": ErrNotInPool, "10.1.0.254": ErrNotInPool, "8.8.8.8": ErrNotInPool, "10.0.0.7": ErrNotInPool} {
		_, made, err := m.Claim("a", "", "", addr(bad))
		require.ErrorIs(t, err, want, bad)
		require.False(t, made)
	}
	_, _, err := m.Claim("a", "", "")
	require.Error(t, err)
	require.Empty(t, m.Leases())

	l, made, err := m.Claim("a", "ns/a", "", addr("10.1.0.9"))
	require.NoError(t, err)
	require.True(t, made)
	require.Equal(t, []netip.Addr{addr("10.1.0.9")}, l.Addrs(), "and none of the other family")
	require.Equal(t, "small6", l.Pool)
	require.False(t, l.Expires.IsZero(), "until an endpoint takes it over")
	again, made, err := m.Claim("a", "ns/a", "", addr("10.1.0.9"))
	require.NoError(t, err)
	require.False(t, made)
	require.Equal(t, l.ID, again.ID)

	_, _, err = m.Claim("b", "", "", addr("10.1.0.9"))
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, "by a")
	_, err = m.Allocate(bg, Request{Owner: "b", Pool: "small6", Requested: []netip.Addr{addr("10.1.0.9")}})
	require.ErrorIs(t, err, ErrInUse, "a later ADD is not given the same")
	_, _, err = m.Claim("a", "", "", addr("10.1.0.10"))
	require.ErrorIs(t, err, ErrConflict, "one owner has one lease")
	_, _, err = m.Claim("c", "", "", addr("10.1.0.11"), addr("fd00::9"))
	require.ErrorIs(t, err, ErrNotInPool, "addresses of two pools")
	require.Len(t, m.Leases(), 1)
}
