package creator

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/types"
)

func good() Request {
	return Request{
		ContainerID: "c1", ContainerInterface: "eth0", NetNS: "/run/netns/a", HostInterface: "lxc0123456789ab", HostIfIndex: 7,
		MAC: types.MAC{2, 0, 0, 0, 0, 1}, HostMAC: types.MAC{2, 0, 0, 0, 0, 2},
		IPv4: netip.MustParseAddr("10.0.0.1"), IPv6: netip.MustParseAddr("fd00::1"),
		PodNamespace: "shop", PodName: "api", PodUID: "u1",
	}
}

func TestValidateNamesTheField(t *testing.T) {
	r := good()
	require.NoError(t, r.Validate())
	for _, c := range []struct {
		field string
		spoil func(*Request)
	}{
		{"container-id", func(r *Request) { r.ContainerID = "" }},
		{"container-id", func(r *Request) { r.ContainerID = "a:b" }},
		{"container-interface-name", func(r *Request) { r.ContainerInterface = "" }},
		{"container-interface-name", func(r *Request) { r.ContainerInterface = "sixteen-letters-" }},
		{"interface-name", func(r *Request) { r.HostInterface = "a/b" }},
		{"interface-index", func(r *Request) { r.HostIfIndex = 0 }},
		{"mac", func(r *Request) { r.MAC = types.MAC{} }},
		{"host-mac", func(r *Request) { r.HostMAC = types.MAC{} }},
		{"addressing", func(r *Request) { r.IPv4, r.IPv6 = netip.Addr{}, netip.Addr{} }},
		{"addressing.ipv4", func(r *Request) { r.IPv4 = netip.MustParseAddr("fd00::2") }},
		{"addressing.ipv4", func(r *Request) { r.IPv4 = netip.MustParseAddr("127.0.0.1") }},
		{"addressing.ipv6", func(r *Request) { r.IPv6 = netip.MustParseAddr("::ffff:10.0.0.1") }},
		{"addressing.ipv6", func(r *Request) { r.IPv6 = netip.MustParseAddr("fe80::1") }},
		{"pod-name", func(r *Request) { r.PodName = "a/b" }},
		{"labels", func(r *Request) { r.Labels = map[string]string{"reserved:host": ""} }},
		{"labels", func(r *Request) { r.Labels = map[string]string{"": "x"} }},
	} {
		r := good()
		c.spoil(&r)
		var invalid *InvalidError
		require.ErrorAs(t, r.Validate(), &invalid, c.field)
		require.Equal(t, c.field, invalid.Field)
		require.NotEmpty(t, invalid.Reason)
	}
}

// fakeRegistry knows one endpoint.
type fakeRegistry struct {
	cfg     endpoint.Config
	e       *endpoint.Endpoint
	deleted []string
	fail    error
}

func (f *fakeRegistry) Create(_ context.Context, row endpoint.Row) (*endpoint.Endpoint, bool, error) {
	if f.fail != nil {
		return nil, false, f.fail
	}
	if f.e != nil {
		return f.e, false, nil
	}
	row.ID = 1
	e, err := endpoint.New(f.cfg, row)
	f.e = e
	return e, true, err
}

func (f *fakeRegistry) Delete(_ context.Context, e *endpoint.Endpoint, reason string) error {
	f.deleted = append(f.deleted, reason)
	e.BeginDelete(reason)
	return nil
}

type fakeLabels struct {
	err   error
	calls int
}

func (f *fakeLabels) Attach(context.Context, *endpoint.Endpoint) error {
	f.calls++
	return f.err
}

func newScene(t *testing.T) (*Creator, *fakeRegistry, *fakeLabels) {
	log := slog.New(slog.DiscardHandler)
	keeper := endpoint.NewIdentityKeeper(log, nil, nil)
	reg := &fakeRegistry{cfg: endpoint.Config{Logger: log, StateDir: t.TempDir(), Queue: endpoint.NewBuildQueue(1), Identities: keeper}}
	t.Cleanup(func() {
		if reg.e != nil {
			reg.e.Close()
		}
		keeper.Close()
	})
	meta := &fakeLabels{}
	return New(log, reg, meta), reg, meta
}

func TestAnInvalidRequestReachesNobody(t *testing.T) {
	c, reg, meta := newScene(t)
	r := good()
	r.ContainerID = ""
	_, _, err := c.Create(t.Context(), r)
	var invalid *InvalidError
	require.ErrorAs(t, err, &invalid)
	require.Nil(t, reg.e)
	require.Zero(t, meta.calls)
}

func TestTheSameRequestAgainReturnsTheSameEndpoint(t *testing.T) {
	c, _, meta := newScene(t)
	a, created, err := c.Create(t.Context(), good())
	require.NoError(t, err)
	require.True(t, created)
	b, created, err := c.Create(t.Context(), good())
	require.NoError(t, err)
	require.False(t, created)
	require.Same(t, a, b)
	require.Equal(t, 1, meta.calls, "labels are fetched once")
	require.Equal(t, "lxc0123456789ab", a.Row().HostInterface)
	require.Equal(t, endpoint.Pod{Namespace: "shop", Name: "api", UID: "u1"}, a.Row().Pod)
}

func TestAFailureTakesANewEndpointBackAndLeavesAnOldOneAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, reg, meta := newScene(t)
		meta.err = errors.New("no labels")
		_, _, err := c.Create(t.Context(), good())
		require.ErrorIs(t, err, meta.err)
		require.Len(t, reg.deleted, 1)

		c, reg, _ = newScene(t)
		_, _, err = c.Create(t.Context(), good())
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r := good()
		r.Wait = true
		_, _, err = c.Create(ctx, r)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "endpoint 1 is not ready")
		require.Empty(t, reg.deleted, "the endpoint was there before")
	})
}

func TestARegistryThatRefusesIsReported(t *testing.T) {
	c, reg, meta := newScene(t)
	reg.fail = errors.New("address 10.0.0.1 belongs to endpoint 9")
	_, _, err := c.Create(t.Context(), good())
	require.ErrorIs(t, err, reg.fail)
	require.Zero(t, meta.calls)
	require.Empty(t, reg.deleted)
}

func (f *fakeLabels) PodNamespace(given string, _ map[string]string) string { return given }
