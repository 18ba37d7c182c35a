package bpf_test

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/drop"
	"github.com/weirnet/weir/pkg/testutils"
)

// patience bounds what must happen, glance what must not.
const (
	patience = 5 * time.Second
	glance   = 300 * time.Millisecond
)

var (
	nodeAddr4 = netip.MustParseAddr("10.0.0.254")
	nodeAddr6 = netip.MustParseAddr("fd00::ffff")
)

func nodeAddr(f family) netip.Addr {
	if f == v4 {
		return nodeAddr4
	}
	return nodeAddr6
}

// livePair is openPair with real namespaces behind the endpoints, and the node's
// addresses on lo. No neighbour entry, no forwarding, no link-local address on the host side.
func livePair(t *testing.T) (n *node, pods map[*endpoint]*testutils.Netns, a, b *endpoint) {
	n, a, b = openPair(t)
	n.know(nodeAddr4.String()+"/32", 1, 0)
	n.know(nodeAddr6.String()+"/128", 1, 0)
	lo, err := netlink.LinkByName("lo")
	check(t, err)
	check(t, netlink.AddrAdd(lo, address(nodeAddr4)))
	check(t, netlink.AddrAdd(lo, address(nodeAddr6)))
	pods = map[*endpoint]*testutils.Netns{}
	for name, e := range map[string]*endpoint{"lxca": a, "lxcb": b} {
		pods[e] = testutils.NewNetns(t)
		host := plug(t, name, e, pods[e])
		e.ifindex = uint32(host.Attrs().Index)
		n.expose(e)
	}
	return n, pods, a, b
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func address(a netip.Addr) *netlink.Addr {
	return &netlink.Addr{IPNet: hostNet(a), Flags: unix.IFA_F_NODAD}
}

func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// plug makes the endpoint's veth, attaches its programs and gives the pod its
// addresses and default routes.
func plug(t *testing.T, name string, e *endpoint, pod *testutils.Netns) netlink.Link {
	t.Helper()
	host := testutils.VethPair(t, name, pod, "eth0")
	check(t, netlink.LinkSetIP6AddrGenMode(host, 1))
	check(t, netlink.LinkSetARPOff(host))
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: host.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	check(t, netlink.QdiscAdd(qdisc))
	for parent, p := range map[uint32]*ebpf.Program{netlink.HANDLE_MIN_INGRESS: e.from, netlink.HANDLE_MIN_EGRESS: e.to} {
		check(t, netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: host.Attrs().Index, Parent: parent, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL},
			Fd:          p.FD(), Name: "weir", DirectAction: true,
		}))
	}
	for a, src := range map[netip.Addr]netip.Addr{e.v4: nodeAddr4, e.v6: nodeAddr6} {
		check(t, netlink.RouteAdd(&netlink.Route{LinkIndex: host.Attrs().Index, Dst: hostNet(a), Src: src.AsSlice(), Scope: netlink.SCOPE_LINK}))
	}
	pod.Do(t, func() {
		l, err := netlink.LinkByName("eth0")
		check(t, err)
		check(t, netlink.LinkSetDown(l))
		check(t, netlink.LinkSetHardwareAddr(l, e.mac[:]))
		check(t, netlink.LinkSetUp(l))
		for a, gw := range map[netip.Addr]netip.Addr{e.v4: gateway4, e.v6: gateway6} {
			check(t, netlink.AddrAdd(l, address(a)))
			all := &net.IPNet{IP: make(net.IP, len(gw.AsSlice())), Mask: net.CIDRMask(0, gw.BitLen())}
			check(t, netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: all, Gw: gw.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}))
		}
	})
	return host
}

// serve accepts TCP and echoes, in the calling thread's namespace.
func serve(t *testing.T, at netip.AddrPort) {
	t.Helper()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	check(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

// echo sends a word over the connection and waits for it.
func echo(c net.Conn, word string, wait time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	if _, err := c.Write([]byte(word)); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, len(word)))
	return err
}

func dial(to netip.AddrPort, wait time.Duration) (net.Conn, error) {
	return net.DialTimeout("tcp", to.String(), wait)
}

func TestLivePodsTalk(t *testing.T) {
	env := testutils.Kernel(t, testutils.Tool("clang-19"))
	n, pods, a, b := livePair(t)
	for _, f := range []family{v4, v6} {
		to := netip.AddrPortFrom(b.addr(f), 8080)
		pods[b].Do(t, func() { serve(t, to) })
		env.Do(t, func() { serve(t, netip.AddrPortFrom(nodeAddr(f), 8080)) })
		talk := func(who string, to netip.AddrPort) {
			t.Helper()
			c, err := dial(to, patience)
			if err != nil {
				t.Errorf("%s to %s: %v", who, to, err)
				return
			}
			defer c.Close()
			if err := echo(c, "hello", patience); err != nil {
				t.Errorf("%s to %s: %v", who, to, err)
			}
			if err := echo(c, string(make([]byte, 1<<20)), patience); err != nil {
				t.Errorf("%s to %s, a megabyte: %v", who, to, err)
			}
		}
		pods[a].Do(t, func() {
			talk("pod a", to)
			talk("pod a", netip.AddrPortFrom(nodeAddr(f), 8080))
		})
		talk("the node", to)

		// A datagram in fragments.
		var receiver *net.UDPConn
		pods[b].Do(t, func() {
			var err error
			receiver, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(to))
			check(t, err)
		})
		pods[a].Do(t, func() {
			c, err := net.Dial("udp", to.String())
			check(t, err)
			defer c.Close()
			_, err = c.Write(bytes.Repeat([]byte("weir"), 1500))
			check(t, err)
		})
		check(t, receiver.SetDeadline(time.Now().Add(patience)))
		if got, err := receiver.Read(make([]byte, 9000)); err != nil || got != 6000 {
			t.Errorf("%s: a datagram of 6000 bytes arrived with %d: %v", f, got, err)
		}
		receiver.Close()

		// A live connection is cut when the policy changes, and comes back.
		pods[a].Do(t, func() {
			c, err := dial(to, patience)
			check(t, err)
			defer c.Close()
			check(t, echo(c, "before", patience))
			n.drain()
			n.apply(b, slotDeny, 50)
			if err := echo(c, "during", glance); err == nil {
				t.Errorf("%s: the connection lives on under a denying policy", f)
			}
			if r := (result{events: n.drain()}); r.dropped() != drop.Policy {
				t.Errorf("%s: dropped for %s", f, r.dropped())
			}
			if c, err := dial(to, glance); err == nil {
				c.Close()
				t.Errorf("%s: a denied connection was made", f)
			}
			n.apply(b, slotAllow, 51)
			if err := echo(c, "after", patience); err != nil {
				t.Errorf("%s: the connection after the policy allows again: %v", f, err)
			}
		})
	}
	for _, reason := range []drop.Reason{drop.InvalidSource, drop.InvalidPacket, drop.ARP, drop.NoConfig, drop.FragNotFound} {
		if c := n.counted(reason, egress) + n.counted(reason, ingress); c != 0 {
			t.Errorf("%d packets of ordinary traffic dropped for %s", c, reason)
		}
	}
}

// Frames that the kernel's test run does not take.
func TestLiveTruncatedFrames(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, pods, a, b := livePair(t)
	pods[a].Do(t, func() {
		l, err := netlink.LinkByName("eth0")
		check(t, err)
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		check(t, err)
		defer unix.Close(fd)
		for _, f := range []family{v4, v6} {
			whole := between(a, a.addr(f), b.addr(f)).tcp(1, 2, "S").frame(t)
			for _, size := range []int{15, 20, 30, 33, 40, 50} {
				before := n.counted(drop.InvalidPacket, egress)
				check(t, unix.Sendto(fd, whole[:size], 0, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index}))
				if after := n.counted(drop.InvalidPacket, egress); after != before+1 {
					t.Errorf("%s cut to %d bytes: %d drops", f, size, after-before)
				}
			}
		}
	})
}
