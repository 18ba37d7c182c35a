package bpf_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/drop"
	"github.com/weirnet/weir/pkg/testutils"
)

// pair is a node with the pods a (id 10, identity 1001) and b (id 20, identity 2002).
func pair(t testing.TB) (n *node, a, b *endpoint) {
	n = newNode(t, "both")
	a = n.add(10, 1001, 0, "10.0.0.1", "fd00::1")
	b = n.add(20, 2002, 0, "10.0.0.2", "fd00::2")
	return n, a, b
}

const (
	slotAllow = 1 // rules 101 (ingress) and 102 (egress)
	slotDeny  = 2 // default deny, rules 201 and 202
)

// openPair also fills slots 1 (allow) and 2 (deny) and opens both pods.
func openPair(t testing.TB) (n *node, a, b *endpoint) {
	n, a, b = pair(t)
	n.fill(slotAllow, defaults(false, 101)...)
	n.fill(slotDeny, defaults(true, 201)...)
	n.apply(a, slotAllow, 1)
	n.apply(b, slotAllow, 1)
	return n, a, b
}

func mustAddr(s string) netip.Addr { return netip.MustParseAddr(s) }

func expect(t *testing.T, r result, act uint32, want ...told) {
	t.Helper()
	if r.act != act || !slices.Equal(r.told(), want) {
		t.Errorf("verdict %d with events %+v, want %d with %+v", r.act, r.told(), act, want)
	}
}

func TestLocalDeliveryIsARoutersHop(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	both(t, func(t *testing.T, f family) {
		frame := between(a, a.addr(f), b.addr(f)).tcp(40000, 80, "S").frame(t)
		before := n.counted(drop.Forwarded, egress)
		r := n.from(a, frame)
		expect(t, r, actRedirect, told{eventVerdict, egress, 0, a.id, 102}, told{eventVerdict, ingress, 0, b.id, 101})
		want := between(a, a.addr(f), b.addr(f)).tcp(40000, 80, "S")
		want.ttl, want.srcMAC, want.dstMAC = 63, b.nodeMAC, b.mac
		if w := want.frame(t); !bytes.Equal(r.frame, w) {
			t.Errorf("delivered\n%x, want\n%x", r.frame, w)
		}
		if got := n.counted(drop.Forwarded, egress) - before; got != 1 {
			t.Errorf("counted %d forwarded packets, want 1", got)
		}
		e := r.events[0]
		if e.SrcIdentity != 1001 || e.DstIdentity != 2002 || e.sport() != 40000 || e.dport() != 80 || e.Protocol != 6 ||
			e.Revision != 1 || e.Length != pick(a.addr(f), uint32(40), 60) || e.TCPFlags != 2 ||
			!bytes.Equal(e.SAddr[:len(a.addr(f).AsSlice())], a.addr(f).AsSlice()) ||
			!bytes.Equal(e.DAddr[:len(b.addr(f).AsSlice())], b.addr(f).AsSlice()) {
			t.Errorf("event %+v", e)
		}
	})
	if n.config(a)[1] == 0 || n.config(b)[1] != 0 {
		t.Error("the first packet of a is not stamped, or b has a stamp without having sent")
	}
}

func TestIncrementalChecksumAtItsCorners(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	corners := map[uint16]bool{0xfefe: true, 0xfeff: true, 0xff00: true, 0xfffe: true, 0x0000: true, 0x00ff: true, 0x1234: true}
	frame := between(a, a.v4, b.v4).udp(1, 2, "x").frame(t)
	header := frame[14:34]
	try := func(sum uint16) {
		t.Helper()
		binary.BigEndian.PutUint16(header[10:], sum)
		r := n.from(a, frame)
		if r.act != actRedirect || sum16(0, r.frame[14:34]) != 0xffff || r.frame[22] != 63 {
			t.Errorf("checksum %04x: verdict %d, header %x does not sum up", sum, r.act, r.frame[14:34])
		}
	}
	for id := range 0x10000 {
		binary.BigEndian.PutUint16(header[4:], uint16(id))
		binary.BigEndian.PutUint16(header[10:], 0)
		sum := ^uint16(sum16(0, header))
		if !corners[sum] {
			continue
		}
		delete(corners, sum)
		try(sum)
		if sum == 0 {
			try(0xffff) // the other zero
		}
	}
	if len(corners) != 0 {
		t.Errorf("not tried: %v", corners)
	}
}

func TestTTL(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	both(t, func(t *testing.T, f family) {
		p := between(a, a.addr(f), b.addr(f)).udp(1, 2, "x")
		p.ttl = 1
		if r := n.from(a, p.frame(t)); r.act != actShot || r.dropped() != drop.TTL {
			t.Errorf("TTL 1 to a pod: verdict %d, %v", r.act, r.told())
		}
		p.dst = outside(f)
		if r := n.from(a, p.frame(t)); r.act != actOK {
			t.Errorf("TTL 1 to the node's routing, which answers: verdict %d, %v", r.act, r.told())
		}
	})
}

func TestTrafficOfTheNodeAndTheOutside(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	host := &endpoint{v4: mustAddr("10.0.0.254"), v6: mustAddr("fd00::ffff")}
	n.know("10.0.0.254/32", 1, 0)
	n.know("fd00::ffff/128", 1, 0)
	n.know("198.51.100.0/24", 16777217, 16777217)
	n.know("2001:db8:aaaa::/48", 16777218, 16777218)
	both(t, func(t *testing.T, f family) {
		known := mustAddr(pick(a.addr(f), "198.51.100.7", "2001:db8:aaaa::7"))
		for _, c := range []struct {
			name     string
			peer     uint32
			prefix   uint32
			outbound packet
			inbound  packet
		}{
			{"node", 1, 0, between(a, a.addr(f), host.addr(f)), between(nil, host.addr(f), b.addr(f))},
			{"world", pick(a.addr(f), uint32(9), 10), 0, between(a, a.addr(f), outside(f)), between(nil, outside(f), b.addr(f))},
			{"known prefix", pick(a.addr(f), uint32(16777217), 16777218), pick(a.addr(f), uint32(16777217), 16777218), between(a, a.addr(f), known), between(nil, known, b.addr(f))},
		} {
			frame := c.outbound.tcp(1000, 2000, "S").frame(t)
			r := n.from(a, frame)
			expect(t, r, actOK, told{eventVerdict, egress, 0, a.id, 102})
			if !bytes.Equal(r.frame, frame) {
				t.Errorf("%s: the packet changed on its way to the node's routing", c.name)
			}
			if len(r.events) == 1 && (r.events[0].DstIdentity != c.peer || r.events[0].DstPrefix != c.prefix || r.events[0].SrcIdentity != 1001) {
				t.Errorf("%s: event %+v", c.name, r.events[0])
			}
			r = n.to(b, c.inbound.tcp(1000, 2000, "S").frame(t))
			expect(t, r, actOK, told{eventVerdict, ingress, 0, b.id, 101})
			if len(r.events) == 1 && (r.events[0].SrcIdentity != c.peer || r.events[0].SrcPrefix != c.prefix || r.events[0].DstIdentity != 2002) {
				t.Errorf("%s: event %+v", c.name, r.events[0])
			}
			if !bytes.Equal(r.frame[:6], b.mac[:]) || !bytes.Equal(r.frame[6:12], b.nodeMAC[:]) {
				t.Errorf("%s: the node's frame has MACs %x", c.name, r.frame[:12])
			}
		}
	})
}

func TestOneEntryServesBothDirections(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	n.fill(3, line{direction: ingress, rule: 301, deny: true}, line{direction: egress, rule: 302})
	n.apply(a, 3, 1) // nobody may open a connection to a
	for _, c := range []struct {
		name       string
		there      func(packet) packet
		back       func(packet) packet
		other      func(packet) packet // a flow of b's own, which a refuses
		protoState uint32
		timeout    uint32
	}{
		{"TCP", func(p packet) packet { return p.tcp(40000, 80, "S") }, func(p packet) packet { return p.tcp(80, 40000, "SA") }, func(p packet) packet { return p.tcp(40000, 80, "S") }, 0, 60},
		{"UDP", func(p packet) packet { return p.udp(40000, 53, "q") }, func(p packet) packet { return p.udp(53, 40000, "a") }, func(p packet) packet { return p.udp(54, 40000, "a") }, 0, 60},
		{"SCTP", func(p packet) packet { return p.sctp(40000, 80) }, func(p packet) packet { return p.sctp(80, 40000) }, func(p packet) packet { return p.sctp(81, 40000) }, 0, 60},
		{"ICMP echo", func(p packet) packet { return p.ping(7) }, func(p packet) packet { return p.pong(7) }, func(p packet) packet { return p.pong(8) }, 0, 60},
		{"GRE", func(p packet) packet { return p.raw(47, []byte("1234")) }, func(p packet) packet { return p.raw(47, []byte("5678")) }, func(p packet) packet { return p.raw(48, []byte("1234")) }, 0, 60},
	} {
		both(t, func(t *testing.T, f family) {
			n.forget()
			ab, ba := between(a, a.addr(f), b.addr(f)), between(b, b.addr(f), a.addr(f))
			expect(t, n.from(a, c.there(ab).frame(t)), actRedirect, told{eventVerdict, egress, 0, a.id, 302}, told{eventVerdict, ingress, 0, b.id, 101})
			expect(t, n.from(b, c.back(ba).frame(t)), actRedirect)
			expect(t, n.from(a, c.there(ab).frame(t)), actRedirect)
			flows := n.flows(f)
			if len(flows) != 1 || flows[0].Packets != 3 || flows[0].Flags&ctSeenReply == 0 || flows[0].EgressRule != 302 || flows[0].IngressRule != 101 {
				t.Fatalf("%s: flows %+v, want one with 3 packets", c.name, flows)
			}
			if left := flows[0].Expires - nowSeconds(t); left > c.timeout || left+2 < c.timeout {
				t.Errorf("%s: %d seconds left, want %d", c.name, left, c.timeout)
			}
			r := n.from(b, c.other(ba).frame(t))
			if r.act != actShot || r.dropped() != drop.Policy {
				t.Errorf("%s: a packet of another flow: verdict %d, %+v", c.name, r.act, r.told())
			}
		})
	}
}

func nowSeconds(t testing.TB) uint32 {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return uint32(ts.Sec)
}

func TestTCPStatesAndTimeouts(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	both(t, func(t *testing.T, f family) {
		for _, c := range []struct {
			name  string
			steps []string // > from a to b, < back
			flags uint32
			left  uint32
		}{
			{"only a SYN", []string{">S"}, 0, 60},
			{"SYN and its answer", []string{">S", "<SA"}, ctSeenReply, 60},
			{"established", []string{">S", "<SA", ">A"}, ctSeenReply | ctEstablished, 21600},
			{"picked up in the middle", []string{">A"}, ctEstablished, 21600},
			{"half closed", []string{">S", "<SA", ">A", ">FA", "<A"}, ctSeenReply | ctEstablished | ctClosingInit, 21600},
			{"closed", []string{">S", "<SA", ">A", ">FA", "<FA"}, ctSeenReply | ctEstablished | ctClosingInit | ctClosingResp, 10},
			{"refused", []string{">S", "<RA"}, ctSeenReply | ctEstablished | ctClosingInit | ctClosingResp, 10},
			{"reset", []string{">S", "<SA", ">A", "<R"}, ctSeenReply | ctEstablished | ctClosingResp, 10},
			{"a forged reset on a live flow", []string{">S", "<SA", ">A", "<R", ">A"}, ctSeenReply | ctEstablished | ctClosingResp, 21600},
		} {
			n.forget()
			for _, s := range c.steps {
				from, p := a, between(a, a.addr(f), b.addr(f)).tcp(40000, 80, s[1:])
				if s[0] == '<' {
					from, p = b, between(b, b.addr(f), a.addr(f)).tcp(80, 40000, s[1:])
				}
				if r := n.from(from, p.frame(t)); r.act != actRedirect {
					t.Fatalf("%s: step %s: %+v", c.name, s, r.told())
				}
			}
			flows := n.flows(f)
			if len(flows) != 1 || flows[0].Flags&^ctInitiator1 != c.flags {
				t.Errorf("%s: %+v, want flags %d", c.name, flows, c.flags)
				continue
			}
			if left := flows[0].Expires - nowSeconds(t); left > c.left || left+2 < c.left {
				t.Errorf("%s: %d seconds left, want %d", c.name, left, c.left)
			}
		}
	})
}

func TestSYNOnAClosingEntryIsANewFlow(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	both(t, func(t *testing.T, f family) {
		ab, ba := between(a, a.addr(f), b.addr(f)), between(b, b.addr(f), a.addr(f))
		n.from(a, ab.tcp(40000, 80, "S").frame(t))
		n.from(b, ba.tcp(80, 40000, "SA").frame(t))
		expect(t, n.from(a, ab.tcp(40000, 80, "S").frame(t)), actRedirect) // a retransmission
		n.from(a, ab.tcp(40000, 80, "FA").frame(t))
		expect(t, n.from(a, ab.tcp(40000, 80, "S").frame(t)), actRedirect,
			told{eventVerdict, egress, 0, a.id, 102}, told{eventVerdict, ingress, 0, b.id, 101})
		if flows := n.flows(f); len(flows) != 1 || flows[0].Packets != 1 || flows[0].Flags&^ctInitiator1 != 0 {
			t.Errorf("flows %+v, want one fresh entry", flows)
		}
	})
}

func TestSYNOfTheResponderIsJudgedAsItsOwn(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	n.fill(3, line{direction: ingress, rule: 301, deny: true}, line{direction: egress, rule: 302})
	n.apply(a, 3, 1)
	both(t, func(t *testing.T, f family) {
		ab, ba := between(a, a.addr(f), b.addr(f)), between(b, b.addr(f), a.addr(f))
		n.from(a, ab.tcp(40000, 80, "S").frame(t))
		expect(t, n.from(b, ba.tcp(80, 40000, "S").frame(t)), actShot,
			told{eventVerdict, egress, 0, b.id, 102}, told{eventDrop, ingress, drop.Policy, a.id, 301})
		expect(t, n.from(b, ba.tcp(80, 40000, "SA").frame(t)), actRedirect)
	})
}

func TestG11EchoRequestNeverRidesTheOppositeDirection(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	n.fill(3, line{direction: ingress, rule: 301, deny: true}, line{direction: egress, rule: 302})
	n.apply(a, 3, 1)
	both(t, func(t *testing.T, f family) {
		for _, id := range []uint16{7, 0} {
			ab, ba := between(a, a.addr(f), b.addr(f)), between(b, b.addr(f), a.addr(f))
			if r := n.from(a, ab.ping(id).frame(t)); r.act != actRedirect {
				t.Fatalf("a's ping: %+v", r.told())
			}
			expect(t, n.from(b, ba.ping(id).frame(t)), actShot,
				told{eventVerdict, egress, 0, b.id, 102}, told{eventDrop, ingress, drop.Policy, a.id, 301})
			expect(t, n.from(b, ba.pong(id).frame(t)), actRedirect)
			// The same with a peer outside.
			out, in := between(a, a.addr(f), outside(f)), between(nil, outside(f), a.addr(f))
			n.from(a, out.ping(id).frame(t))
			if r := n.to(a, in.ping(id).frame(t)); r.act != actShot {
				t.Errorf("id %d: the outside's ping rides on the pod's: %+v", id, r.told())
			}
			expect(t, n.to(a, in.pong(id).frame(t)), actOK)
			// An unsolicited reply opens nothing for the other side.
			if r := n.to(a, in.pong(id+1000).frame(t)); r.act != actShot {
				t.Errorf("an unsolicited reply passes: %+v", r.told())
			}
		}
	})
}

func TestOtherICMPTypesDoNotRideOnEachOther(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	both(t, func(t *testing.T, f family) {
		proto := uint8(pick(a.addr(f), layers.IPProtocolICMPv4, layers.IPProtocolICMPv6))
		first, second := pick(a.addr(f), uint8(13), 139), pick(a.addr(f), uint8(17), 144)
		n.fill(3, append(defaults(true, 301), line{direction: egress, proto: proto, port: uint16(first), bits: 16, order: orderAllow, rule: 303})...)
		n.apply(a, 3, 1)
		ab, ba := between(a, a.addr(f), b.addr(f)), between(b, b.addr(f), a.addr(f))
		expect(t, n.from(a, ab.icmp(first, 0, 0, nil).frame(t)), actRedirect,
			told{eventVerdict, egress, 0, a.id, 303}, told{eventVerdict, ingress, 0, b.id, 101})
		if r := n.from(a, ab.icmp(second, 0, 0, nil).frame(t)); r.act != actShot {
			t.Errorf("type %d rides on type %d: %+v", second, first, r.told())
		}
		if r := n.from(b, ba.icmp(first, 0, 0, nil).frame(t)); r.act != actShot {
			t.Errorf("type %d rides in the opposite direction: %+v", first, r.told())
		}
	})
}
