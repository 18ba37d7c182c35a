package bpf_test

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/weirnet/weir/pkg/drop"
	"github.com/weirnet/weir/pkg/testutils"
)

var (
	gateway4  = netip.MustParseAddr("169.254.1.1")
	gateway6  = netip.MustParseAddr("fe80::1")
	linkLocal = netip.MustParseAddr("fe80::aa")
)

func arp(dst, src [6]byte, operation uint8, senderMAC [6]byte, sender netip.Addr, targetMAC [6]byte, target netip.Addr) []byte {
	return slices.Concat(dst[:], src[:], []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, operation},
		senderMAC[:], sender.AsSlice(), targetMAC[:], target.AsSlice())
}

var broadcast = [6]byte{255, 255, 255, 255, 255, 255}

func TestARPForTheGatewayIsAnswered(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	unknown := [6]byte{}
	n.coll.Maps["weir_lxc"].Delete(lxcKey(a.v4)) // not yet exposed
	before := n.counted(drop.Forwarded, egress)
	r := n.from(a, arp(broadcast, a.mac, 1, a.mac, a.v4, unknown, gateway4))
	want := arp(a.mac, a.nodeMAC, 2, a.nodeMAC, gateway4, a.mac, a.v4)
	if r.act != actRedirect || !bytes.Equal(r.frame, want) || len(r.events) != 0 {
		t.Errorf("verdict %d, answer\n%x, want\n%x", r.act, r.frame, want)
	}
	if n.counted(drop.Forwarded, egress) != before+1 {
		t.Error("the answer is not counted")
	}
	for _, c := range []struct {
		name  string
		frame []byte
		want  drop.Reason
	}{
		{"another target", arp(broadcast, a.mac, 1, a.mac, a.v4, unknown, b.v4), drop.ARP},
		{"a probe for the gateway", arp(broadcast, a.mac, 1, a.mac, netip.IPv4Unspecified(), unknown, gateway4), drop.ARP},
		{"an answer", arp(gatewayMAC, a.mac, 2, a.mac, a.v4, gatewayMAC, gateway4), drop.ARP},
		{"another's MAC", arp(broadcast, b.mac, 1, b.mac, a.v4, unknown, gateway4), drop.InvalidSource},
		{"cut short", arp(broadcast, a.mac, 1, a.mac, a.v4, unknown, gateway4)[:40], drop.InvalidPacket},
	} {
		if r := n.from(a, c.frame); r.act != actShot || r.dropped() != c.want {
			t.Errorf("%s: verdict %d, %s; want %s", c.name, r.act, r.dropped(), c.want)
		}
	}
}

// nd makes a neighbour message: type, flags, target and options.
func nd(p packet, typ uint8, flags uint32, target netip.Addr, options ...byte) packet {
	body := slices.Concat([]byte{byte(flags >> 24), byte(flags >> 16), byte(flags >> 8), byte(flags)}, target.AsSlice(), options)
	p.body = append([]byte{typ, 0, 0, 0}, body...)
	p.proto, p.ttl = 58, 255
	sum := checksum6(p.src, p.dst, 58, p.body)
	p.body[2], p.body[3] = byte(sum>>8), byte(sum)
	return p
}

func linkOption(kind byte, mac [6]byte) []byte { return append([]byte{kind, 1}, mac[:]...) }

func TestSolicitationsForTheGatewayAreAnswered(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, _ := openPair(t)
	n.apply(a, slotDeny, 9) // policy has no say in this
	solicited := mustAddr("ff02::1:ff00:1")
	const router, requested, override = 1 << 31, 1 << 30, 1 << 29
	for _, c := range []struct {
		name  string
		src   netip.Addr
		opts  []byte
		dst   netip.Addr // of the answer
		flags uint32
	}{
		{"global source", a.v6, linkOption(1, a.mac), a.v6, router | requested | override},
		{"link-local source", linkLocal, linkOption(1, a.mac), linkLocal, router | requested | override},
		{"no option", a.v6, nil, a.v6, router | requested | override},
		{"two options", a.v6, append(linkOption(1, a.mac), 14, 1, 1, 2, 3, 4, 5, 6), a.v6, router | requested | override},
		{"duplicate address detection", netip.IPv6Unspecified(), nil, mustAddr("ff02::1"), router | override},
		{"duplicate address detection with nonce", netip.IPv6Unspecified(), []byte{14, 1, 1, 2, 3, 4, 5, 6}, mustAddr("ff02::1"), router | override},
	} {
		r := n.from(a, nd(between(a, c.src, solicited), 135, 0, gateway6, c.opts...).frame(t))
		answer := nd(packet{srcMAC: a.nodeMAC, dstMAC: a.mac, src: gateway6, dst: c.dst}, 136, c.flags, gateway6, linkOption(2, a.nodeMAC)...)
		if want := answer.frame(t); r.act != actRedirect || !bytes.Equal(r.frame, want) {
			t.Errorf("%s: verdict %d, %s, answer\n%x, want\n%x", c.name, r.act, r.dropped(), r.frame, want)
		}
	}
}

func TestOtherNeighbourDiscoveryEndsAtTheNode(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	all, solicited := mustAddr("ff02::1"), mustAddr("ff02::1:ff00:2")
	lowHops := nd(between(a, a.v6, solicited), 135, 0, gateway6)
	lowHops.ttl = 254
	for _, c := range []struct {
		name string
		p    packet
		want drop.Reason
	}{
		{"solicitation for another pod", nd(between(a, a.v6, solicited), 135, 0, b.v6), drop.ND},
		{"advertisement", nd(between(a, a.v6, all), 136, 1<<29, b.v6), drop.ND},
		{"listener query", nd(between(a, linkLocal, all), 130, 0, gateway6), drop.ND},
		{"router advertisement", nd(between(a, linkLocal, all), 134, 0, gateway6), drop.ForbiddenICMP6},
		{"router advertisement to a pod", nd(between(a, a.v6, b.v6), 134, 0, gateway6), drop.ForbiddenICMP6},
		{"redirect", nd(between(a, linkLocal, b.v6), 137, 0, gateway6), drop.ForbiddenICMP6},
		{"solicitation from beyond a router", lowHops, drop.InvalidPacket},
	} {
		if r := n.from(a, c.p.frame(t)); r.act != actShot || r.dropped() != c.want {
			t.Errorf("%s: verdict %d, %s; want %s", c.name, r.act, r.dropped(), c.want)
		}
	}
	hidden := nd(between(a, linkLocal, all), 134, 0, gateway6).extended(t, 60, extension(58, 1))
	if r := n.from(a, hidden.frame(t)); r.dropped() != drop.ForbiddenICMP6 {
		t.Errorf("router advertisement behind an extension header: %s", r.dropped())
	}
}

func TestTheNodesNeighbourDiscoveryPasses(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, _, b := openPair(t)
	n.apply(b, slotDeny, 9)
	lowHops := nd(between(nil, linkLocal, b.v6), 135, 0, b.v6)
	lowHops.ttl = 254
	for _, c := range []struct {
		name string
		p    packet
		want drop.Reason
	}{
		{"solicitation", nd(between(nil, linkLocal, mustAddr("ff02::1:ff00:2")), 135, 0, b.v6, linkOption(1, b.nodeMAC)...), 0},
		{"advertisement", nd(between(nil, linkLocal, b.v6), 136, 3<<29, linkLocal, linkOption(2, b.nodeMAC)...), 0},
		{"solicitation from beyond a router", lowHops, drop.ForbiddenICMP6},
		{"router advertisement", nd(between(nil, linkLocal, mustAddr("ff02::1")), 134, 0, gateway6), drop.ForbiddenICMP6},
		{"router advertisement, unicast", nd(between(nil, linkLocal, b.v6), 134, 0, gateway6), drop.ForbiddenICMP6},
		{"redirect", nd(between(nil, linkLocal, b.v6), 137, 0, gateway6), drop.ForbiddenICMP6},
		{"listener query", nd(between(nil, linkLocal, mustAddr("ff02::1")), 130, 0, gateway6), drop.ForbiddenICMP6},
	} {
		r := n.to(b, c.p.frame(t))
		if r.dropped() != c.want || (c.want == 0) != (r.act == actOK) || (c.want == 0 && len(r.events) > 0) {
			t.Errorf("%s: verdict %d, %+v; want %s", c.name, r.act, r.told(), c.want)
		}
	}
	if r := n.to(b, arp(broadcast, b.nodeMAC, 1, b.nodeMAC, mustAddr("10.0.0.254"), [6]byte{}, b.v4)); r.act != actOK {
		t.Errorf("ARP of the node: %+v", r.told())
	}
}

// What a healthy pod sends of its own accord ends at the node and is no fault.
func TestN62OrdinaryNeighbourMessagesAreNoDrops(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, _ := openPair(t)
	none, all, routers, reports := netip.IPv6Unspecified(), mustAddr("ff02::1"), mustAddr("ff02::2"), mustAddr("ff02::16")
	report := func(src netip.Addr, typ uint8) packet {
		p := nd(between(a, src, reports), typ, 1, none).extended(t, 0, []byte{58, 0, 5, 2, 0, 0, 1, 0}) // with the router alert
		p.ttl = 1
		return p
	}
	for name, frame := range map[string][]byte{
		"duplicate address detection":               nd(between(a, none, mustAddr("ff02::1:ff00:1")), 135, 0, a.v6).frame(t),
		"duplicate address detection of link-local": nd(between(a, none, mustAddr("ff02::1:ff00:aa")), 135, 0, linkLocal).frame(t),
		"router solicitation":                       nd(between(a, linkLocal, routers), 133, 0, gateway6).frame(t),
		"router solicitation without address":       nd(between(a, none, routers), 133, 0, gateway6).frame(t),
		"listener report 2":                         report(linkLocal, 143).frame(t),
		"listener report 2 without address":         report(none, 143).frame(t),
		"listener report 1":                         report(linkLocal, 131).frame(t),
		"listener done":                             report(linkLocal, 132).frame(t),
		"announcement of its address":               nd(between(a, a.v6, all), 136, 1<<29, a.v6).frame(t),
		"announcement of link-local":                nd(between(a, linkLocal, all), 136, 1<<29, linkLocal).frame(t),
		"gratuitous ARP":                            arp(broadcast, a.mac, 1, a.mac, a.v4, [6]byte{}, a.v4),
		"gratuitous ARP, an answer":                 arp(broadcast, a.mac, 2, a.mac, a.v4, a.mac, a.v4),
		"ARP probe for its address":                 arp(broadcast, a.mac, 1, a.mac, netip.IPv4Unspecified(), [6]byte{}, a.v4),
	} {
		before := n.counted(drop.Forwarded, egress)
		r := n.from(a, frame)
		if r.act != actShot || len(r.events) != 0 || n.counted(drop.Forwarded, egress) != before+1 {
			t.Errorf("%s: verdict %d, told %+v", name, r.act, r.told())
		}
	}
	for reason := range 255 {
		if c := n.counted(drop.Reason(reason), egress); reason != 0 && c != 0 {
			t.Errorf("%d drops for %s", c, drop.Reason(reason))
		}
	}
}
