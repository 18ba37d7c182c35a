package cmd

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The next hop of every pod: on no interface, answered by the data plane.
var (
	gateway4 = netip.MustParseAddr("169.254.1.1")
	gateway6 = netip.MustParseAddr("fe80::1")
)

// errNotOurs says that an interface stands in the way that this plugin did not make.
var errNotOurs = errors.New("an interface of that name is there already and was not made by weir-cni for this attachment")

// hostName is the name of the end on the node: the same for the same attachment.
func hostName(containerID, ifName string) string {
	sum := sha256.Sum256([]byte(containerID + ":" + ifName))
	return "lxc" + hex.EncodeToString(sum[:6])
}

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

// do runs fn on a thread inside the namespace.
func (n *podNetns) do(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the network namespace: %w", err)
			return
		}
		done <- fn()
	}()
	return <-done
}

// veth is a pair that was built.
type veth struct {
	hostName, podName   string
	hostIndex, podIndex int
	hostMAC, podMAC     net.HardwareAddr
	mtu                 int
}

// kernel builds and takes down links.
type kernel struct{}

// create makes the pair with the pod's end in its namespace under its final
// name. Both ends are down.
func (kernel) create(_ context.Context, n *podNetns, v veth) (veth, error) {
	var err error
	if v.hostMAC, err = newMAC(); err != nil {
		return v, err
	}
	if v.podMAC, err = newMAC(); err != nil {
		return v, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = v.hostName, v.mtu, v.hostMAC
	pair := netlink.NewVeth(attrs)
	pair.PeerName, pair.PeerHardwareAddr, pair.PeerMTU = v.podName, v.podMAC, uint32(v.mtu)
	pair.PeerNamespace = netlink.NsFd(n.file.Fd())
	if err := netlink.LinkAdd(pair); err != nil {
		return v, fmt.Errorf("create the veth pair %s and %s with MTU %d: %w", v.hostName, v.podName, v.mtu, err)
	}
	host, err := netlink.LinkByName(v.hostName)
	if err != nil {
		return v, fmt.Errorf("find %s after creating it: %w", v.hostName, err)
	}
	v.hostIndex, v.podIndex = host.Attrs().Index, host.Attrs().ParentIndex
	return v, nil
}

// configure gives the pod's end its addresses and routes and sets it up. The
// carrier stays off until the agent sets the node's end up.
func (kernel) configure(_ context.Context, n *podNetns, v veth, addrs []netip.Addr) error {
	dev, err := n.nl.LinkByName(v.podName)
	if err != nil {
		return fmt.Errorf("find %s in the pod: %w", v.podName, err)
	}
	for _, a := range addrs {
		if a.Is6() {
			if err := n.do(enableIPv6); err != nil {
				return err
			}
		}
	}
	for _, a := range addrs {
		ipnet := hostPrefix(a)
		addr := &netlink.Addr{IPNet: &ipnet, Flags: unix.IFA_F_NOPREFIXROUTE}
		if a.Is6() {
			addr.Flags |= unix.IFA_F_NODAD // duplicate detection would take 2 s
		}
		if err := n.nl.AddrAdd(dev, addr); err != nil {
			return fmt.Errorf("add %s to %s in the pod: %w", a, v.podName, err)
		}
	}
	if err := n.nl.LinkSetUp(dev); err != nil {
		return fmt.Errorf("set %s in the pod up: %w", v.podName, err)
	}
	for _, a := range addrs {
		gw, any := gateway4, net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
		if a.Is6() {
			gw, any = gateway6, net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
		}
		r := &netlink.Route{LinkIndex: dev.Attrs().Index, Dst: &any, Gw: gw.AsSlice(), Src: a.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}
		if err := n.nl.RouteAdd(r); err != nil {
			return fmt.Errorf("add the default route through %s to the pod: %w", gw, err)
		}
	}
	return nil
}

// enableIPv6 undoes a runtime's disable_ipv6; without IPv6 in the kernel the
// address that follows fails with a clear error.
func enableIPv6() error {
	for _, scope := range []string{"all", "default"} {
		path := "/proc/sys/net/ipv6/conf/" + scope + "/disable_ipv6"
		have, err := os.ReadFile(path)
		if err != nil || len(have) == 0 || have[0] == '0' {
			continue
		}
		if err := os.WriteFile(path, []byte("0"), 0o644); err != nil {
			return fmt.Errorf("enable IPv6 in the pod: %w", err)
		}
	}
	return nil
}

// leftover looks at what an earlier ADD of the attachment left. found is true
// for a pair of ours; errNotOurs for an interface in the pod that is not.
func (kernel) leftover(_ context.Context, n *podNetns, hostName, podName string) (v veth, found bool, err error) {
	host, err := netlink.LinkByName(hostName)
	if err == nil {
		v = veth{hostName: hostName, podName: podName, hostIndex: host.Attrs().Index, podIndex: host.Attrs().ParentIndex,
			hostMAC: host.Attrs().HardwareAddr, mtu: host.Attrs().MTU}
		found = true
	} else if !isGone(err) {
		return v, false, fmt.Errorf("look for %s: %w", hostName, err)
	}
	pod, err := n.nl.LinkByName(podName)
	switch {
	case isGone(err):
		return v, found, nil
	case err != nil:
		return v, found, fmt.Errorf("look for %s in the pod: %w", podName, err)
	case !found || pod.Type() != "veth" || pod.Attrs().Index != v.podIndex || pod.Attrs().ParentIndex != v.hostIndex:
		return v, found, fmt.Errorf("%s: %w", podName, errNotOurs)
	}
	v.podMAC = pod.Attrs().HardwareAddr
	return v, true, nil
}

// remove takes the pair down by its name on the node. A link that is gone is
// no error; one that is no veth is left alone.
func (kernel) remove(_ context.Context, hostName string) error {
	l, err := netlink.LinkByName(hostName)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for %s: %w", hostName, err)
	}
	if l.Type() != "veth" {
		return fmt.Errorf("remove %s: it is a %s, not a veth of ours", hostName, l.Type())
	}
	if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove %s: %w", hostName, err)
	}
	return nil
}

func isGone(err error) bool {
	var none netlink.LinkNotFoundError
	return errors.As(err, &none) || errors.Is(err, unix.ENODEV)
}

// newMAC makes a random address: one interface, locally administered (IEEE 802, 8.2).
func newMAC() (net.HardwareAddr, error) {
	m := make(net.HardwareAddr, 6)
	if _, err := rand.Read(m); err != nil {
		return nil, fmt.Errorf("make a hardware address: %w", err)
	}
	m[0] = m[0]&^1 | 2
	return m, nil
}
