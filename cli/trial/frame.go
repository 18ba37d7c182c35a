package trial

import (
	"encoding/binary"
	"net/netip"

	wtypes "github.com/weirnet/weir/pkg/types"
)

// Flags of TCP.
const (
	TCPSYN, TCPACK = 0x02, 0x10
)

// Packet is a small packet as a pod or its node sends it.
type Packet struct {
	SrcMAC   wtypes.MAC
	Src, Dst netip.AddrPort // of ICMP the source's port is the identifier, the destination's the type
	Proto    wtypes.Proto
	Flags    byte // of TCP
}

// Frame is the packet on the wire. Checksums of layer 4 are not filled in.
func (p Packet) Frame() []byte {
	src, dst, is4 := p.Src.Addr().AsSlice(), p.Dst.Addr().AsSlice(), p.Src.Addr().Is4()
	sport, dport := p.Src.Port(), p.Dst.Port()
	var l4 []byte
	put := func(ns ...uint16) {
		for _, n := range ns {
			l4 = binary.BigEndian.AppendUint16(l4, n)
		}
	}
	switch {
	case p.Proto == wtypes.ProtoTCP:
		put(sport, dport, 0, 1, 0, 2, 5<<12|uint16(p.Flags), 1000, 0, 0)
	case p.Proto == wtypes.ProtoUDP:
		put(sport, dport, 8, 0)
	case p.Proto == wtypes.ProtoSCTP:
		put(sport, dport, 0, 0, 0, 0, 0x0100, 4)
	case p.Proto == wtypes.ProtoICMP && is4, p.Proto == wtypes.ProtoICMPv6 && !is4:
		put(dport<<8, 0, sport, 1)
	default:
		put(0x1234, 0x5678, 0x9abc, 0xdef0)
	}
	b := append([]byte{2, 0, 0, 0, 9, 9}, p.SrcMAC[:]...)
	if is4 {
		b = append(b, 0x08, 0x00)
		ip := []byte{0x45, 0, 0, 0, 0, 1, 0, 0, 64, byte(p.Proto), 0, 0}
		ip = append(append(ip, src...), dst...)
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(l4)))
		sum := uint32(0)
		for i := 0; i < len(ip); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(ip[i:]))
		}
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum%0xffff))
		return append(append(b, ip...), l4...)
	}
	b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0, byte(len(l4)>>8), byte(len(l4)), byte(p.Proto), 64)
	return append(append(append(b, src...), dst...), l4...)
}
