package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// EnsureNodeAddress gives the node an address of its own in the pods' network,
// on the loopback interface, from which it talks to pods. It is not probed for
// duplicates. changed says that it was not there, or the interface not up.
func EnsureNodeAddress(a netip.Addr) (changed bool, err error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return false, fmt.Errorf("find the loopback interface: %w", err)
	}
	if lo.Attrs().RawFlags&unix.IFF_UP == 0 {
		if err := netlink.LinkSetUp(lo); err != nil {
			return false, fmt.Errorf("set the loopback interface up: %w", err)
		}
		changed = true
	}
	family := netlink.FAMILY_V4
	if a.Is6() {
		family = netlink.FAMILY_V6
	}
	there, err := netlink.AddrList(lo, family)
	if err != nil {
		return changed, fmt.Errorf("list the addresses of the loopback interface: %w", err)
	}
	want := nodeAddress(a)
	if slices.ContainsFunc(there, func(h netlink.Addr) bool { return h.IPNet.String() == want.IPNet.String() }) {
		return changed, nil
	}
	if err := netlink.AddrReplace(lo, want); err != nil {
		return changed, fmt.Errorf("give the node the address %s: %w", a, err)
	}
	return true, nil
}

// RemoveNodeAddress takes the address away; one that is not there is no error.
func RemoveNodeAddress(a netip.Addr) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback interface: %w", err)
	}
	if err := netlink.AddrDel(lo, nodeAddress(a)); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("take the address %s from the node: %w", a, err)
	}
	return nil
}

func nodeAddress(a netip.Addr) *netlink.Addr {
	return &netlink.Addr{
		IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())},
		Scope: unix.RT_SCOPE_UNIVERSE, Flags: unix.IFA_F_NODAD,
	}
}
