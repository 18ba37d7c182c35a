package differential

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"

	wtypes "github.com/weirnet/weir/pkg/types"
)

const (
	tcpSYN, tcpACK = 0x02, 0x10

	echoRequest4, echoReply4 = 8, 0
	echoRequest6, echoReply6 = 128, 129
)

// conn is a connection that packets of a test belong to.
type conn struct {
	src, dst     *end
	proto        wtypes.Proto
	sport, dport uint16 // of ICMP: identifier and type; 0 of protocols without ports
}

func (c conn) String() string {
	return fmt.Sprintf("%s (%s) to %s (%s) %s %d to %d", c.src.name, c.src.addr, c.dst.name, c.dst.addr, c.proto, c.sport, c.dport)
}

func (c conn) v4() bool { return c.src.addr.Is4() }

func (c conn) icmp() bool {
	return c.v4() && c.proto == wtypes.ProtoICMP || !c.v4() && c.proto == wtypes.ProtoICMPv6
}

func (c conn) echo() (request, reply uint16) {
	if c.v4() {
		return echoRequest4, echoReply4
	}
	return echoRequest6, echoReply6
}

// flowKey is a flow as conntrack shows it.
type flowKey struct {
	initiator, responder netip.AddrPort
	proto                wtypes.Proto
}

// key is what conntrack has to show: an echo has its identifier at the
// requester, other ICMP messages have their type at both ends.
func (c conn) key() flowKey {
	sport, dport := c.sport, c.dport
	if c.icmp() {
		request, reply := c.echo()
		switch c.dport {
		case request:
			dport = 0
		case reply:
			sport, dport = 0, c.sport
		default:
			sport = c.dport
		}
	}
	return flowKey{netip.AddrPortFrom(c.src.addr, sport), netip.AddrPortFrom(c.dst.addr, dport), c.proto}
}

// undirected is the same for both directions of a flow.
func (k flowKey) undirected() flowKey {
	if cmp.Or(k.initiator.Addr().Compare(k.responder.Addr()), cmp.Compare(k.initiator.Port(), k.responder.Port())) > 0 {
		k.initiator, k.responder = k.responder, k.initiator
	}
	return k
}

// answerable reports whether a packet of the responder, and a later one of the
// initiator, belong to the flow that a first packet opened.
func (c conn) answerable() (reply, forward bool) {
	if !c.icmp() {
		return true, true
	}
	request, unasked := c.echo()
	return c.dport == request, c.dport != unasked
}

// frame makes a packet of the connection, from the initiator or the responder.
func (c conn) frame(reply bool, flags byte, srcMAC wtypes.MAC) []byte {
	src, dst, sport, dport := c.src.addr, c.dst.addr, c.sport, c.dport
	if reply {
		src, dst = dst, src
		if !c.icmp() {
			sport, dport = dport, sport
		}
	}
	var l4 []byte
	put := func(ns ...uint16) {
		for _, n := range ns {
			l4 = binary.BigEndian.AppendUint16(l4, n)
		}
	}
	switch {
	case c.proto == wtypes.ProtoTCP:
		put(sport, dport, 0, 1, 0, 2, 5<<12|uint16(flags), 1000, 0, 0)
	case c.proto == wtypes.ProtoUDP:
		put(sport, dport, 8, 0)
	case c.proto == wtypes.ProtoSCTP:
		put(sport, dport, 0, 0, 0, 0, 0x0100, 4)
	case c.icmp():
		if reply {
			_, dport = c.echo()
		}
		put(dport<<8, 0, sport, 1)
	default:
		put(0x1234, 0x5678, 0x9abc, 0xdef0)
	}
	b := append([]byte{2, 0, 0, 0, 9, 9}, srcMAC[:]...)
	if c.v4() {
		b = append(b, 0x08, 0x00)
		ip := []byte{0x45, 0, 0, 0, 0, 1, 0, 0, 64, byte(c.proto), 0, 0}
		ip = append(append(ip, src.AsSlice()...), dst.AsSlice()...)
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(l4)))
		sum := uint32(0)
		for i := 0; i < len(ip); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(ip[i:]))
		}
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum%0xffff))
		return append(append(b, ip...), l4...)
	}
	b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0, byte(len(l4)>>8), byte(len(l4)), byte(c.proto), 64)
	return append(append(append(b, src.AsSlice()...), dst.AsSlice()...), l4...)
}
