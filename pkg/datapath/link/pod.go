package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/types"
)

// Gateway4 and Gateway6 are the next hops of every pod. They exist on no
// interface; the program on the host side answers for them.
func Gateway4() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 1, 1}) }

// Gateway6 is the IPv6 next hop, see Gateway4.
func Gateway6() netip.Addr { return netip.MustParseAddr("fe80::1") }

// Pod says what the pod's end of the pair must look like.
type Pod struct {
	NetNS  int    // descriptor of the pod's network namespace
	IfName string // for example eth0
	// Addrs are given as /32 and /128. A family without address gets no route.
	Addrs []netip.Addr
	MAC   types.MAC // checked by CheckPod unless zero
	MTU   int       // bytes; checked by CheckPod unless 0
}

// ConfigurePod gives the pod's end its addresses, sets it up and adds the
// default routes. It may be repeated: what is there already is left alone.
func ConfigurePod(ctx context.Context, p Pod) error {
	err := inNamespace(ctx, p.NetNS, func() error {
		l, err := netlink.LinkByName(p.IfName)
		if err != nil {
			return fmt.Errorf("look up %s: %w", p.IfName, found(err))
		}
		if slices.ContainsFunc(p.Addrs, netip.Addr.Is6) {
			if err := enableIPv6(p.IfName); err != nil {
				return err
			}
		}
		for _, a := range p.Addrs {
			if err := addAddress(l, a); err != nil {
				return err
			}
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return fmt.Errorf("set %s up: %w", p.IfName, err)
		}
		for _, r := range defaultRoutes(l, p.Addrs) {
			if err := netlink.RouteAdd(&r); err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("add the default route via %s: %w", r.Gw, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("configure %s in the pod: %w", p.IfName, err)
	}
	return nil
}

func addAddress(l netlink.Link, a netip.Addr) error {
	addr := &netlink.Addr{IPNet: hostNet(a)}
	if a.Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	if err := netlink.AddrAdd(l, addr); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add the address %s: %w", a, err)
	}
	return nil
}

func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// defaultRoutes are onlink, so that no route to the gateway is needed.
func defaultRoutes(l netlink.Link, addrs []netip.Addr) []netlink.Route {
	var out []netlink.Route
	for _, f := range []struct {
		gateway netip.Addr
		wanted  bool
	}{{Gateway4(), slices.ContainsFunc(addrs, netip.Addr.Is4)}, {Gateway6(), slices.ContainsFunc(addrs, netip.Addr.Is6)}} {
		if f.wanted {
			out = append(out, netlink.Route{LinkIndex: l.Attrs().Index, Gw: f.gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK)})
		}
	}
	return out
}

// enableIPv6 undoes what some runtimes set in a new namespace, and keeps router
// advertisements from adding a second default route.
func enableIPv6(ifname string) error {
	for _, s := range [][2]string{{"disable_ipv6", "0"}, {"accept_ra", "0"}} {
		path := filepath.Join("/proc/sys/net/ipv6/conf", ifname, s[0]) // of the thread's namespace
		if err := os.WriteFile(path, []byte(s[1]), 0); err != nil {
			return fmt.Errorf("set %s to %s: %w; the pod has an IPv6 address, so the kernel must have IPv6 on (ipv6.disable=0)", path, s[1], err)
		}
	}
	return nil
}

// CheckPod compares the pod's end with p and names every difference (CNI
// CHECK). Nil means that all is as ConfigurePod left it.
func CheckPod(ctx context.Context, p Pod) error {
	var wrong []error
	err := inNamespace(ctx, p.NetNS, func() error {
		l, err := netlink.LinkByName(p.IfName)
		if err != nil {
			return fmt.Errorf("look up %s: %w", p.IfName, found(err))
		}
		h := describe(l)
		if !h.Up {
			wrong = append(wrong, fmt.Errorf("%s is down", p.IfName))
		}
		if !p.MAC.IsZero() && h.MAC != p.MAC {
			wrong = append(wrong, fmt.Errorf("%s has the hardware address %s, not %s", p.IfName, h.MAC, p.MAC))
		}
		if p.MTU != 0 && h.MTU != p.MTU {
			wrong = append(wrong, fmt.Errorf("%s has the MTU %d, not %d", p.IfName, h.MTU, p.MTU))
		}
		missing, err := missingAddresses(l, p.Addrs)
		wrong = append(wrong, missing...)
		if err != nil {
			return err
		}
		missing, err = missingRoutes(l, p.Addrs)
		wrong = append(wrong, missing...)
		return err
	})
	if err != nil {
		wrong = append(wrong, err)
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("check %s in the pod: %w", p.IfName, errors.Join(wrong...))
}

func missingAddresses(l netlink.Link, addrs []netip.Addr) (missing []error, err error) {
	have, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list its addresses: %w", err)
	}
	for _, a := range addrs {
		if !slices.ContainsFunc(have, func(h netlink.Addr) bool { return h.IPNet.String() == hostNet(a).String() }) {
			missing = append(missing, fmt.Errorf("the address %s is missing", a))
		}
	}
	return missing, nil
}

func missingRoutes(l netlink.Link, addrs []netip.Addr) (missing []error, err error) {
	have, err := netlink.RouteList(l, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list its routes: %w", err)
	}
	for _, want := range defaultRoutes(l, addrs) {
		if !slices.ContainsFunc(have, func(r netlink.Route) bool { return isDefault(r) && r.Gw.Equal(want.Gw) }) {
			missing = append(missing, fmt.Errorf("the default route via %s is missing", want.Gw))
		}
	}
	return missing, nil
}

func isDefault(r netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0 && r.Dst.IP.IsUnspecified()
}

// inNamespace runs fn on a thread that is in the given network namespace. A
// thread that could not be brought back dies with its goroutine.
func inNamespace(ctx context.Context, fd int, fn func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- func() error {
			origin, err := os.Open("/proc/thread-self/ns/net")
			if err != nil {
				runtime.UnlockOSThread()
				return fmt.Errorf("open the own network namespace: %w", err)
			}
			defer origin.Close()
			if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
				runtime.UnlockOSThread()
				return fmt.Errorf("enter the pod's network namespace: %w", err)
			}
			err = fn()
			if back := unix.Setns(int(origin.Fd()), unix.CLONE_NEWNET); back != nil {
				return errors.Join(err, fmt.Errorf("leave the pod's network namespace: %w", back))
			}
			runtime.UnlockOSThread()
			return err
		}()
	}()
	return <-done
}
