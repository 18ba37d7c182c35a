package policy

import (
	"cmp"
	"math/bits"

	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// portKey is the part of a map key below the plane: protocol and port prefix.
// The zero value is every port of every protocol.
type portKey struct {
	proto wtypes.Proto
	port  uint16
	bits  uint8 // 0 to 16
}

func comparePortKeys(a, b portKey) int {
	return cmp.Or(cmp.Compare(a.proto, b.proto), cmp.Compare(a.port, b.port), cmp.Compare(a.bits, b.bits))
}

// covers reports whether every packet of o is a packet of k.
func (k portKey) covers(o portKey) bool {
	switch {
	case k.proto == wtypes.ProtoAny:
		return true
	case k.proto != o.proto || k.bits > o.bits:
		return false
	}
	return o.port&portMask(k.bits) == k.port
}

// portMask has the n leading bits of a port set, n from 0 to 16.
func portMask(n uint8) uint16 { return ^uint16(uint32(0xFFFF) >> n) }

// portKeys makes the fewest masked ports that cover a port without a name. End 0
// is the first port alone, a first port 0 that is no ICMP type is every port of
// the protocol, an end below the first is none.
func portKeys(p types.Port) []portKey {
	proto, first, last := p.Proto, p.Port, p.End
	switch {
	case p.ICMPType:
		return []portKey{{proto, first, 16}}
	case proto == wtypes.ProtoAny || first == 0:
		return []portKey{{proto: proto}}
	}
	if last == 0 {
		last = first
	}
	var out []portKey
	for at, end := uint32(first), uint32(last)+1; at < end; {
		size := at & -at // the biggest block that starts here
		if fit := uint32(1) << (bits.Len32(end-at) - 1); fit < size {
			size = fit
		}
		out = append(out, portKey{proto, uint16(at), uint8(16 - bits.TrailingZeros32(size))})
		at += size
	}
	return out
}
