package cmd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	cnitypes "github.com/containernetworking/cni/pkg/types"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/datapath/link"
	"github.com/weirnet/weir/pkg/types"
)

// check compares an attachment with the result of its ADD, and asks the agent
// whether the endpoint works.
func (p *plugin) check(ctx context.Context, r *run) error {
	prev, err := readPrevResult(r.conf)
	if err != nil {
		return err
	}
	n, err := openNetns(r.args.Netns)
	if err != nil {
		return cnitypes.NewError(cnitypes.ErrInvalidNetNS, err.Error(), "see whether the container's sandbox still exists")
	}
	defer n.Close()
	want, err := r.expected(n, prev)
	if err != nil {
		return err
	}
	_, found, err := r.links.leftover(ctx, n, r.hostName(), r.args.IfName)
	if err == nil && !found {
		err = fmt.Errorf("the node has no interface %s", r.hostName())
	}
	if err = errors.Join(err, link.CheckPod(ctx, want)); err != nil {
		return cnitypes.NewError(codeDiffers, r.args.IfName+" is not as ADD left it: "+err.Error(),
			"delete the pod, or find out what changes its network namespace")
	}
	r.noteNetwork(ctx)
	health, err := r.client.EndpointHealth(ctx, r.attachment())
	if err != nil {
		return cnitypes.NewError(codeHealthQuery, err.Error(), "run weir endpoint list")
	}
	if health.Overall == gen.StateFailing || !health.Connected {
		return cnitypes.NewError(codeUnhealthy, fmt.Sprintf("the endpoint is %s (programs %s, policy %s, connected %t): %s",
			health.Overall, health.Bpf, health.Policy, health.Connected, health.Message), health.Next)
	}
	return nil
}

// noteNetwork tells an agent whose record of the attachment is of a former build of
// which network it is: until then GC leaves it alone.
func (r *run) noteNetwork(ctx context.Context) {
	e, err := r.client.Endpoint(ctx, r.attachment())
	if err == nil && e.Network == "" {
		_, err = r.client.ChangeEndpoint(ctx, r.attachment(), gen.EndpointSettings{Network: r.conf.Name})
	}
	if err != nil {
		r.log.Warn("the network of the attachment could not be noted", "network", r.conf.Name, "error", err)
	}
}

// expected is the pod's end as the result of ADD describes it.
func (r *run) expected(n *podNetns, prev *result) (link.Pod, error) {
	want := link.Pod{NetNS: n.fd(), IfName: r.args.IfName}
	listed := -1
	for i, f := range prev.Interfaces {
		if f.Name != r.args.IfName || f.Sandbox == "" {
			continue
		}
		mac, err := types.ParseMAC(f.Mac)
		if err != nil {
			return want, badConfig("field prevResult.interfaces[%d].mac: %v", i, err)
		}
		listed, want.MAC, want.MTU = i, mac, f.Mtu
	}
	if listed < 0 {
		return want, badConfig("field prevResult.interfaces: %s in the container is not listed", r.args.IfName)
	}
	for i, ip := range prev.IPs {
		if ip.Interface != nil && *ip.Interface != listed {
			continue
		}
		a, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			return want, badConfig("field prevResult.ips[%d].address: is no IP address", i)
		}
		want.Addrs = append(want.Addrs, a.Unmap())
	}
	return want, nil
}
