package node

import (
	"net/netip"
	"testing"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/testutils"
)

// The agent gives out an address once, whoever asks for it and how.
func TestAnEndpointNeedsAddressesOfItsOwn(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, stranger := trio(t, env)
	of := endpointOf(t, b, web)
	status, err := b.Agent.IPAM(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var gateway, webLease string
	for _, l := range status.Leases {
		if l.Ipv4 == of.Addressing.Ipv4 {
			gateway, webLease = l.Gateway4, l.ID
		}
	}
	leases := len(status.Leases)
	request := func(addr, lease string) error {
		_, _, err := b.Agent.PutEndpoint(t.Context(), gen.EndpointRequest{
			ContainerID: "other", Netns: string(web.Netns), Labels: map[string]string{"a": "b"}, Sync: true, TimeoutSeconds: 5,
			Interface:  gen.Interface{HostName: of.Interface.HostName, HostIndex: of.Interface.HostIndex, ContainerName: "eth0", Mac: "02:00:00:00:00:01", HostMac: "02:00:00:00:00:02"},
			Addressing: gen.Addressing{Ipv4: addr}, LeaseID: lease,
		})
		return err
	}
	for what, c := range map[string]struct {
		addr, lease string
		code        v1.Code
	}{
		"the gateway":                       {gateway, "", v1.CodeInvalid},
		"outside the pools":                 {"8.8.8.8", "", v1.CodeInvalid},
		"that of a pod":                     {of.Addressing.Ipv4, "", v1.CodeConflict},
		"that of a pod, with its lease":     {of.Addressing.Ipv4, webLease, v1.CodeConflict},
		"a free one, on the link of a pod":  {"10.78.0.77", "", v1.CodeConflict},
		"a free one, with a lease that was": {"10.78.0.77", "gone", v1.CodeNotFound},
	} {
		if err := request(c.addr, c.lease); v1.CodeOf(err) != c.code {
			t.Errorf("%s (%s): %v", what, c.addr, err)
		}
	}
	for _, lease := range []string{"", webLease} {
		if err := b.Agent.Release(t.Context(), netip.MustParseAddr(of.Addressing.Ipv4), lease); v1.CodeOf(err) != v1.CodeConflict {
			t.Errorf("the lease of a running pod is released: %v", err)
		}
	}
	if status, err = b.Agent.IPAM(t.Context()); err != nil || len(status.Leases) != leases {
		t.Errorf("%d leases of %d after the refusals: %v", len(status.Leases), leases, err)
	}
	expect(t, b, "after the refusals", web, client, stranger)
}
