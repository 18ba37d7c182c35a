package cmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/datapath/link"
	"github.com/weirnet/weir/pkg/types"
)

// errNotOurs says that an interface stands in the way that this plugin did not make.
var errNotOurs = errors.New("an interface of that name is there already and was not made by weir-cni for this attachment")

// podNetns is an open network namespace of a pod.
type podNetns struct {
	file *os.File
	nl   *netlink.Handle
}

// openNetns opens the namespace that a runtime named. A path that is gone, or
// is no network namespace, is an error that says so.
func openNetns(path string) (*podNetns, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the network namespace: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil || int64(fs.Type) != unix.NSFS_MAGIC {
		f.Close()
		return nil, fmt.Errorf("open the network namespace: %s is no namespace", path)
	}
	kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		f.Close()
		return nil, fmt.Errorf("open the network namespace: %s is a namespace of another kind", path)
	}
	nl, err := netlink.NewHandleAt(netns.NsHandle(f.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open netlink in the network namespace %s: %w", path, err)
	}
	return &podNetns{f, nl}, nil
}

func (n *podNetns) Close() {
	n.nl.Close()
	n.file.Close()
}

func (n *podNetns) fd() int { return int(n.file.Fd()) }

// veth is the pair of an attachment.
type veth struct {
	hostName, podName   string
	hostIndex, podIndex int
	hostMAC, podMAC     types.MAC
	mtu                 int // bytes
	mark                link.Mark
}

// kernel builds and takes down links.
type kernel struct{}

// create makes the pair with the pod's end in its namespace under its final
// name, and with the hardware address that is asked for. Both ends are down.
func (kernel) create(ctx context.Context, n *podNetns, v veth) (veth, error) {
	v.hostMAC = link.NewMAC()
	if v.podMAC.IsZero() {
		v.podMAC = link.NewMAC()
	}
	v.mark.PodMAC = v.podMAC
	h, err := link.CreateVeth(ctx, link.Pair{HostName: v.hostName, PodName: v.podName, NetNS: n.fd(), HostMAC: v.hostMAC, PodMAC: v.podMAC, MTU: v.mtu, Mark: v.mark})
	v.hostIndex, v.podIndex = h.Index, h.PeerIndex
	return v, err
}

// configure gives the pod's end its addresses and routes and sets it up. The
// carrier stays off until the agent sets the node's end up.
func (kernel) configure(ctx context.Context, n *podNetns, v veth, addrs []netip.Addr) error {
	return link.ConfigurePod(ctx, link.Pod{NetNS: n.fd(), IfName: v.podName, Addrs: addrs})
}

// leftover looks at what an earlier ADD of the attachment left. found is true
// for a pair of ours; errNotOurs for an interface in the pod that is not.
func (kernel) leftover(_ context.Context, n *podNetns, hostName, podName string) (v veth, found bool, err error) {
	host, err := link.ByName(hostName)
	switch {
	case err == nil:
		v = veth{hostName: hostName, podName: podName, hostIndex: host.Index, podIndex: host.PeerIndex, hostMAC: host.MAC, mtu: host.MTU}
		found = true
	case !errors.Is(err, link.ErrNotFound):
		return v, false, err
	}
	pod, err := n.nl.LinkByName(podName)
	var none netlink.LinkNotFoundError
	switch {
	case errors.As(err, &none):
		return v, found, nil
	case err != nil:
		return v, found, fmt.Errorf("look for %s in the pod: %w", podName, err)
	case !found || pod.Type() != "veth" || pod.Attrs().Index != v.podIndex || pod.Attrs().ParentIndex != v.hostIndex:
		return v, found, fmt.Errorf("%s: %w", podName, errNotOurs)
	}
	v.podMAC, err = types.ParseMAC(pod.Attrs().HardwareAddr.String())
	return v, true, err
}

// remove takes the pair down by its name on the node, and by its index where that is
// not 0; one that is gone is no error.
func (kernel) remove(_ context.Context, hostName string, index int) error {
	if index != 0 {
		h, err := link.ByName(hostName)
		if errors.Is(err, link.ErrNotFound) || err == nil && h.Index != index {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return link.Delete(hostName)
}

// hostPrefix is the address as a prefix of full length, as a result carries it.
func hostPrefix(a netip.Addr) net.IPNet {
	return net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}
