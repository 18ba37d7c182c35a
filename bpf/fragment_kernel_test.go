package bpf_test

import (
	"encoding/binary"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/weirnet/weir/pkg/drop"
	"github.com/weirnet/weir/pkg/testutils"
)

// fragments cuts a packet into pieces of the given sizes (all but the last a
// multiple of 8) and what is left.
func fragments(t *testing.T, p packet, id uint16, sizes ...int) [][]byte {
	t.Helper()
	whole := p.transport(t)
	if p.src.Is4() { // take off what Ethernet padded
		whole = whole[:binary.BigEndian.Uint16(p.frame(t)[16:])-20]
	}
	var frames [][]byte
	for at := 0; at < len(whole); {
		size := len(whole) - at
		if len(frames) < len(sizes) {
			size = min(size, sizes[len(frames)])
		}
		more := at+size < len(whole)
		f := packet{srcMAC: p.srcMAC, dstMAC: p.dstMAC, src: p.src, dst: p.dst}.raw(p.proto, whole[at:at+size])
		if p.src.Is4() {
			f.id, f.offset = id, uint16(at/8)
			if more {
				f.flags = layers.IPv4MoreFragments
			}
		} else {
			h := make([]byte, 8)
			h[0] = byte(p.proto)
			v := uint16(at)
			if more {
				v |= 1
			}
			binary.BigEndian.PutUint16(h[2:], v)
			binary.BigEndian.PutUint16(h[6:], id)
			f = f.raw(44, append(h, whole[at:at+size]...))
		}
		frames = append(frames, f.frame(t))
		at += size
	}
	return frames
}

func TestFragmentsFollowTheirFirst(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	n.fill(5, append(defaults(true, 501), line{direction: ingress, proto: 17, port: 53, bits: 16, order: orderAllow, rule: 503})...)
	n.apply(b, 5, 2)
	body := string(make([]byte, 2993)) // the last fragment holds one byte
	both(t, func(t *testing.T, f family) {
		p := between(a, a.addr(f), b.addr(f))
		allowed, denied := p.udp(1000, 53, body), p.udp(1000, 54, body)
		order := func(frames [][]byte, want ...drop.Reason) {
			t.Helper()
			for i, frame := range frames {
				r := n.from(a, frame)
				if r.dropped() != want[i] || (want[i] == 0) != (r.act == actRedirect) {
					t.Errorf("frame %d: verdict %d, %s; want %s", i, r.act, r.dropped(), want[i])
				}
			}
		}
		order(fragments(t, allowed, 1, 1480, 1520), 0, 0, 0)
		order(fragments(t, denied, 2, 1480, 1520), drop.Policy, drop.Policy, drop.Policy)
		if flows := n.flows(f); len(flows) != 1 || flows[0].Packets != 3 {
			t.Errorf("flows %+v, want one with three packets", flows)
		}
		r := fragments(t, allowed, 3, 1480, 1520)
		order([][]byte{r[2], r[1], r[0], r[1], r[2]}, drop.FragNotFound, drop.FragNotFound, 0, 0, 0)
		x, y := fragments(t, allowed, 4, 1480, 1520), fragments(t, denied, 5, 1480, 1520)
		order([][]byte{x[0], y[0], x[1], y[1], y[2], x[2]}, 0, drop.Policy, 0, drop.Policy, drop.Policy, 0)
		order(fragments(t, denied, 6, 1480, 1520)[1:], drop.FragNotFound, drop.FragNotFound)
		// A ping in fragments keeps its identifier.
		ping := p.icmp(pick(p.src, uint8(8), 128), 0, 77, make([]byte, 3000))
		n.fill(5, append(defaults(true, 501), line{direction: ingress, proto: uint8(ping.proto), order: orderAllow, rule: 504})...)
		order(fragments(t, ping, 7, 1480, 1520), 0, 0, 0)
		n.fill(5, append(defaults(true, 501), line{direction: ingress, proto: 17, port: 53, bits: 16, order: orderAllow, rule: 503})...)
	})
}

func TestTinyAndOverlappingFragments(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	both(t, func(t *testing.T, f family) {
		p := between(a, a.addr(f), b.addr(f))
		for _, c := range []struct {
			name  string
			p     packet
			first int
		}{
			{"TCP, 8 bytes", p.tcp(1, 2, "S"), 8},
			{"TCP, 16 bytes", p.tcp(1, 2, "S"), 16},
			{"SCTP, 8 bytes", p.sctp(1, 2), 8},
		} {
			c.p.body = make([]byte, 100)
			if r := n.from(a, fragments(t, c.p, 20, c.first)[0]); r.dropped() != drop.InvalidPacket {
				t.Errorf("%s: verdict %d, %s", c.name, r.act, r.dropped())
			}
		}
		if f == v4 {
			whole := p.tcp(1, 2, "S")
			whole.body = make([]byte, 100)
			n.from(a, fragments(t, whole, 21, 24)[0])
			over := packet{srcMAC: p.srcMAC, dstMAC: p.dstMAC, src: p.src, dst: p.dst, id: 21, offset: 1}.raw(6, make([]byte, 40))
			if r := n.from(a, over.frame(t)); r.dropped() != drop.InvalidPacket {
				t.Errorf("a fragment over the TCP header: verdict %d, %s", r.act, r.dropped())
			}
		} else {
			nested := p.udp(1, 2, "x").extended(t, 44, []byte{44, 0, 0, 1, 0, 0, 0, 9}, []byte{17, 0, 0, 1, 0, 0, 0, 9})
			if r := n.from(a, nested.frame(t)); r.dropped() != drop.InvalidExthdr {
				t.Errorf("a fragment in a fragment: verdict %d, %s", r.act, r.dropped())
			}
		}
	})
}

// A pod cannot write into another sender's datagram.
func TestASpoofedFirstFragmentIsNotRemembered(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	both(t, func(t *testing.T, f family) {
		spoofed := between(a, outside(f), b.addr(f)).udp(1, 53, string(make([]byte, 2000)))
		if r := n.from(a, fragments(t, spoofed, 30, 1480)[0]); r.dropped() != drop.InvalidSource {
			t.Errorf("spoofed: %s", r.dropped())
		}
		if r := n.to(b, fragments(t, spoofed, 30, 1480)[1]); r.dropped() != drop.FragNotFound {
			t.Errorf("the outside's later fragment: verdict %d, %s", r.act, r.dropped())
		}
	})
}

// Towards the pod the same rules hold.
func TestFragmentsFromOutside(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, _, b := openPair(t)
	both(t, func(t *testing.T, f family) {
		frames := fragments(t, between(nil, outside(f), b.addr(f)).udp(1, 53, string(make([]byte, 2000))), 40, 1480)
		if r := n.to(b, frames[1]); r.dropped() != drop.FragNotFound {
			t.Errorf("later alone: %s", r.dropped())
		}
		for i, frame := range frames {
			if r := n.to(b, frame); r.act != actOK {
				t.Errorf("fragment %d: %s", i, r.dropped())
			}
		}
	})
}
