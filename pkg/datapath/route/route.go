package route

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// protocol marks our routes.
const protocol netlink.RouteProtocol = 87

// MainTable is the routing table that needs no rule.
const MainTable = unix.RT_TABLE_MAIN

// Table is the routing table that holds the routes; MainTable as a rule.
type Table int

// Route is one route to a pod.
type Route struct {
	Addr    netip.Addr
	IfIndex int // host side of the veth
}

// Ensure makes addr reachable through the link. It replaces a former route of
// ours to the address; one of somebody else is an error that wraps unix.EEXIST.
// The link must be up, or the error wraps unix.ENETDOWN.
func (t Table) Ensure(addr netip.Addr, ifindex int) error {
	want := t.route(addr, ifindex)
	err := netlink.RouteAdd(want)
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add the route to %s through link %d: %w", addr, ifindex, err)
	}
	there, err := t.lookup(addr)
	if err != nil {
		return err
	}
	same := false
	for _, r := range there {
		if r.Protocol != protocol {
			return fmt.Errorf("add the route to %s through link %d: link %d has one of protocol %s: %w; remove that route or give the pod another address",
				addr, ifindex, r.LinkIndex, r.Protocol, unix.EEXIST)
		}
		same = same || r.LinkIndex == ifindex
	}
	if same && len(there) == 1 {
		return nil
	}
	for _, r := range there { // a replace of an IPv6 route may add a second one beside it
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove the former route to %s through link %d: %w", addr, r.LinkIndex, err)
		}
	}
	if err := netlink.RouteReplace(want); err != nil {
		return fmt.Errorf("move the route to %s to link %d: %w", addr, ifindex, err)
	}
	return nil
}

// Remove takes our route to addr away; none is no error.
func (t Table) Remove(addr netip.Addr) error {
	there, err := t.lookup(addr)
	if err != nil {
		return err
	}
	for _, r := range there {
		if r.Protocol != protocol {
			continue
		}
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove the route to %s: %w", addr, err)
		}
	}
	return nil
}

// List returns all our routes in the table, IPv4 first.
func (t Table) List() ([]Route, error) {
	var out []Route
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		filter := &netlink.Route{Table: int(t), Protocol: protocol}
		routes, err := listRetry(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			return nil, fmt.Errorf("list routes to pods: %w", err)
		}
		for _, r := range routes {
			if addr, ok := hostAddr(r.Dst); ok && r.Type == unix.RTN_UNICAST {
				out = append(out, Route{addr, r.LinkIndex})
			}
		}
	}
	return out, nil
}

func (t Table) route(addr netip.Addr, ifindex int) *netlink.Route {
	return &netlink.Route{
		LinkIndex: ifindex, Dst: hostNet(addr), Scope: netlink.SCOPE_LINK, Table: int(t), Protocol: protocol,
	}
}

// lookup returns all routes to exactly addr.
func (t Table) lookup(addr netip.Addr) ([]netlink.Route, error) {
	family := netlink.FAMILY_V4
	if addr.Is6() {
		family = netlink.FAMILY_V6
	}
	filter := &netlink.Route{Table: int(t), Dst: hostNet(addr)}
	routes, err := listRetry(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
	if err != nil {
		return nil, fmt.Errorf("look up the route to %s: %w", addr, err)
	}
	ofPool := func(r netlink.Route) bool { return r.Protocol == protocol && r.Type == unix.RTN_UNREACHABLE } // a pool of one address
	return slices.DeleteFunc(routes, ofPool), nil
}

// listRetry lists again when routes changed during the dump.
func listRetry(family int, filter *netlink.Route, mask uint64) ([]netlink.Route, error) {
	const tries = 5
	var routes []netlink.Route
	var err error
	for range tries {
		if routes, err = netlink.RouteListFiltered(family, filter, mask); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return routes, err
}

func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

func hostAddr(n *net.IPNet) (netip.Addr, bool) {
	p, ok := prefixOf(n)
	return p.Addr(), ok && p.IsSingleIP()
}
