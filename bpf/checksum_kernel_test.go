package bpf_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/drop"
	"github.com/weirnet/weir/pkg/testutils"
)

// sendPartial sends a frame whose checksum the node is to fill in at two bytes
// (struct virtio_net_hdr in front of it), out of eth0 of the calling thread's namespace.
func sendPartial(t *testing.T, frame []byte, start, offset int) error {
	t.Helper()
	l, err := netlink.LinkByName("eth0")
	check(t, err)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	defer unix.Close(fd)
	check(t, unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1))
	h := make([]byte, 10)
	h[0] = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	binary.NativeEndian.PutUint16(h[6:], uint16(start))
	binary.NativeEndian.PutUint16(h[8:], uint16(offset))
	return unix.Sendto(fd, append(h, frame...), 0, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index})
}

func TestN07NoChecksumIsWrittenOverWhatIsJudged(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, pods, a, b := livePair(t)
	both(t, func(t *testing.T, f family) {
		l4 := 14 + pick(a.addr(f), 20, 40)
		p := between(a, a.addr(f), b.addr(f))
		tcp, udp, sctp, ping := p.tcp(1, 80, "S"), p.udp(2, 53, "question"), p.sctp(3, 99), p.ping(4)
		other := p.raw(47, make([]byte, 40))
		quote := p.icmp(pick(a.addr(f), uint8(3), 1), 3, 0, p.udp(9, 9, "quoted").ip(t))
		all := func(from, to int) (out []int) {
			for at := from; at < to; at++ {
				out = append(out, at)
			}
			return out
		}
		for _, c := range []struct {
			name  string
			p     packet
			at    []int // bytes of the frame
			drops bool
		}{
			{"TCP's ports and flags", tcp, all(l4, l4+16), true},
			{"TCP's own field", tcp, []int{l4 + 16}, false},
			{"behind TCP's own field", tcp, all(l4+17, l4+19), true},
			{"UDP's ports", udp, all(l4, l4+6), true},
			{"UDP's own field", udp, []int{l4 + 6}, false},
			{"UDP's payload", udp, []int{l4 + 8, l4 + 10}, false},
			{"SCTP's ports", sctp, []int{l4, l4 + 2}, true},
			{"an echo's type and identifier", ping, []int{l4, l4 + 4}, true},
			{"an echo's own field", ping, []int{l4 + 2}, false},
			{"addresses", udp, []int{l4 - 4, l4 - 2}, true},
			{"the network header", udp, []int{24, 26}, true},
			{"the addresses, of another protocol", other, []int{l4 - 4}, true},
			{"the payload of another protocol", other, []int{l4, l4 + 20}, false},
			{"what an error quotes", quote, []int{l4 + 10, l4 + 8 + pick(a.addr(f), 20, 40) + 2}, true},
		} {
			frame := c.p.frame(t)
			for _, at := range c.at {
				for _, start := range []int{at, at - 2, l4 - 4} { // the same place said in several ways
					if start < 20 || at < start {
						continue // the kernel refuses it
					}
					before := n.counted(drop.PartialChecksum, egress)
					var err error
					pods[a].Do(t, func() { err = sendPartial(t, frame, start, at-start) })
					if err != nil {
						t.Fatalf("%s, the sum from byte %d to %d: %v", c.name, start, at, err)
					}
					if got := n.counted(drop.PartialChecksum, egress) - before; (got == 1) != c.drops {
						t.Errorf("%s, the sum from byte %d to bytes %d and %d: %d dropped for it", c.name, start, at, at+1, got)
					}
				}
			}
		}
	})
}

// A tunnel that is made inside a pod leaves the inner sum to the node, behind the
// header that is judged. (This kernel makes no GRE; its frame is made by hand above.)
func TestN07TunnelsOfAPodPass(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, pods, a, b := livePair(t)
	for i, f := range []family{v4, v6} {
		name := fmt.Sprintf("vxlan%d", i)
		inner := func(host byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 168, byte(i), host}) }
		for at, to := range map[*endpoint]*endpoint{a: b, b: a} {
			pods[at].Do(t, func() {
				l := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: 1200}, VxlanId: 7 + i,
					SrcAddr: at.addr(f).AsSlice(), Group: to.addr(f).AsSlice(), Port: 4789 + i, Learning: true, UDPCSum: true}
				check(t, netlink.LinkAdd(l))
				host := byte(1)
				if at == b {
					host = 2
				}
				check(t, netlink.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: inner(host).AsSlice(), Mask: net.CIDRMask(24, 32)}}))
				check(t, netlink.LinkSetUp(l))
			})
		}
		server := netip.AddrPortFrom(inner(2), 8080)
		pods[b].Do(t, func() { serve(t, server) })
		pods[a].Do(t, func() {
			c, err := dial(server, patience)
			if err != nil {
				t.Errorf("VXLAN over %s: %v", f, err)
				return
			}
			defer c.Close()
			if err := echo(c, string(make([]byte, 1<<18)), 2*patience); err != nil {
				t.Errorf("VXLAN over %s: %v", f, err)
			}
		})
		if c := n.counted(drop.PartialChecksum, egress); c != 0 {
			t.Errorf("VXLAN over %s: %d packets dropped for their partial checksum", f, c)
		}
	}
}
