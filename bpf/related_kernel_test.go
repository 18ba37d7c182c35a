package bpf_test

import (
	"testing"

	"github.com/weirnet/weir/pkg/drop"
	"github.com/weirnet/weir/pkg/testutils"
)

// quoting makes an ICMP error about a packet: its network header and the first
// 8 bytes behind, as RFC 792 demands.
func quoting(t *testing.T, p packet, typ, code uint8, quoted packet) []byte {
	t.Helper()
	ip := quoted.ip(t)
	return p.icmp(typ, code, 0, ip[:min(len(ip), pick(quoted.src, 28, 48))]).frame(t)
}

func TestErrorsOfLiveFlowsPassForgedOnesDoNot(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	n.fill(3, line{direction: ingress, rule: 301, deny: true}, line{direction: egress, rule: 302})
	n.apply(a, 3, 1)
	both(t, func(t *testing.T, f family) {
		router := mustAddr(pick(a.addr(f), "198.51.100.1", "2001:db8:1::1"))
		out := between(a, a.addr(f), outside(f))
		tcp, udp, sctp, ping := out.tcp(40000, 80, "S"), out.udp(40001, 53, "q"), out.sctp(40002, 99), out.ping(7)
		for _, p := range []packet{tcp, udp, sctp, ping} {
			if r := n.from(a, p.frame(t)); r.act != actOK {
				t.Fatalf("open a flow: %+v", r.told())
			}
		}
		report := between(nil, router, a.addr(f))
		types := pick(a.addr(f), []uint8{3, 11, 12}, []uint8{1, 2, 3, 4})
		other := func(p packet, change func(*packet)) packet { change(&p); return p }
		for _, c := range []struct {
			name   string
			quoted packet
			want   drop.Reason
		}{
			{"TCP", tcp, 0},
			{"UDP", udp, 0},
			{"SCTP", sctp, 0},
			{"ping", ping, 0},
			{"a port that no flow has", out.tcp(40000, 81, "S"), drop.ICMPUnrelated},
			{"a protocol that no flow has", out.udp(40000, 80, ""), drop.ICMPUnrelated},
			{"a ping that nobody sent", out.ping(8), drop.ICMPUnrelated},
			{"a reply that a did not send", out.pong(7), drop.ICMPUnrelated},
			{"the peer's half of the flow", between(nil, outside(f), a.addr(f)).tcp(80, 40000, "S"), drop.ICMPUnrelated},
			{"another pod's packet", other(tcp, func(p *packet) { p.src = b.addr(f) }), drop.ICMPUnrelated},
		} {
			for _, typ := range types {
				r := n.to(a, quoting(t, report, typ, 0, c.quoted))
				if r.dropped() != c.want || (c.want == 0) != (r.act == actOK) {
					t.Errorf("%s, type %d: verdict %d, %s; want %s", c.name, typ, r.act, r.dropped(), c.want)
				}
				if c.want == 0 && len(r.events) != 0 {
					t.Errorf("%s, type %d: told %+v of a related error", c.name, typ, r.told())
				}
			}
		}
		// Types that are no errors of a flow, and quotes that are none.
		for name, frame := range map[string][]byte{
			"quote cut short": report.icmp(types[0], 0, 0, tcp.ip(t)[:20]).frame(t),
			"no quote":        report.icmp(types[0], 0, 0, nil).frame(t),
			"an error quoted": quoting(t, report, types[0], 0, out.icmp(types[0], 0, 0, tcp.ip(t))),
		} {
			if r := n.to(a, frame); r.dropped() != drop.ICMPUnrelated {
				t.Errorf("%s: verdict %d, %s", name, r.act, r.dropped())
			}
		}
		// A flow that is denied by now has none.
		n.apply(a, slotDeny, 2)
		n.from(a, udp.frame(t)) // the entry knows
		if r := n.to(a, quoting(t, report, types[0], 0, udp)); r.dropped() != drop.ICMPUnrelated {
			t.Errorf("of a denied flow: verdict %d, %s", r.act, r.dropped())
		}
		n.apply(a, 3, 1)
	})
	for _, typ := range []uint8{4, 5, 9, 10} {
		quote := between(a, a.v4, outside(v4)).tcp(40000, 80, "S")
		if r := n.to(a, quoting(t, between(nil, outside(v4), a.v4), typ, 0, quote)); r.dropped() != drop.ForbiddenICMP4 {
			t.Errorf("ICMP type %d to the pod: %s", typ, r.dropped())
		}
		if r := n.from(a, quoting(t, between(a, a.v4, outside(v4)), typ, 0, quote)); r.dropped() != drop.ForbiddenICMP4 {
			t.Errorf("ICMP type %d from the pod: %s", typ, r.dropped())
		}
	}
}

func TestErrorsBetweenPods(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	c := n.add(30, 3003, 0, "10.0.0.3", "fd00::3")
	n.apply(c, slotDeny, 1)
	n.fill(3, line{direction: ingress, rule: 301, deny: true}, line{direction: egress, rule: 302})
	n.apply(a, 3, 1)
	both(t, func(t *testing.T, f family) {
		typ, code := pick(a.addr(f), uint8(3), 1), pick(a.addr(f), uint8(3), 4) // port unreachable
		there := between(a, a.addr(f), b.addr(f)).udp(40000, 53, "q")
		n.from(a, there.frame(t))
		r := n.from(b, quoting(t, between(b, b.addr(f), a.addr(f)), typ, code, there))
		if r.act != actRedirect || len(r.events) != 0 {
			t.Errorf("b's answer that the port is closed: verdict %d, %+v", r.act, r.told())
		}
		// c knows of the flow, but is no end of it and no router.
		if r := n.from(c, quoting(t, between(c, c.addr(f), a.addr(f)), typ, code, there)); r.dropped() != drop.ICMPUnrelated {
			t.Errorf("c's forged report of a's flow to b: verdict %d, %s", r.act, r.dropped())
		}
		toC := between(a, a.addr(f), c.addr(f)).udp(40000, 53, "q")
		n.from(a, toC.frame(t)) // denied: no flow
		if r := n.from(c, quoting(t, between(c, c.addr(f), a.addr(f)), typ, code, toC)); r.dropped() != drop.ICMPUnrelated {
			t.Errorf("c's report of a packet that never arrived: verdict %d, %s", r.act, r.dropped())
		}
	})
}

func TestQuotedExtensionHeaders(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, _ := openPair(t)
	sent := between(a, a.v6, outside(v6)).udp(40000, 53, "q")
	n.from(a, sent.frame(t))
	quoted := sent.extended(t, 60, extension(44, 1), []byte{17, 0, 0, 1, 9, 9, 9, 9}) // first fragment behind options
	report := between(nil, mustAddr("2001:db8:1::1"), a.v6).icmp(2, 0, 0, quoted.ip(t))
	if r := n.to(a, report.frame(t)); r.act != actOK {
		t.Errorf("packet too big for a first fragment: %+v", r.told())
	}
	later := sent.extended(t, 44, []byte{17, 0, 0, 8, 9, 9, 9, 9})
	if r := n.to(a, between(nil, mustAddr("2001:db8:1::1"), a.v6).icmp(2, 0, 0, later.ip(t)).frame(t)); r.dropped() != drop.ICMPUnrelated {
		t.Errorf("a later fragment has no ports: %+v", r.told())
	}
}

// An error is about a flow as policy sees it now: one that is still allowed has its
// errors whatever changed meanwhile, one that is denied has none, though no packet of
// its own has met the new policy yet.
func TestN08AnErrorHasItsFlowJudgedAgain(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	both(t, func(t *testing.T, f family) {
		router := mustAddr(pick(a.addr(f), "198.51.100.1", "2001:db8:1::1"))
		typ := pick(a.addr(f), uint8(3), 1)
		abroad, there := between(a, a.addr(f), outside(f)), between(a, a.addr(f), b.addr(f))
		for _, c := range []struct {
			name   string
			sent   packet
			from   *endpoint // nil: a router reports it
			denies *endpoint // whose policy changes
		}{
			{"TCP to the outside", abroad.tcp(40000, 80, "S"), nil, a},
			{"UDP to the outside", abroad.udp(40001, 53, "q"), nil, a},
			{"a ping to the outside", abroad.ping(7), nil, a},
			{"UDP to a pod, reported by it, the sender's policy", there.udp(40002, 53, "q"), b, a},
			{"UDP to a pod, reported by it, the receiver's policy", there.udp(40003, 53, "q"), b, b},
			{"UDP to a pod, reported by a router", there.udp(40004, 53, "q"), nil, b},
		} {
			n.forget()
			n.apply(a, slotAllow, 1)
			n.apply(b, slotAllow, 1)
			if r := n.from(a, c.sent.frame(t)); r.act == actShot {
				t.Fatalf("%s: %+v", c.name, r.told())
			}
			report := func() result {
				if c.from != nil {
					return n.from(c.from, quoting(t, between(c.from, c.from.addr(f), a.addr(f)), typ, 3, c.sent))
				}
				return n.to(a, quoting(t, between(nil, router, a.addr(f)), typ, 3, c.sent))
			}
			before := n.flows(f)[0]
			lost := 0
			for i := range uint32(1000) {
				if i%20 == 0 {
					n.apply(c.denies, slotAllow, 2+i)
				}
				if r := report(); r.act == actShot {
					lost++
				}
			}
			if lost > 0 {
				t.Errorf("%s: %d of 1000 errors of an allowed flow lost", c.name, lost)
			}
			if after := n.flows(f); len(after) != 1 || after[0].Packets != before.Packets || after[0].Expires != before.Expires {
				t.Errorf("%s: the errors kept the flow alive: %+v, then %+v", c.name, before, after)
			}
			n.apply(c.denies, slotDeny, 5000)
			first := report()
			if first.dropped() != drop.Policy || len(first.events) != 1 || first.events[0].Endpoint != uint16(c.denies.id) {
				t.Errorf("%s: the first after the denial: verdict %d, %+v", c.name, first.act, first.told())
			}
			for range 20 {
				if r := report(); r.act != actShot {
					t.Errorf("%s: an error is delivered after the denial", c.name)
				}
			}
			n.apply(c.denies, slotAllow, 5001)
			n.from(a, c.sent.frame(t))
			if r := report(); r.act == actShot {
				t.Errorf("%s: allowed again: %+v", c.name, r.told())
			}
		}
	})
}

// The initiator may be the other end: an error about its answer is judged likewise.
func TestN08AnErrorAboutAnAnswer(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, _ := openPair(t)
	both(t, func(t *testing.T, f family) {
		n.forget()
		n.apply(a, slotAllow, 1)
		n.to(a, between(nil, outside(f), a.addr(f)).udp(40000, 53, "q").frame(t))
		answer := between(a, a.addr(f), outside(f)).udp(53, 40000, "a")
		n.from(a, answer.frame(t))
		report := quoting(t, between(nil, outside(f), a.addr(f)), pick(a.addr(f), uint8(3), 1), 3, answer)
		n.apply(a, slotAllow, 2)
		if r := n.via(a, uplink, report); r.act != actOK {
			t.Errorf("allowed: %+v", r.told())
		}
		n.apply(a, slotDeny, 3)
		if r := n.via(a, uplink, report); r.dropped() != drop.Policy {
			t.Errorf("denied: verdict %d, %+v", r.act, r.told())
		}
	})
}
