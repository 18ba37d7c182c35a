package bpf_test

import (
	"testing"

	"github.com/weirnet/weir/pkg/drop"
	"github.com/weirnet/weir/pkg/testutils"
)

const (
	uplink    = 77 // device of the outside's packets
	hostID    = 1
	slotHost  = 6 // admits the host
	slotWorld = 7 // admits the world
)

func world(f family) uint32 { return pick(outside(f), uint32(9), 10) }

// originPair is openPair with node addresses, and policies that admit one identity alone.
func originPair(t *testing.T) (n *node, a, b *endpoint) {
	n, a, b = openPair(t)
	n.know(nodeAddr4.String()+"/32", hostID, 0)
	n.know(nodeAddr6.String()+"/128", hostID, 0)
	only := func(rule uint32, peers ...uint32) []line {
		lines := defaults(true, rule)
		lines[1].deny = false
		for _, p := range peers {
			lines = append(lines, line{identity: p, direction: ingress, order: orderAllow, rule: rule + 5})
		}
		return lines
	}
	n.fill(slotHost, only(600, hostID)...)
	n.fill(slotWorld, only(700, world(v4), world(v6))...)
	return n, a, b
}

func TestN04TheNodesAddressIsTheHostOnlyIfTheNodeMadeThePacket(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := originPair(t)
	both(t, func(t *testing.T, f family) {
		for _, c := range []struct {
			name    string
			device  uint32
			allowed uint32 // slot
			denied  uint32
			id      uint32
		}{
			{"made on the node", 0, slotHost, slotWorld, hostID},
			{"from outside", uplink, slotWorld, slotHost, world(f)},
			{"another pod's, masqueraded", a.ifindex, slotWorld, slotHost, world(f)},
			{"its own, masqueraded", b.ifindex, slotWorld, slotHost, world(f)},
		} {
			for revision, p := range map[uint32]packet{
				1000: between(nil, nodeAddr(f), b.addr(f)).tcp(40000, 80, "S"),
				2000: between(nil, nodeAddr(f), b.addr(f)).udp(40000, 53, "q"),
				3000: between(nil, nodeAddr(f), b.addr(f)).ping(7),
			} {
				n.forget()
				n.apply(b, c.denied, revision)
				if r := n.via(b, c.device, p.frame(t)); r.act != actShot || r.dropped() != drop.Policy || r.events[0].SrcIdentity != c.id {
					t.Errorf("%s, denied: verdict %d, %+v", c.name, r.act, r.events)
				}
				n.apply(b, c.allowed, revision+1)
				if r := n.via(b, c.device, p.frame(t)); r.act != actOK || len(r.events) != 1 || r.events[0].SrcIdentity != c.id {
					t.Errorf("%s, allowed: verdict %d, %+v", c.name, r.act, r.events)
				}
				expect(t, n.via(b, c.device, p.frame(t)), actOK) // established
			}
		}
	})
}

// What the node opened is not ridden from outside with the same address and ports,
// and the other way round; each is judged for itself, again and again.
func TestN04NobodyRidesAFlowOfTheNode(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, _, b := originPair(t)
	both(t, func(t *testing.T, f family) {
		n.apply(b, slotHost, 1)
		for _, p := range []packet{between(nil, nodeAddr(f), b.addr(f)).udp(40000, 53, "q"), between(nil, nodeAddr(f), b.addr(f)).tcp(40000, 80, "A")} {
			n.forget()
			if r := n.to(b, p.frame(t)); r.act != actOK {
				t.Fatalf("the node's: %+v", r.told())
			}
			for range 3 {
				if r := n.via(b, uplink, p.frame(t)); r.act != actShot || r.dropped() != drop.Policy {
					t.Errorf("verdict %d, %s for a packet from outside on a flow of the node", r.act, r.dropped())
				}
				expect(t, n.to(b, p.frame(t)), actOK)
			}
		}
	})
}

// A reply that makes the flow be judged again is about who opened it.
func TestN04ARepliesJudgementKnowsWhoOpened(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, _, b := originPair(t)
	both(t, func(t *testing.T, f family) {
		open := between(nil, nodeAddr(f), b.addr(f)).udp(40000, 53, "q").frame(t)
		reply := between(b, b.addr(f), nodeAddr(f)).udp(53, 40000, "a").frame(t)
		for _, c := range []struct {
			name          string
			device        uint32
			slot, another uint32
		}{
			{"the node", 0, slotHost, slotWorld},
			{"outside", uplink, slotWorld, slotHost},
		} {
			n.forget()
			n.apply(b, c.slot, 1)
			if r := n.via(b, c.device, open); r.act != actOK {
				t.Fatalf("%s opens: %+v", c.name, r.told())
			}
			n.apply(b, c.slot, 2)
			if r := n.from(b, reply); r.act != actOK {
				t.Errorf("%s opened, the policy says the same: verdict %d, %+v", c.name, r.act, r.told())
			}
			n.apply(b, c.another, 3)
			if r := n.from(b, reply); r.act != actShot || r.dropped() != drop.Policy {
				t.Errorf("%s opened, the policy refuses it now: verdict %d, %+v", c.name, r.act, r.told())
			}
		}
	})
}

// Answers come by whatever way: a service on the node's address may live elsewhere.
func TestN04RepliesOfTheNodesAddressPass(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := originPair(t)
	both(t, func(t *testing.T, f family) {
		n.apply(b, slotHost, 1)
		for _, device := range []uint32{0, uplink, a.ifindex} {
			n.forget()
			if r := n.from(b, between(b, b.addr(f), nodeAddr(f)).tcp(40000, 80, "S").frame(t)); r.act != actOK {
				t.Fatalf("to the node: %+v", r.told())
			}
			expect(t, n.via(b, device, between(nil, nodeAddr(f), b.addr(f)).tcp(80, 40000, "SA").frame(t)), actOK)
			n.from(b, between(b, b.addr(f), nodeAddr(f)).ping(9).frame(t))
			expect(t, n.via(b, device, between(nil, nodeAddr(f), b.addr(f)).pong(9).frame(t)), actOK)
		}
	})
}

func TestN04APodsAddressComesFromItsLinkOrNotAtAll(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := originPair(t)
	c := n.add(30, 3003, 0, "10.0.0.3", "fd00::3")
	n.apply(c, slotAllow, 1)
	both(t, func(t *testing.T, f family) {
		n.from(a, between(a, a.addr(f), b.addr(f)).tcp(40000, 80, "S").frame(t)) // a live flow is no way in either
		for name, p := range map[string]packet{
			"TCP": between(nil, a.addr(f), b.addr(f)).tcp(1, 80, "S"), "on a live flow": between(nil, a.addr(f), b.addr(f)).tcp(40000, 80, "A"),
			"UDP": between(nil, a.addr(f), b.addr(f)).udp(1, 53, "q"), "ping": between(nil, a.addr(f), b.addr(f)).ping(3),
		} {
			for _, device := range []uint32{0, uplink, b.ifindex, c.ifindex} {
				before := n.counted(drop.ForgedPod, ingress)
				r := n.via(b, device, p.frame(t))
				if r.act != actShot || r.dropped() != drop.ForgedPod || n.counted(drop.ForgedPod, ingress) != before+1 {
					t.Errorf("%s by device %d: verdict %d, %s", name, device, r.act, r.dropped())
				} else if r.events[0].SrcIdentity != world(f) || r.events[0].DstIdentity != b.identity {
					t.Errorf("%s by device %d is told of as %d to %d", name, device, r.events[0].SrcIdentity, r.events[0].DstIdentity)
				}
			}
			if r := n.via(b, a.ifindex, p.frame(t)); r.act != actOK {
				t.Errorf("%s by a's own link: verdict %d, %+v", name, r.act, r.told())
			}
		}
	})
}

// A forged first fragment says nothing of a pod's later ones.
func TestN04AForgedFragmentIsNotRemembered(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := originPair(t)
	frames := fragments(t, between(nil, a.v4, b.v4).udp(1, 80, string(make([]byte, 3000))), 30, 1480)
	if r := n.via(b, uplink, frames[0]); r.dropped() != drop.ForgedPod {
		t.Errorf("the first: %+v", r.told())
	}
	if r := n.via(b, a.ifindex, frames[1]); r.dropped() != drop.FragNotFound {
		t.Errorf("a later one of the pod: verdict %d, %+v", r.act, r.told())
	}
}
