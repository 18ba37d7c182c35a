package ctmap

import (
	"encoding/binary"
	"math"
	"net/netip"

	"github.com/cilium/ebpf"
)

// Flags of an entry (CT_* of bpf/lib/types.h).
const (
	initiatorIs1 = 1 << 0
	seenReply    = 1 << 1
	closingInit  = 1 << 2
	closingResp  = 1 << 3
	established  = 1 << 4
)

// Flow is one connection, seen from the end that opened it.
type Flow struct {
	// Initiator and Responder are the two ends. An ICMP echo has its identifier
	// as the initiator's port and 0 as the responder's; other ICMP messages have
	// their type as both; protocols without ports have 0.
	Initiator netip.AddrPort
	Responder netip.AddrPort
	Protocol  uint8
	Packets   uint64 // both directions
	Bytes     uint64
	Expires   uint32 // seconds of bpf.FlowTime

	SeenReply        bool
	InitiatorClosing bool // FIN or RST seen from it
	ResponderClosing bool
	Established      bool // a TCP segment other than SYN was seen

	// Revisions under which the flow was allowed; 0: that end is not a local endpoint.
	EgressRevision  uint32
	IngressRevision uint32
	// Numbers of the rules that allowed it; 0: none.
	EgressRule  uint32
	IngressRule uint32
}

// key4 is struct ct4_key. Side 0 has the smaller address, then port.
type key4 struct {
	Addr     [2][4]byte
	Port     [2][2]byte // big endian
	Protocol uint8
	Pad      [3]byte
}

// key6 is struct ct6_key.
type key6 struct {
	Addr     [2][16]byte
	Port     [2][2]byte // big endian
	Protocol uint8
	Pad      [3]byte
}

// entry is struct ct_entry.
type entry struct {
	Packets, Bytes                  uint64
	Expires, Flags                  uint32
	EgressRevision, IngressRevision uint32
	EgressRule, IngressRule         uint32
}

// fragKey is struct frag_key.
type fragKey struct {
	Source, Destination [16]byte
	ID                  [4]byte
	Protocol, Family    uint8
	Pad                 [2]byte
}

// fragEntry is struct frag_entry.
type fragEntry struct {
	Source, Destination [2]byte
	Protocol, ICMPType  uint8
	Pad                 [2]byte
}

// rawKey is a key of either family.
type rawKey interface {
	key4 | key6
	// side returns an end of the flow, 0 or 1.
	side(int) netip.AddrPort
	protocol() uint8
}

func (k key4) side(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4(k.Addr[i]), binary.BigEndian.Uint16(k.Port[i][:]))
}

func (k key6) side(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(k.Addr[i]), binary.BigEndian.Uint16(k.Port[i][:]))
}

func (k key4) protocol() uint8 { return k.Protocol }
func (k key6) protocol() uint8 { return k.Protocol }

func decode[K rawKey](k K, e entry) Flow {
	initiator := int(e.Flags & initiatorIs1)
	return Flow{
		Initiator: k.side(initiator), Responder: k.side(1 - initiator), Protocol: k.protocol(),
		Packets: e.Packets, Bytes: e.Bytes, Expires: e.Expires,
		SeenReply: e.Flags&seenReply != 0, Established: e.Flags&established != 0,
		InitiatorClosing: e.Flags&closingInit != 0, ResponderClosing: e.Flags&closingResp != 0,
		EgressRevision: e.EgressRevision, IngressRevision: e.IngressRevision,
		EgressRule: e.EgressRule, IngressRule: e.IngressRule,
	}
}

// Spec is the layout of a family's map, of any room.
func Spec(f Family) *ebpf.MapSpec { return spec(f, 0) }

// NewestRevision is the largest revision of any flow.
func (c *Map) NewestRevision() (newest uint32, err error) {
	err = c.Each(func(f Flow) bool {
		for _, r := range []uint32{f.EgressRevision, f.IngressRevision} {
			if r != math.MaxUint32 { // of an endpoint without policy
				newest = max(newest, r)
			}
		}
		return true
	})
	return newest, err
}
