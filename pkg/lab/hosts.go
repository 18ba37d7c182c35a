package lab

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Addresses of the node on the links to outside hosts: RFC 2544 and unique
// local (RFC 4193) space, so that they collide with no pool.
var (
	nodeAddr4 = netip.MustParseAddr("198.18.0.1")
	nodeAddr6 = netip.MustParseAddr("fd00:198:18::1")
)

// NodeAddr is the node's address towards outside hosts of the family of peer.
func NodeAddr(peer netip.Addr) netip.Addr {
	if peer.Is4() {
		return nodeAddr4
	}
	return nodeAddr6
}

// AddHost makes the namespace of an outside host and its link to the node.
// Number is the host's own, from 0; it names the link.
func (l *Lab) AddHost(h Host, number int) error {
	ns, err := NewNetns(filepath.Join(l.dir, "netns", "host-"+h.Name))
	if err != nil {
		return err
	}
	if err := l.linkHost(h, ns, fmt.Sprintf("out%d", number)); err != nil {
		return fmt.Errorf("linking outside host %s: %w", h.Name, err)
	}
	l.Record.Hosts = append(l.Record.Hosts, &AttachedHost{Host: h, Netns: ns})
	return l.save()
}

func (l *Lab) linkHost(h Host, ns Netns, name string) error {
	file, err := netnsFD(ns)
	if err != nil {
		return err
	}
	defer unix.Close(file)
	err = l.Node().Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(file)}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("making veth %s: %w", name, err)
		}
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		return reachHost(link, h)
	})
	if err != nil {
		return err
	}
	return ns.Do(func() error { return configureHost(h) })
}

// reachHost gives the node's side its addresses and the routes to the host.
func reachHost(link netlink.Link, h Host) error {
	for _, a := range h.Addresses {
		node := &netlink.Addr{IPNet: single(NodeAddr(a)), Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrReplace(link, node); err != nil {
			return fmt.Errorf("address %s: %w", node.IPNet, err)
		}
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: single(a), Scope: netlink.SCOPE_LINK}
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("route to %s: %w", a, err)
		}
	}
	return nil
}

// configureHost gives the host its addresses and the node as its gateway.
func configureHost(h Host) error {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	for _, a := range h.Addresses {
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: single(a), Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("address %s: %w", a, err)
		}
		any := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
		if a.Is6() {
			any = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
		}
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: any, Gw: NodeAddr(a).AsSlice(), Flags: int(netlink.FLAG_ONLINK)}
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("default route via %s: %w", NodeAddr(a), err)
		}
	}
	return nil
}

func single(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

func netnsFD(ns Netns) (int, error) {
	fd, err := unix.Open(string(ns), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("opening network namespace %s: %w", ns, err)
	}
	return fd, nil
}

// loopbackUp sets lo up in the calling thread's namespace.
func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding the loopback interface: %w", err)
	}
	return netlink.LinkSetUp(lo)
}
