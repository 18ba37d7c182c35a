package monitor

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/weirnet/weir/pkg/drop"
	"github.com/weirnet/weir/pkg/identity"
	ptypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/types"
)

// Type says what an event tells.
type Type uint8

// The types of events. Drop, Verdict and Audit are numbered as in bpf/lib/types.h.
const (
	Drop    Type = 1   // a packet was dropped
	Verdict Type = 2   // a connection was judged in one direction
	Audit   Type = 3   // a connection was denied in one direction and let through all the same
	Lost    Type = 255 // events are missing here; only Time, Lost and maybe Endpoint are set
)

// String prints "drop", "verdict", "audit" or "lost".
func (t Type) String() string {
	switch t {
	case Drop:
		return "drop"
	case Verdict:
		return "verdict"
	case Audit:
		return "audit"
	case Lost:
		return "lost"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Peer is one end of what an event is about.
type Peer struct {
	Addr           netip.Addr // zero if the packet was not IP
	Port           uint16     // of an ICMP echo the identifier, at the source
	Identity       identity.NumericIdentity
	PrefixIdentity identity.NumericIdentity // 0 if no prefix selector covers the address
}

// Event is one record of the data plane. A policy's verdict is told in the
// orientation of the connection, everything else as the packet went.
type Event struct {
	Time        time.Time
	Type        Type
	Verdict     ptypes.Verdict
	Reason      drop.Reason // drop.Forwarded for an allow
	Direction   ptypes.Direction
	Endpoint    uint16 // id of the endpoint whose policy or program decided; of type Lost: that told of more than its share
	Source      Peer
	Destination Peer
	Protocol    types.Proto // ProtoAny if the packet was not IP
	TCPFlags    uint8       // as on the wire, of TCP
	ICMPType    uint8       // of ICMP and ICMPv6
	ICMPCode    uint8
	Rule        ptypes.RuleID // 0: none
	Revision    uint32        // policy revision that decided
	Length      uint32        // bytes from the network header on
	IfIndex     uint32        // device that the program ran on
	Lost        uint64        // of type Lost: how many
}

// record is struct event.
type record struct {
	Timestamp                         uint64
	Type, Reason, Direction, Family   uint8
	Endpoint                          uint16
	Protocol, TCPFlags                uint8
	SourcePort, DestinationPort       [2]byte // big endian
	Length                            uint32
	SourceIdentity, DestIdentity      uint32
	SourcePrefix, DestPrefix          uint32
	Rule, Revision, IfIndex, Pad      uint32
	SourceAddress, DestinationAddress [16]byte
}

const (
	recordSize         = 88
	familyV4, familyV6 = 1, 2 // FAMILY_* of bpf/lib/types.h
)

// Decode reads a record of the ring. booted is the wall-clock time of the boot,
// to which the record's time is added. A record of a later version may be
// longer; the rest is passed over. Bytes that are no record give an error.
func Decode(b []byte, booted time.Time) (Event, error) {
	if len(b) < recordSize {
		return Event{}, fmt.Errorf("decode event: %d bytes, a record has %d", len(b), recordSize)
	}
	u32 := func(at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }
	id := func(at int) identity.NumericIdentity { return identity.NumericIdentity(u32(at)) }
	family := b[11]
	e := Event{
		Time: booted.Add(time.Duration(binary.NativeEndian.Uint64(b))),
		Type: Type(b[8]), Reason: drop.Reason(b[9]), Direction: ptypes.Direction(b[10]),
		Endpoint: binary.NativeEndian.Uint16(b[12:]), Protocol: types.Proto(b[14]), TCPFlags: b[15],
		Length: u32(20), Rule: ptypes.RuleID(u32(40)), Revision: u32(44), IfIndex: u32(48),
		Source:      Peer{Port: binary.BigEndian.Uint16(b[16:]), Identity: id(24), PrefixIdentity: id(32)},
		Destination: Peer{Port: binary.BigEndian.Uint16(b[18:]), Identity: id(28), PrefixIdentity: id(36)},
	}
	switch {
	case e.Type < Drop || e.Type > Audit:
		return Event{}, fmt.Errorf("decode event: %s is not known; agent and programs are of different versions", e.Type)
	case e.Direction > ptypes.Egress, family > familyV6:
		return Event{}, fmt.Errorf("decode event: direction %d or family %d is not known", b[10], family)
	}
	e.Source.Addr, e.Destination.Addr = address(family, b[56:72]), address(family, b[72:88])
	if e.Type == Verdict && e.Reason == drop.Forwarded {
		e.Verdict = ptypes.Allow
	}
	if family == familyV4 && e.Protocol == types.ProtoICMP || family == familyV6 && e.Protocol == types.ProtoICMPv6 {
		e.ICMPType, e.ICMPCode = b[18], b[19]
		e.Destination.Port = 0
	}
	return e, nil
}

func address(family uint8, b []byte) netip.Addr {
	switch family {
	case familyV4:
		return netip.AddrFrom4([4]byte(b))
	case familyV6:
		return netip.AddrFrom16([16]byte(b))
	}
	return netip.Addr{}
}

// FlagNames prints TCP flags (RFC 9293, section 3.1) as "SYN,ACK".
func FlagNames(flags uint8) string {
	names := ""
	for i, name := range []string{"FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"} {
		if flags&(1<<i) == 0 {
			continue
		}
		if names != "" {
			names += ","
		}
		names += name
	}
	return names
}
