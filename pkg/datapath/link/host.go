package link

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/types"
)

// HostPrefix starts the name of every host side.
const HostPrefix = "lxc"

// hashDigits of the SHA-256 follow it; 15 characters are what the kernel allows.
const hashDigits = 12

// ErrNotFound says that a link does not exist (any more).
var ErrNotFound = errors.New("no such link")

// Host is the host side of a pod's veth as the kernel tells it.
type Host struct {
	Name  string
	Index int // of the interface
	MAC   types.MAC
	MTU   int  // bytes
	Up    bool // administratively
	// PeerIndex is the interface index of the other end, in the pod's namespace.
	PeerIndex int
	Mark      Mark
	Marked    bool // its alias says that it is ours
}

// Named reports whether the link has a name as HostName gives it. Others may use
// such names too.
func (h Host) Named() bool { return IsHostName(h.Name) }

// HostName is the name of the host side for an attachment: "lxc" and the first
// 12 hexadecimal digits of the SHA-256 of "containerID:ifName".
func HostName(containerID, ifName string) string {
	sum := sha256.Sum256([]byte(containerID + ":" + ifName))
	return HostPrefix + hex.EncodeToString(sum[:])[:hashDigits]
}

// IsHostName tells whether a link is the host side of a pod by its name.
func IsHostName(name string) bool {
	digits, ok := strings.CutPrefix(name, HostPrefix)
	if !ok || len(digits) != hashDigits {
		return false
	}
	_, err := hex.DecodeString(digits)
	return err == nil && digits == strings.ToLower(digits)
}

// ByName looks a link up; the error wraps ErrNotFound if there is none.
func ByName(name string) (Host, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return Host{}, fmt.Errorf("look up link %s: %w", name, found(err))
	}
	return describe(l), nil
}

// ByIndex looks a link up; the error wraps ErrNotFound if there is none.
func ByIndex(index int) (Host, error) {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return Host{}, fmt.Errorf("look up link %d: %w", index, found(err))
	}
	return describe(l), nil
}

// found puts ErrNotFound in the place of the library's and the kernel's ways to say it.
func found(err error) error {
	var gone netlink.LinkNotFoundError
	if errors.As(err, &gone) || errors.Is(err, unix.ENODEV) {
		return ErrNotFound
	}
	return err
}

func describe(l netlink.Link) Host {
	a := l.Attrs()
	h := Host{Name: a.Name, Index: a.Index, MTU: a.MTU, Up: a.RawFlags&unix.IFF_UP != 0, PeerIndex: a.ParentIndex}
	if len(a.HardwareAddr) == len(h.MAC) {
		h.MAC = types.MAC(a.HardwareAddr)
	}
	h.Mark, h.Marked = ParseMark(a.Alias)
	return h
}

// List returns the veths that are marked as ours, and those that may be by their
// name alone, as of builds that did not mark them.
func List() ([]Host, error) {
	links, err := netlink.LinkList()
	if errors.Is(err, netlink.ErrDumpInterrupted) { // links came or went meanwhile
		links, err = netlink.LinkList()
	}
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var out []Host
	for _, l := range links {
		if h := describe(l); l.Type() == "veth" && (h.Marked || h.Named()) {
			out = append(out, h)
		}
	}
	return out, nil
}

// SetUp lets packets pass. The program's filters must be attached before.
func SetUp(index int) error {
	if err := netlink.LinkSetUp(byIndex(index)); err != nil {
		return fmt.Errorf("set link %d up: %w", index, found(err))
	}
	return nil
}

// SetDown stops all packets.
func SetDown(index int) error {
	if err := netlink.LinkSetDown(byIndex(index)); err != nil {
		return fmt.Errorf("set link %d down: %w", index, found(err))
	}
	return nil
}

// SetSilent takes neighbour discovery and generated IPv6 addresses off a host
// side. CreateVeth has done it; the agent repeats it for a link it adopts.
func SetSilent(index int) error {
	if err := netlink.LinkSetARPOff(byIndex(index)); err != nil {
		return fmt.Errorf("set link %d to NOARP: %w", index, found(err))
	}
	err := netlink.LinkSetIP6AddrGenMode(byIndex(index), addrGenModeNone)
	if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) { // a kernel without IPv6 generates no address either
		return fmt.Errorf("switch off generated IPv6 addresses on link %d: %w", index, found(err))
	}
	return nil
}

// addrGenModeNone is IN6_ADDR_GEN_MODE_NONE of linux/if_link.h.
const addrGenModeNone = 1

// Delete removes a link and with it the peer; one that is gone is no error. It
// takes 16-24 ms, in which other netlink users do not wait.
func Delete(name string) error {
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkDel(l)
	}
	if err = unlessGone(err); err != nil {
		return fmt.Errorf("delete link %s: %w", name, err)
	}
	return nil
}

func unlessGone(err error) error {
	if err == nil || errors.Is(found(err), ErrNotFound) {
		return nil
	}
	return err
}

func byIndex(index int) netlink.Link {
	return &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: index}}
}
