package cmd

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"

	"github.com/weirnet/weir/api/v1/gen"
)

// check compares an attachment with the result of its ADD, and asks the agent
// whether the endpoint works.
func (p *plugin) check(ctx context.Context, r *run) error {
	want, err := readPrevResult(r.conf)
	if err != nil {
		return err
	}
	n, err := openNetns(r.args.Netns)
	if err != nil {
		return types.NewError(types.ErrInvalidNetNS, err.Error(), "see whether the container's sandbox still exists")
	}
	defer n.Close()
	if problems := r.compare(n, want); len(problems) > 0 {
		return types.NewError(codeDiffers, r.args.IfName+" is not as ADD left it: "+strings.Join(problems, "; "),
			"delete the pod, or find out what changes its network namespace")
	}
	health, err := r.client.EndpointHealth(ctx, r.attachment())
	if err != nil {
		return types.NewError(codeHealthQuery, err.Error(), "run weir endpoint list")
	}
	if health.Overall == gen.StateFailing || !health.Connected {
		return types.NewError(codeUnhealthy, fmt.Sprintf("the endpoint is %s (programs %s, policy %s, connected %t): %s",
			health.Overall, health.Bpf, health.Policy, health.Connected, health.Message), health.Next)
	}
	return nil
}

// compare lists the differences between the kernel and the result of ADD.
func (r *run) compare(n *podNetns, want *result) []string {
	var out []string
	problem := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	dev, err := n.nl.LinkByName(r.args.IfName)
	if err != nil {
		return []string{fmt.Sprintf("the pod has no interface %s: %v", r.args.IfName, err)}
	}
	host, err := netlink.LinkByName(r.hostName())
	if err != nil {
		return []string{fmt.Sprintf("the node has no interface %s: %v", r.hostName(), err)}
	}
	if host.Attrs().ParentIndex != dev.Attrs().Index || dev.Attrs().ParentIndex != host.Attrs().Index {
		problem("%s and %s are no pair", r.hostName(), r.args.IfName)
	}
	if dev.Attrs().Flags&1 == 0 { // net.FlagUp
		problem("%s is down", r.args.IfName)
	}
	listed := false
	for _, i := range want.Interfaces {
		if i.Name != r.args.IfName || i.Sandbox == "" {
			continue
		}
		listed = true
		if have := dev.Attrs().HardwareAddr.String(); !strings.EqualFold(have, i.Mac) {
			problem("the hardware address is %s, ADD gave %s", have, i.Mac)
		}
		if i.Mtu != 0 && i.Mtu != dev.Attrs().MTU {
			problem("the MTU is %d, ADD gave %d", dev.Attrs().MTU, i.Mtu)
		}
	}
	if !listed {
		problem("the result of ADD does not name it")
	}
	have, err := n.nl.AddrList(dev, netlink.FAMILY_ALL)
	if err != nil {
		problem("its addresses cannot be listed: %v", err)
	}
	for _, ip := range want.IPs {
		if !slices.ContainsFunc(have, func(a netlink.Addr) bool { return a.IP.Equal(ip.Address.IP) }) {
			problem("the address %s is missing", ip.Address.IP)
		}
	}
	return append(out, missingRoutes(n, dev, want)...)
}

// missingRoutes lists the routes of the result that the pod does not have.
func missingRoutes(n *podNetns, dev netlink.Link, want *result) []string {
	have, err := n.nl.RouteList(dev, netlink.FAMILY_ALL)
	if err != nil {
		return []string{fmt.Sprintf("the pod's routes cannot be listed: %v", err)}
	}
	var out []string
	for _, w := range want.Routes {
		if !slices.ContainsFunc(have, func(h netlink.Route) bool { return sameDst(h, w) && h.Gw.Equal(w.GW) }) {
			out = append(out, fmt.Sprintf("the route to %s through %s is missing", w.Dst.String(), w.GW))
		}
	}
	return out
}

// sameDst compares destinations; the kernel tells a default route as nil or as
// the zero prefix.
func sameDst(h netlink.Route, w *types.Route) bool {
	ones, _ := w.Dst.Mask.Size()
	if h.Dst == nil {
		return ones == 0 && (h.Gw.To4() != nil) == (w.Dst.IP.To4() != nil)
	}
	a, okA := netip.AddrFromSlice(h.Dst.IP)
	b, okB := netip.AddrFromSlice(w.Dst.IP)
	haveOnes, _ := h.Dst.Mask.Size()
	return okA && okB && a.Unmap() == b.Unmap() && haveOnes == ones
}
