package link

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/types"
)

// ErrPodInterfaceExists says that the pod already has an interface of the name.
var ErrPodInterfaceExists = errors.New("the pod has an interface of this name already")

// Pair says how to make a veth pair.
type Pair struct {
	HostName string // name of the host side, see HostName
	PodName  string // name in the pod, for example eth0
	NetNS    int    // descriptor of the pod's network namespace
	HostMAC  types.MAC
	PodMAC   types.MAC
	MTU      int // bytes, of both ends
	Mark     Mark
}

// NewMAC returns a random locally administered unicast address.
func NewMAC() types.MAC {
	var m types.MAC
	rand.Read(m[:]) // never fails (crypto/rand, Go 1.24)
	m[0] = m[0]&^0x01 | 0x02
	return m
}

// CreateVeth makes a pair whose peer is in the pod's namespace from the start.
// Both ends are down. If either name is taken the error says which. On failure
// nothing is left.
func CreateVeth(ctx context.Context, p Pair) (Host, error) {
	if err := ctx.Err(); err != nil {
		return Host{}, fmt.Errorf("make the veth pair %s: %w", p.HostName, err)
	}
	if p.HostMAC.IsZero() || p.PodMAC.IsZero() || p.MTU <= 0 {
		return Host{}, fmt.Errorf("make the veth pair %s: both hardware addresses and an MTU must be given", p.HostName)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = p.HostName, p.MTU, net.HardwareAddr(p.HostMAC[:])
	veth := &netlink.Veth{
		LinkAttrs: attrs, PeerName: p.PodName, PeerHardwareAddr: net.HardwareAddr(p.PodMAC[:]),
		PeerNamespace: netlink.NsFd(p.NetNS), PeerMTU: uint32(p.MTU),
	}
	err := netlink.LinkAdd(veth)
	if errors.Is(err, unix.EEXIST) {
		err = whichExists(p)
	}
	if err != nil {
		return Host{}, fmt.Errorf("make the veth pair %s and %s: %w", p.HostName, p.PodName, err)
	}
	h, err := finishVeth(ctx, p)
	if err != nil {
		return Host{}, errors.Join(err, Delete(p.HostName))
	}
	return h, nil
}

// whichExists says which end's name was taken.
func whichExists(p Pair) error {
	if _, err := ByName(p.HostName); err == nil {
		return fmt.Errorf("%w: the host side %s is there; run DEL for this container first", unix.EEXIST, p.HostName)
	}
	return fmt.Errorf("%w: %s; run DEL for this container first", ErrPodInterfaceExists, p.PodName)
}

func finishVeth(ctx context.Context, p Pair) (Host, error) {
	h, err := ByName(p.HostName)
	if err != nil {
		return Host{}, err
	}
	if err := SetMark(h.Index, p.Mark); err != nil {
		return Host{}, err
	}
	h.Mark, h.Marked = p.Mark, true
	if err := SetSilent(h.Index); err != nil {
		return Host{}, err
	}
	if err := ctx.Err(); err != nil {
		return Host{}, fmt.Errorf("make the veth pair %s: %w", p.HostName, err)
	}
	return h, nil
}
