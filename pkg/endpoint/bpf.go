package endpoint

import (
	"github.com/weirnet/weir/pkg/endpoint/plan"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/maps/lxcmap"
	"github.com/weirnet/weir/pkg/maps/policymap"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

// KernelLines turns a map state into the lines of a policy map. The order of
// a line is its precedence above its inverted rank, so that one comparison of
// two numbers decides as Entry.Beats does.
func KernelLines(state map[policytypes.Key]policytypes.Entry) []policymap.Line {
	out := make([]policymap.Line, 0, len(state))
	for k, e := range state {
		out = append(out, policymap.Line{Key: KernelKey(k), Entry: kernelEntry(e)})
	}
	return out
}

// KernelKey is a map state's key as a key of a policy map.
func KernelKey(k policytypes.Key) policymap.Key {
	return policymap.Key{
		Identity: uint32(k.Identity), Direction: uint8(k.Direction), Stage: uint8(k.Stage),
		Protocol: uint8(k.Proto), Port: k.Port, PortBits: k.PortBits,
	}
}

func kernelEntry(e policytypes.Entry) policymap.Entry {
	return policymap.Entry{
		Order: uint64(e.Precedence)<<32 | uint64(^e.Rank), Rule: uint32(e.Rule),
		ProxyPort: e.ProxyPort, Deny: e.Verdict != policytypes.Allow, Pass: uint8(e.Next),
	}
}

// KernelInfo is what the endpoint map says about one of the endpoint's addresses.
func KernelInfo(l plan.Layout, prefix identity.NumericIdentity) lxcmap.Info {
	return lxcmap.Info{
		IfIndex: uint32(l.IfIndex), Identity: uint32(l.Identity), PrefixIdentity: uint32(prefix),
		ID: l.ID, MAC: l.MAC, NodeMAC: l.NodeMAC,
	}
}
