package route

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// worst is the metric that loses against every other.
const worst = math.MaxUint32

// EnsureUnreachable ends packets to addresses of a pool that nothing more
// specific reaches, by a route of the worst metric; changed says that it was not
// there.
func (t Table) EnsureUnreachable(pool netip.Prefix) (changed bool, err error) {
	err = netlink.RouteAdd(t.unreachable(pool))
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("add the unreachable route of pool %s: %w", pool, err)
	}
	return true, nil
}

// RemoveUnreachable takes our unreachable routes away, but for those of some
// pools; none is no error.
func (t Table) RemoveUnreachable(but ...netip.Prefix) error {
	pools, err := t.Unreachable()
	if err != nil {
		return err
	}
	keep := map[netip.Prefix]bool{}
	for _, p := range but {
		keep[p] = true
	}
	var errs []error
	for _, p := range pools {
		if keep[p] {
			continue
		}
		if err := netlink.RouteDel(t.unreachable(p)); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("remove the unreachable route of pool %s: %w", p, err))
		}
	}
	return errors.Join(errs...)
}

// Unreachable returns the pools that have an unreachable route of ours.
func (t Table) Unreachable() ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		filter := &netlink.Route{Table: int(t), Protocol: protocol, Type: unix.RTN_UNREACHABLE}
		routes, err := listRetry(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TYPE)
		if err != nil {
			return nil, fmt.Errorf("list the unreachable routes of pools: %w", err)
		}
		for _, r := range routes {
			if p, ok := prefixOf(r.Dst); ok {
				out = append(out, p)
			}
		}
	}
	return out, nil
}

func (t Table) unreachable(pool netip.Prefix) *netlink.Route {
	return &netlink.Route{
		Dst:  &net.IPNet{IP: pool.Addr().AsSlice(), Mask: net.CIDRMask(pool.Bits(), pool.Addr().BitLen())},
		Type: unix.RTN_UNREACHABLE, Priority: worst, Table: int(t), Protocol: protocol,
	}
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if bits == 32 {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, ones), ok && a.BitLen() == bits
}
