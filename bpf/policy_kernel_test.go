package bpf_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/drop"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/testutils"
)

func TestBothLettersOfANewFlow(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	both(t, func(t *testing.T, f family) {
		syn := between(a, a.addr(f), b.addr(f)).tcp(40000, 80, "S").frame(t)
		n.apply(a, slotDeny, 2)
		expect(t, n.from(a, syn), actShot,
			told{eventVerdict, ingress, 0, b.id, 101}, told{eventDrop, egress, drop.Policy, a.id, 202})
		n.apply(b, slotDeny, 2)
		expect(t, n.from(a, syn), actShot,
			told{eventVerdict, ingress, drop.Policy, b.id, 201}, told{eventDrop, egress, drop.Policy, a.id, 202})
		n.apply(a, slotAllow, 3)
		r := n.from(a, syn)
		expect(t, r, actShot, told{eventVerdict, egress, 0, a.id, 102}, told{eventDrop, ingress, drop.Policy, b.id, 201})
		if e := r.events[len(r.events)-1]; e.SrcIdentity != 1001 || e.DstIdentity != 2002 || e.Revision != 2 || e.dport() != 80 {
			t.Errorf("drop event %+v", e)
		}
		if flows := n.flows(f); len(flows) != 0 {
			t.Errorf("a denied flow left %+v", flows)
		}
		n.apply(b, slotAllow, 3)
		// From and to the outside only the pod's own end is judged.
		n.apply(a, slotDeny, 4)
		expect(t, n.from(a, between(a, a.addr(f), outside(f)).tcp(1, 2, "S").frame(t)), actShot, told{eventDrop, egress, drop.Policy, a.id, 202})
		expect(t, n.to(a, between(nil, outside(f), a.addr(f)).tcp(1, 2, "S").frame(t)), actShot, told{eventDrop, ingress, drop.Policy, a.id, 201})
		n.apply(a, slotAllow, 5)
	})
}

func TestAnEmptySlotDeniesEverything(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	both(t, func(t *testing.T, f family) {
		syn := between(a, a.addr(f), b.addr(f)).tcp(40000, 80, "S").frame(t)
		n.fill(4) // a map without a line
		for _, slot := range []uint32{0, 99, 4, 1 << 20} {
			n.apply(b, slot, 7)
			expect(t, n.from(a, syn), actShot, told{eventVerdict, egress, 0, a.id, 102}, told{eventDrop, ingress, drop.Policy, b.id, 0})
		}
		n.put("weir_epconfig", b.id, [3]uint64{}) // as the kernel creates it
		expect(t, n.from(a, syn), actShot, told{eventVerdict, egress, 0, a.id, 102}, told{eventDrop, ingress, drop.Policy, b.id, 0})
		n.apply(b, slotAllow, 1)
	})
}

func TestTheStrongestOfThreePlanesDecides(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := pair(t)
	const prefixIdentity = 16777300
	b.prefix = prefixIdentity
	n.expose(b)
	n.fill(1, defaults(false, 101)...)
	n.apply(b, 1, 1)
	who, where, anybody := uint32(2002), uint32(prefixIdentity), uint32(0)
	rank := func(order uint64, lower uint32) uint64 { return order | uint64(^lower) }
	revision := uint32(1)
	for _, c := range []struct {
		name   string
		lines  []line
		rule   uint32
		reason drop.Reason
	}{
		{"only anybody", []line{{identity: anybody, order: orderAllow, rule: 1}}, 1, 0},
		{"only who", []line{{identity: who, order: orderAllow, rule: 2}}, 2, 0},
		{"only where", []line{{identity: where, order: orderAllow, rule: 3}}, 3, 0},
		{"who beats the default", []line{{identity: anybody, rule: 1, deny: true}, {identity: who, order: orderAllow, rule: 2}}, 2, 0},
		{"where beats the default", []line{{identity: anybody, rule: 1, deny: true}, {identity: where, order: orderAllow, rule: 3}}, 3, 0},
		{"deny by where beats allow by who", []line{{identity: who, order: orderAllow, rule: 2}, {identity: where, order: orderDeny, rule: 3, deny: true}}, 3, drop.PolicyDeny},
		{"deny by who beats allow by where", []line{{identity: who, order: orderDeny, rule: 2, deny: true}, {identity: where, order: orderAllow, rule: 3}}, 2, drop.PolicyDeny},
		{"deny by anybody beats both", []line{{identity: anybody, order: orderDeny, rule: 1, deny: true}, {identity: who, order: orderAllow, rule: 2}, {identity: where, order: orderAllow, rule: 3}}, 1, drop.PolicyDeny},
		{"the lower rank of equals: who", []line{{identity: who, order: rank(orderAllow, 1), rule: 2}, {identity: where, order: rank(orderAllow, 2), rule: 3}}, 2, 0},
		{"the lower rank of equals: where", []line{{identity: who, order: rank(orderAllow, 2), rule: 2}, {identity: where, order: rank(orderAllow, 1), rule: 3}, {identity: anybody, order: rank(orderAllow, 3), rule: 1}}, 3, 0},
		{"the lower rank of equals: anybody", []line{{identity: who, order: rank(orderAllow, 2), rule: 2}, {identity: anybody, order: rank(orderAllow, 1), rule: 1}}, 1, 0},
		{"a default deny is no explicit one", []line{{identity: anybody, rule: 1, deny: true}}, 1, drop.Policy},
		{"a narrow allow loses to a wide deny of another plane", []line{{identity: who, proto: 6, port: 80, bits: 16, order: orderAllow, rule: 2}, {identity: anybody, order: orderDeny, rule: 1, deny: true}}, 1, drop.PolicyDeny},
	} {
		both(t, func(t *testing.T, f family) {
			revision++
			for i := range c.lines {
				c.lines[i].direction = egress
			}
			n.fill(5, c.lines...)
			n.apply(a, 5, revision)
			n.forget()
			r := n.from(a, between(a, a.addr(f), b.addr(f)).tcp(40000, 80, "S").frame(t))
			act, kind := uint32(actRedirect), uint8(eventVerdict)
			if c.reason != 0 {
				act, kind = actShot, eventDrop
			}
			for _, e := range r.told() {
				if e.direction == egress && (e != told{kind, egress, c.reason, a.id, c.rule}) || r.act != act {
					t.Errorf("%s: verdict %d, %+v; want rule %d, %s", c.name, r.act, r.told(), c.rule, c.reason)
				}
			}
			if len(r.events) != 2 || r.events[0].DstPrefix != prefixIdentity {
				t.Errorf("%s: events %+v", c.name, r.events)
			}
		})
	}
}

// The subject's own prefix identity matters to the other end's policy.
func TestTheSourcesPrefixIdentityIsKnownAtTheDestination(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	a.prefix = 16777400
	n.expose(a)
	n.fill(5, append(defaults(true, 501), line{identity: 16777400, direction: ingress, proto: 6, port: 80, bits: 16, order: orderAllow, rule: 505})...)
	n.apply(b, 5, 2)
	both(t, func(t *testing.T, f family) {
		expect(t, n.from(a, between(a, a.addr(f), b.addr(f)).tcp(1, 80, "S").frame(t)), actRedirect,
			told{eventVerdict, egress, 0, a.id, 102}, told{eventVerdict, ingress, 0, b.id, 505})
		// The same packet by way of the node's stack is judged the same.
		n.forget()
		expect(t, n.via(b, a.ifindex, between(nil, a.addr(f), b.addr(f)).tcp(1, 80, "S").frame(t)), actOK,
			told{eventVerdict, egress, 0, a.id, 102}, told{eventVerdict, ingress, 0, b.id, 505})
	})
}

func TestPortPrefixesAndProtocols(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	n.fill(5, append(defaults(true, 501),
		line{direction: ingress, identity: 1001, proto: 6, port: 8080, bits: 12, order: orderAllow, rule: 510}, // 8080 to 8095
		line{direction: ingress, identity: 1001, proto: 6, port: 8085, bits: 16, order: orderDeny, rule: 511, deny: true},
		line{direction: ingress, identity: 1001, proto: 17, order: orderAllow, rule: 512}, // all of UDP
		line{direction: ingress, identity: 0, proto: 132, port: 3301, bits: 16, order: orderAllow, rule: 513},
	)...)
	n.apply(b, 5, 2)
	both(t, func(t *testing.T, f family) {
		p := between(a, a.addr(f), b.addr(f))
		for _, c := range []struct {
			name   string
			p      packet
			rule   uint32
			reason drop.Reason
		}{
			{"TCP 8079", p.tcp(1, 8079, "S"), 501, drop.Policy},
			{"TCP 8080", p.tcp(1, 8080, "S"), 510, 0},
			{"TCP 8095", p.tcp(1, 8095, "S"), 510, 0},
			{"TCP 8096", p.tcp(1, 8096, "S"), 501, drop.Policy},
			{"TCP 8085", p.tcp(1, 8085, "S"), 511, drop.PolicyDeny},
			{"UDP 1", p.udp(1, 1, ""), 512, 0},
			{"UDP 65535", p.udp(1, 65535, ""), 512, 0},
			{"SCTP 3301", p.sctp(1, 3301), 513, 0},
			{"TCP 3301", p.tcp(1, 3301, "S"), 501, drop.Policy},
			{"SCTP 3302", p.sctp(1, 3302), 501, drop.Policy},
			{"the source port is not asked", p.tcp(8080, 99, "S"), 501, drop.Policy},
			{"ping", p.ping(1), 501, drop.Policy},
		} {
			r := n.from(a, c.p.frame(t))
			want := told{eventVerdict, ingress, 0, b.id, c.rule}
			if c.reason != 0 {
				want = told{eventDrop, ingress, c.reason, b.id, c.rule}
			}
			if got := r.told(); len(got) != 2 || got[1] != want {
				t.Errorf("%s: %+v, want %+v", c.name, got, want)
			}
		}
	})
}

func TestANewRevisionJudgesLiveFlowsAgain(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	n.fill(5, defaults(false, 501)...)
	both(t, func(t *testing.T, f family) {
		there := between(a, a.addr(f), b.addr(f)).tcp(40000, 80, "A").frame(t)
		back := between(b, b.addr(f), a.addr(f)).tcp(80, 40000, "A").frame(t)
		type side struct {
			e         *endpoint
			direction uint8
			allow     uint32 // rule of slot 5
			deny      uint32 // rule of slot 2
		}
		for _, judged := range []side{{a, egress, 502, 202}, {b, ingress, 501, 201}} {
			for _, at := range []struct {
				name  string
				from  *endpoint
				frame []byte
			}{{"forward", a, there}, {"reply", b, back}} {
				name := fmt.Sprintf("direction %d judged at a %s packet", judged.direction, at.name)
				n.apply(a, slotAllow, 10)
				n.apply(b, slotAllow, 10)
				n.forget()
				n.from(a, there)
				expect(t, n.from(at.from, at.frame), actRedirect)

				// Same rules, new revision: judged without a word, and stamped.
				n.apply(judged.e, slotAllow, 11)
				expect(t, n.from(at.from, at.frame), actRedirect)
				flows := n.flows(f)
				if len(flows) != 1 || flows[0].EgressRevision+flows[0].IngressRevision != 21 || flows[0].Packets != 3 {
					t.Errorf("%s: flows %+v, want one stamped 11 on one side", name, flows)
				}
				// Another rule allows: told once.
				n.apply(judged.e, 5, 12)
				expect(t, n.from(at.from, at.frame), actRedirect, told{eventVerdict, judged.direction, 0, judged.e.id, judged.allow})
				expect(t, n.from(at.from, at.frame), actRedirect)
				// Denied: dropped at once, told as the flow's initiator sees it, from either end.
				n.apply(judged.e, slotDeny, 13)
				r := n.from(at.from, at.frame)
				expect(t, r, actShot, told{eventDrop, judged.direction, drop.Policy, judged.e.id, judged.deny})
				if len(r.events) == 1 {
					if e := r.events[0]; e.sport() != 40000 || e.dport() != 80 || e.SrcIdentity != 1001 || e.DstIdentity != 2002 || e.SAddr[0] != a.addr(f).AsSlice()[0] || e.SAddr[len(a.addr(f).AsSlice())-1] != 1 {
						t.Errorf("%s: drop event %+v is not in the initiator's orientation", name, e)
					}
				}
				// What is on its way back does not open the flow from the other end.
				for _, next := range []result{n.from(b, back), n.from(a, there), n.from(b, back)} {
					expect(t, next, actShot, told{eventDrop, judged.direction, drop.Policy, judged.e.id, judged.deny})
				}
				if flows := n.flows(f); len(flows) != 1 || flows[0].EgressRevision+flows[0].IngressRevision != 0 || flows[0].Packets != 5 {
					t.Errorf("%s: flows %+v, want one without a revision", name, flows)
				}
				// Allowed again, it goes on.
				n.apply(judged.e, 5, 14)
				expect(t, n.from(at.from, at.frame), actRedirect)
				expect(t, n.from(b, back), actRedirect)
			}
		}
		// Both ends moved on: a denied first direction ends it, the other is not asked.
		n.apply(a, slotAllow, 20)
		n.apply(b, slotAllow, 20)
		n.from(a, there)
		n.apply(a, slotDeny, 21)
		n.apply(b, 5, 21)
		expect(t, n.from(a, there), actShot, told{eventDrop, egress, drop.Policy, a.id, 202})
		n.apply(a, slotAllow, 22)
		n.apply(b, slotAllow, 22)
	})
}

// A reply from outside to a flow that the pod opened is judged by the pod's egress policy.
func TestRepliesFromOutsideFollowTheEgressPolicy(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, _ := openPair(t)
	n.fill(5, line{direction: ingress, rule: 501, deny: true}, line{direction: egress, rule: 502})
	both(t, func(t *testing.T, f family) {
		n.apply(a, 5, 1)
		there := between(a, a.addr(f), outside(f)).udp(40000, 53, "q").frame(t)
		back := between(nil, outside(f), a.addr(f)).udp(53, 40000, "a").frame(t)
		expect(t, n.from(a, there), actOK, told{eventVerdict, egress, 0, a.id, 502})
		expect(t, n.to(a, back), actOK)
		n.apply(a, 5, 2)
		expect(t, n.to(a, back), actOK)
		n.apply(a, slotDeny, 3)
		expect(t, n.to(a, back), actShot, told{eventDrop, egress, drop.Policy, a.id, 202})
		expect(t, n.to(a, back), actShot, told{eventDrop, egress, drop.Policy, a.id, 202})
	})
}

func TestAnExpiredEntryIsNone(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	both(t, func(t *testing.T, f family) {
		there := between(a, a.addr(f), b.addr(f)).udp(40000, 53, "q").frame(t)
		n.from(a, there)
		m := n.coll.Maps[pick(a.addr(f), "weir_ct4", "weir_ct6")]
		key, e := make([]byte, m.KeySize()), flow{}
		if it := m.Iterate(); !it.Next(&key, &e) {
			t.Fatal("no flow")
		}
		e.Expires = nowSeconds(t) - 1
		if err := m.Update(key, &e, ebpf.UpdateExist); err != nil {
			t.Fatal(err)
		}
		expect(t, n.from(b, between(b, b.addr(f), a.addr(f)).udp(53, 40000, "late").frame(t)), actRedirect,
			told{eventVerdict, egress, 0, b.id, 102}, told{eventVerdict, ingress, 0, a.id, 101})
	})
}

// An address that the agent has no room or no number for is denied in both
// directions: whatever the policy allows, audited or not, also on a live flow.
func TestAClosedPeerIsDeniedWhateverThePolicySays(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, _ := openPair(t)
	const reserved, other = uint32(identity.ReservedClosed), 16777300
	revision := uint32(10)
	both(t, func(t *testing.T, f family) {
		out := between(a, a.addr(f), outside(f)).tcp(40000, 80, "S").frame(t)
		in := between(nil, outside(f), a.addr(f)).tcp(40001, 80, "S").frame(t)
		all := netip.PrefixFrom(outside(f), 0).Masked().String()
		for _, c := range []struct {
			who, where uint32
			shut       bool
		}{{reserved, reserved, true}, {other, reserved, true}, {reserved, 0, true}, {other, other, false}} {
			for _, slot := range []uint32{slotAllow, slotDeny, 0} {
				for _, audit := range []uint64{0, 1} {
					n.know(all, other, other)
					n.apply(a, slotAllow, revision)
					n.forget()
					n.from(a, out) // a flow that is live
					n.know(all, c.who, c.where)
					revision++
					n.apply(a, slot, revision)
					config := n.config(a)
					config[2] = audit
					n.put("weir_epconfig", a.id, config)
					for direction, r := range map[uint8]result{egress: n.from(a, out), ingress: n.to(a, in)} {
						if c.shut {
							expect(t, r, actShot, told{eventDrop, direction, drop.PrefixClosed, a.id, 0})
						} else if open := slot == slotAllow || audit == 1 && slot == slotDeny; open != (r.act != actShot) {
							t.Errorf("%+v, slot %d, audit %d, direction %d: verdict %d", c, slot, audit, direction, r.act)
						}
					}
				}
			}
		}
	})
}

// A flow that is denied is remembered for as long as its initiator goes on, so that
// its responder cannot open it anew; the responder does not keep it alive.
func TestADeniedFlowLastsWhileItsInitiatorGoesOn(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	both(t, func(t *testing.T, f family) {
		there := between(a, a.addr(f), b.addr(f)).udp(40000, 53, "q").frame(t)
		back := between(b, b.addr(f), a.addr(f)).udp(53, 40000, "a").frame(t)
		m := n.coll.Maps[pick(a.addr(f), "weir_ct4", "weir_ct6")]
		entry := func() (key []byte, e flow) {
			key = make([]byte, m.KeySize())
			if it := m.Iterate(); !it.Next(&key, &e) {
				t.Fatal("no entry")
			}
			return key, e
		}
		lasts := func(seconds uint32) uint32 { // from the allowed packet on
			key, e := entry()
			e.Expires -= 60 - seconds
			check(t, m.Put(key, e))
			return e.Expires
		}
		n.from(a, there)
		n.apply(a, slotDeny, 2)
		for range 2 { // at first, and when it is known as denied
			soon := lasts(10)
			n.from(a, there)
			if _, e := entry(); e.Expires < soon+50 || e.EgressRevision+e.IngressRevision != 0 {
				t.Errorf("the initiator's denied packet leaves %+v, which was to end at %d", e, soon)
			}
		}
		soon := lasts(10)
		n.from(b, back)
		if _, e := entry(); e.Expires != soon {
			t.Errorf("the responder's packet leaves %+v, which was to end at %d", e, soon)
		}
		n.forget()
		n.apply(a, slotAllow, 3)
	})
}
