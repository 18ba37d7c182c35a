package bpf_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

type family int

const (
	v4 family = 4
	v6 family = 6
)

func (f family) String() string { return map[family]string{v4: "IPv4", v6: "IPv6"}[f] }

// outside is a host that is no pod.
func outside(f family) netip.Addr {
	if f == v4 {
		return netip.MustParseAddr("203.0.113.10")
	}
	return netip.MustParseAddr("2001:db8:ffff::10")
}

// both runs a test once a family.
func both(t *testing.T, run func(t *testing.T, f family)) {
	for _, f := range []family{v4, v6} {
		t.Run(f.String(), func(t *testing.T) { run(t, f) })
	}
}

// packet is a frame in the making: the parts that tests vary.
type packet struct {
	srcMAC, dstMAC [6]byte
	src, dst       netip.Addr
	ttl            uint8               // 0: 64
	proto          layers.IPProtocol   // filled in by the constructors
	id             uint16              // IPv4
	flags          layers.IPv4Flag     // IPv4
	offset         uint16              // IPv4, in 8 bytes
	options        []layers.IPv4Option // IPv4
	l4             gopacket.SerializableLayer
	body           []byte
}

var gatewayMAC = [6]byte{2, 0, 0, 0, 9, 9}

// between starts a packet from one address to another, as the pod e sends it;
// e may be nil for packets of the node.
func between(e *endpoint, src, dst netip.Addr) packet {
	p := packet{src: src, dst: dst, dstMAC: gatewayMAC}
	if e != nil {
		p.srcMAC = e.mac
	}
	return p
}

func (p packet) tcp(sport, dport uint16, flags string) packet {
	l := &layers.TCP{SrcPort: layers.TCPPort(sport), DstPort: layers.TCPPort(dport), Window: 1000}
	for _, f := range flags {
		switch f {
		case 'S':
			l.SYN = true
		case 'A':
			l.ACK = true
		case 'F':
			l.FIN = true
		case 'R':
			l.RST = true
		}
	}
	p.l4, p.proto = l, layers.IPProtocolTCP
	return p
}

func (p packet) udp(sport, dport uint16, body string) packet {
	p.l4, p.proto, p.body = &layers.UDP{SrcPort: layers.UDPPort(sport), DstPort: layers.UDPPort(dport)}, layers.IPProtocolUDP, []byte(body)
	return p
}

func (p packet) sctp(sport, dport uint16) packet {
	p.l4, p.proto = &layers.SCTP{SrcPort: layers.SCTPPort(sport), DstPort: layers.SCTPPort(dport)}, layers.IPProtocolSCTP
	return p
}

// icmp makes a message with the eight bytes of a header: type, code, id.
func (p packet) icmp(typ, code uint8, id uint16, body []byte) packet {
	p.body = append([]byte{typ, code, 0, 0, byte(id >> 8), byte(id), 0, 1}, body...)
	p.l4, p.proto = nil, layers.IPProtocolICMPv4
	if p.src.Is6() {
		p.proto = layers.IPProtocolICMPv6
		sum := checksum6(p.src, p.dst, 58, p.body)
		p.body[2], p.body[3] = byte(sum>>8), byte(sum)
	}
	return p
}

// ping is an echo request, pong the reply.
func (p packet) ping(id uint16) packet { return p.icmp(pick(p.src, uint8(8), 128), 0, id, nil) }
func (p packet) pong(id uint16) packet { return p.icmp(pick(p.src, uint8(0), 129), 0, id, nil) }

func pick[T any](a netip.Addr, four, six T) T {
	if a.Is4() {
		return four
	}
	return six
}

// raw sets protocol and payload by hand.
func (p packet) raw(proto layers.IPProtocol, body []byte) packet {
	p.l4, p.proto, p.body = nil, proto, body
	return p
}

// frame serializes the packet.
func (p packet) frame(t testing.TB) []byte {
	t.Helper()
	ttl := p.ttl
	if ttl == 0 {
		ttl = 64
	}
	eth := &layers.Ethernet{SrcMAC: net.HardwareAddr(p.srcMAC[:]), DstMAC: net.HardwareAddr(p.dstMAC[:]), EthernetType: layers.EthernetTypeIPv4}
	stack := []gopacket.SerializableLayer{eth}
	var network gopacket.NetworkLayer
	if p.src.Is4() {
		ip := &layers.IPv4{Version: 4, TTL: ttl, Protocol: p.proto, SrcIP: p.src.AsSlice(), DstIP: p.dst.AsSlice(),
			Id: p.id, Flags: p.flags, FragOffset: p.offset, Options: p.options}
		stack, network = append(stack, ip), ip
	} else {
		eth.EthernetType = layers.EthernetTypeIPv6
		ip := &layers.IPv6{Version: 6, HopLimit: ttl, NextHeader: p.proto, SrcIP: p.src.AsSlice(), DstIP: p.dst.AsSlice()}
		stack, network = append(stack, ip), ip
	}
	switch l := p.l4.(type) {
	case *layers.TCP:
		_ = l.SetNetworkLayerForChecksum(network)
		stack = append(stack, l)
	case *layers.UDP:
		_ = l.SetNetworkLayerForChecksum(network)
		stack = append(stack, l)
	case *layers.SCTP:
		stack = append(stack, l)
	}
	stack = append(stack, gopacket.Payload(p.body))
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, stack...); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// transport is the packet without Ethernet and the fixed IP header.
func (p packet) transport(t testing.TB) []byte {
	t.Helper()
	return p.frame(t)[14+pick(p.src, 20, 40):]
}

// ip is the packet from the network header on.
func (p packet) ip(t testing.TB) []byte { t.Helper(); return p.frame(t)[14:] }

// extended puts raw IPv6 extension headers in front of the transport header.
// Each one's first byte must name what follows it; first is the type of the first.
func (p packet) extended(t testing.TB, first uint8, headers ...[]byte) packet {
	t.Helper()
	var body []byte
	for _, h := range headers {
		body = append(body, h...)
	}
	body = append(body, p.transport(t)...)
	return packet{srcMAC: p.srcMAC, dstMAC: p.dstMAC, src: p.src, dst: p.dst, ttl: p.ttl}.raw(layers.IPProtocol(first), body)
}

// sum16 is the one's complement sum of RFC 1071.
func sum16(sum uint32, b []byte) uint32 {
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return sum
}

// checksum6 covers the pseudo header of RFC 8200 and the message.
func checksum6(src, dst netip.Addr, next uint8, message []byte) uint16 {
	sum := sum16(0, src.AsSlice())
	sum = sum16(sum, dst.AsSlice())
	sum = sum16(sum, []byte{0, 0, byte(len(message) >> 8), byte(len(message)), 0, 0, 0, next})
	return ^uint16(sum16(sum, message))
}
