package bpf_test

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/weirnet/weir/pkg/drop"
	"github.com/weirnet/weir/pkg/testutils"
)

func TestOnlyOwnAddressesLeaveAPod(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	both(t, func(t *testing.T, f family) {
		good := between(a, a.addr(f), b.addr(f)).udp(1, 2, "x")
		for _, c := range []struct {
			name   string
			change func(*packet)
			want   drop.Reason
		}{
			{"its own", func(*packet) {}, drop.Forwarded},
			{"another pod's address", func(p *packet) { p.src, p.dst = b.addr(f), outside(f) }, drop.InvalidSource},
			{"an outside address", func(p *packet) { p.src = outside(f) }, drop.InvalidSource},
			{"an address that differs in the last bit", func(p *packet) { p.src = p.src.Next() }, drop.InvalidSource},
			{"no address", func(p *packet) { p.src = pick(p.src, netip.IPv4Unspecified(), netip.IPv6Unspecified()) }, drop.InvalidSource},
			{"another MAC", func(p *packet) { p.srcMAC[5]++ }, drop.InvalidSource},
			{"another vendor's MAC", func(p *packet) { p.srcMAC[0] ^= 4 }, drop.InvalidSource},
			{"multicast", func(p *packet) { p.dst = mustAddr(pick(p.src, "224.0.0.251", "ff02::fb")) }, drop.Multicast},
			{"broadcast", func(p *packet) { p.dst = mustAddr(pick(p.src, "255.255.255.255", "ff02::1")) }, drop.Multicast},
			{"itself", func(p *packet) { p.dst = p.src }, drop.Self},
		} {
			p := good
			c.change(&p)
			if r := n.from(a, p.frame(t)); r.dropped() != c.want || (c.want != 0) != (r.act == actShot) {
				t.Errorf("%s: verdict %d, %s; want %s", c.name, r.act, r.dropped(), c.want)
			}
		}
		// For the address checks every word of an IPv6 address counts.
		for i := range len(a.addr(f).AsSlice()) {
			s := a.addr(f).AsSlice()
			s[i] ^= 0x10
			p := good
			p.src, _ = netip.AddrFromSlice(s)
			if r := n.from(a, p.frame(t)); r.dropped() != drop.InvalidSource {
				t.Errorf("byte %d of the source changed: %s", i, r.dropped())
			}
		}
	})
}

func TestOnlyOwnAddressesEnterAPod(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, _, b := openPair(t)
	both(t, func(t *testing.T, f family) {
		for _, c := range []struct {
			name string
			dst  netip.Addr
			want drop.Reason
		}{
			{"its own", b.addr(f), drop.Forwarded},
			{"the next one", b.addr(f).Next(), drop.NotEndpoint},
			{"multicast", mustAddr(pick(b.addr(f), "224.0.0.1", "ff02::1")), drop.Multicast},
			{"broadcast", mustAddr(pick(b.addr(f), "255.255.255.255", "ff0e::1")), drop.Multicast},
		} {
			if r := n.to(b, between(nil, outside(f), c.dst).udp(1, 2, "x").frame(t)); r.dropped() != c.want {
				t.Errorf("%s: verdict %d, %s; want %s", c.name, r.act, r.dropped(), c.want)
			}
		}
	})
}

func TestFramesThatAreNotPlainIP(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	good := between(a, a.v4, b.v4).udp(1, 2, "x").frame(t)
	tagged := func(tpid uint16) []byte {
		tag := []byte{byte(tpid >> 8), byte(tpid), 0, 5}
		return slices.Concat(good[:12], tag, good[12:])
	}
	lldp := slices.Clone(good)
	lldp[12], lldp[13] = 0x88, 0xcc
	for _, c := range []struct {
		name  string
		frame []byte
		want  drop.Reason
	}{
		{"802.1Q", tagged(0x8100), drop.VLAN},
		{"802.1ad", tagged(0x88a8), drop.VLAN},
		{"LLDP", lldp, drop.UnknownL3},
	} {
		for name, r := range map[string]result{"from": n.from(a, c.frame), "to": n.to(b, c.frame)} {
			if r.act != actShot || r.dropped() != c.want {
				t.Errorf("%s %s: verdict %d, %s; want %s", c.name, name, r.act, r.dropped(), c.want)
			}
		}
	}
}

func TestBrokenHeaders(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	put16 := func(at int, v uint16) func([]byte) []byte {
		return func(f []byte) []byte { binary.BigEndian.PutUint16(f[at:], v); return f }
	}
	set := func(at int, v byte) func([]byte) []byte { return func(f []byte) []byte { f[at] = v; return f } }
	for _, c := range []struct {
		name   string
		f      family
		change func([]byte) []byte
	}{
		{"version 5", v4, set(14, 0x55)},
		{"header of 16 bytes", v4, set(14, 0x44)},
		{"header longer than the packet", v4, set(14, 0x4f)},
		{"total length shorter than the header", v4, put16(16, 19)},
		{"total length longer than the frame", v4, put16(16, 2000)},
		{"total length of zero", v4, put16(16, 0)},
		{"total length cuts the TCP header", v4, put16(16, 39)},
		{"version 4 in an IPv6 frame", v6, set(14, 0x45)},
		{"payload longer than the frame", v6, put16(18, 2000)},
		{"payload cuts the TCP header", v6, put16(18, 19)},
	} {
		for _, from := range []bool{true, false} {
			p := between(a, a.addr(c.f), b.addr(c.f)).tcp(1, 2, "S")
			frame := c.change(p.frame(t))
			r := n.to(b, frame)
			if from {
				r = n.from(a, frame)
			}
			if r.act != actShot || r.dropped() != drop.InvalidPacket {
				t.Errorf("%s (from the pod %v): verdict %d, %s", c.name, from, r.act, r.dropped())
			}
		}
	}
}

func TestIPv4Options(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	n.fill(5, append(defaults(true, 501), line{direction: egress, proto: 17, port: 53, bits: 16, order: orderAllow, rule: 503})...)
	n.apply(a, 5, 2)
	option := func(kind uint8, data ...byte) []layers.IPv4Option {
		return []layers.IPv4Option{{OptionType: kind, OptionLength: uint8(2 + len(data)), OptionData: data}}
	}
	for _, c := range []struct {
		name    string
		options []layers.IPv4Option
		port    uint16
		want    drop.Reason
	}{
		{"record route, the allowed port", option(7, 4, 0, 0, 0, 0, 0), 53, 0},
		{"record route, another port", option(7, 4, 0, 0, 0, 0, 0), 54, drop.Policy},
		{"router alert", option(148, 0, 0), 53, 0},
		{"padding", []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 0}}, 53, 0},
		{"loose source route", option(131, 4, 10, 9, 9, 9, 0), 53, drop.InvalidPacket},
		{"strict source route", option(137, 4, 10, 9, 9, 9, 0), 53, drop.InvalidPacket},
		{"source route behind padding", append([]layers.IPv4Option{{OptionType: 1}}, option(131, 4, 10, 9, 9, 9)...), 53, drop.InvalidPacket},
	} {
		p := between(a, a.v4, b.v4).udp(1, c.port, "x")
		p.options = c.options
		if r := n.from(a, p.frame(t)); r.dropped() != c.want {
			t.Errorf("%s: verdict %d, %s; want %s", c.name, r.act, r.dropped(), c.want)
		}
	}
}

// extension makes an IPv6 extension header of 8 bytes times units.
func extension(next uint8, units int, data ...byte) []byte {
	h := make([]byte, 8*units)
	h[0], h[1] = next, byte(units-1)
	copy(h[2:], data)
	return h
}

func TestIPv6ExtensionHeaders(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	n.fill(5, append(defaults(true, 501), line{direction: egress, proto: 6, port: 80, bits: 16, order: orderAllow, rule: 503})...)
	n.apply(a, 5, 2)
	const hop, routing, fragment, options, ah, tcp, none = 0, 43, 44, 60, 51, 6, 59
	ahHeader := func(next uint8) []byte { h := make([]byte, 16); h[0], h[1] = next, 2; return h }
	atomic := []byte{tcp, 0, 0, 0, 1, 2, 3, 4}
	many := func(k int) [][]byte {
		var all [][]byte
		for i := range k {
			next := uint8(options)
			if i == k-1 {
				next = tcp
			}
			all = append(all, extension(next, 1))
		}
		return all
	}
	for _, c := range []struct {
		name    string
		first   uint8
		headers [][]byte
		want    drop.Reason
	}{
		{"hop-by-hop", hop, [][]byte{extension(tcp, 1)}, 0},
		{"destination options of 64 bytes", options, [][]byte{extension(tcp, 8)}, 0},
		{"hop-by-hop, destination, AH", hop, [][]byte{extension(options, 2), extension(ah, 1), ahHeader(tcp)}, 0},
		{"atomic fragment", fragment, [][]byte{atomic}, 0},
		{"hop-by-hop in second place", options, [][]byte{extension(hop, 1), extension(tcp, 1)}, drop.InvalidExthdr},
		{"routing type 0", routing, [][]byte{extension(tcp, 3, 0, 1)}, drop.InvalidExthdr},
		{"routing type 0 without segments", routing, [][]byte{extension(tcp, 1, 0, 0)}, drop.InvalidExthdr},
		{"routing type 2 with a segment left", routing, [][]byte{extension(tcp, 3, 2, 1)}, drop.InvalidExthdr},
		{"routing type 2, done", routing, [][]byte{extension(tcp, 3, 2, 0)}, 0},
		{"eight headers", options, many(8), 0},
		{"nine headers", options, many(9), drop.InvalidExthdr},
		{"a header that reaches beyond the packet", options, [][]byte{{tcp, 200, 0, 0, 0, 0, 0, 0}}, drop.InvalidPacket},
		{"options instead of a transport header", options, [][]byte{{options, 200, 0, 0, 0, 0, 0, 0}}, drop.InvalidExthdr},
		{"no next header: judged by protocol, and denied", options, [][]byte{extension(none, 1)}, drop.Policy},
	} {
		p := between(a, a.v6, b.v6).tcp(1000, 80, "S").extended(t, c.first, c.headers...)
		r := n.from(a, p.frame(t))
		if r.dropped() != c.want || (c.want == 0) != (r.act == actRedirect) {
			t.Errorf("%s: verdict %d, %s; want %s", c.name, r.act, r.dropped(), c.want)
		}
		if c.want == 0 {
			if r := n.from(a, between(a, a.v6, b.v6).tcp(1000, 81, "S").extended(t, c.first, c.headers...).frame(t)); r.dropped() != drop.Policy {
				t.Errorf("%s: another port behind the same headers: %s", c.name, r.dropped())
			}
		}
	}
}
