package route

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Network is what a link of the node is connected to.
type Network struct {
	Link   string
	Prefix netip.Prefix // longer than one address
}

// Default is a default route of the main table.
type Default struct {
	Link       string
	Via        netip.Addr // next hop; invalid: on the link itself
	V6         bool
	Advertised bool // by a router (RFC 4861)
}

// Networks returns the prefixes of the node's own addresses, without those of one
// address.
func Networks() ([]Network, error) {
	names, _, err := links()
	if err != nil {
		return nil, err
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		addrs, err = netlink.AddrList(nil, netlink.FAMILY_ALL)
	}
	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	var out []Network
	for _, a := range addrs {
		n := a.IPNet
		if a.Peer != nil { // of a point-to-point link
			n = a.Peer
		}
		if p, ok := prefixOf(n); ok && !p.IsSingleIP() {
			out = append(out, Network{names[a.LinkIndex], p.Masked()})
		}
	}
	return out, nil
}

// Defaults returns the node's default routes.
func Defaults() ([]Default, error) {
	names, _, err := links()
	if err != nil {
		return nil, err
	}
	var out []Default
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := listRetry(family, &netlink.Route{Table: MainTable, Type: unix.RTN_UNICAST}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
		if err != nil {
			return nil, fmt.Errorf("list the node's default routes: %w", err)
		}
		for _, r := range routes {
			if p, ok := prefixOf(r.Dst); r.Dst != nil && (!ok || p.Bits() != 0) {
				continue
			}
			hops := r.MultiPath
			if len(hops) == 0 {
				hops = []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw, Via: r.Via}}
			}
			for _, h := range hops {
				out = append(out, Default{Link: names[h.LinkIndex], Via: nextHop(h), V6: family == netlink.FAMILY_V6, Advertised: r.Protocol == unix.RTPROT_RA})
			}
		}
	}
	return out, nil
}

func nextHop(h *netlink.NexthopInfo) netip.Addr {
	a, _ := netip.AddrFromSlice(h.Gw)
	if via, ok := h.Via.(*netlink.Via); ok { // an IPv4 route by an IPv6 router (RFC 5549)
		a, _ = netip.AddrFromSlice(via.Addr)
	}
	return a.Unmap()
}

// LinksUp tells which links of the node are up.
func LinksUp() (map[string]bool, error) {
	names, up, err := links()
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for index, name := range names {
		out[name] = up[index]
	}
	return out, nil
}

func links() (names map[int]string, up map[int]bool, err error) {
	list, err := netlink.LinkList()
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		list, err = netlink.LinkList()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list links: %w", err)
	}
	names, up = map[int]string{}, map[int]bool{}
	for _, l := range list {
		a := l.Attrs()
		names[a.Index], up[a.Index] = a.Name, a.RawFlags&unix.IFF_UP != 0
	}
	return names, up, nil
}

// Overlap is a network of the node that shares addresses with a pool.
type Overlap struct {
	Network
	Gateway bool // the pool takes in the network of the default gateway, or the gateway
}

// Overlaps finds what shares addresses with a pool.
func Overlaps(pool netip.Prefix, networks []Network, defaults []Default) []Overlap {
	var out []Overlap
	for _, n := range networks {
		if !n.Prefix.Overlaps(pool) {
			continue
		}
		gateway := n.Prefix.Bits() >= pool.Bits() && slices.ContainsFunc(defaults, func(d Default) bool { return d.Link == n.Link && d.V6 == pool.Addr().Is6() })
		out = append(out, Overlap{n, gateway})
	}
	for _, d := range defaults {
		if d.Via.IsValid() && pool.Contains(d.Via) {
			out = append(out, Overlap{Network{d.Link, netip.PrefixFrom(d.Via, d.Via.BitLen())}, true})
		}
	}
	return out
}
