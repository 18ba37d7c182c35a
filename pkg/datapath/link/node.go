package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// EnsureNodeAddress gives the node an address of its own in the pods' network,
// on the loopback interface, from which it talks to pods. It is not probed for
// duplicates. An address that is there already is no error.
func EnsureNodeAddress(a netip.Addr) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback interface: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set the loopback interface up: %w", err)
	}
	if err := netlink.AddrReplace(lo, nodeAddress(a)); err != nil {
		return fmt.Errorf("give the node the address %s: %w", a, err)
	}
	return nil
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
