package monitor

import (
	"net/netip"
	"slices"

	"github.com/weirnet/weir/pkg/identity"
	ptypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/types"
)

// Filter chooses events; all its conditions must hold. The zero value takes
// everything. Events of type Lost pass unless Types leaves them out.
type Filter struct {
	Types     []Type                   // nil: any
	Verdict   *ptypes.Verdict          // nil: any
	Direction *ptypes.Direction        // nil: any
	Endpoint  uint16                   // that decided; 0: any
	Identity  identity.NumericIdentity // or prefix identity, of either end; 0: any
	Prefix    netip.Prefix             // holds the address of either end; invalid: any
	Port      uint16                   // of either end; 0: any
	Protocol  types.Proto              // ProtoAny: any
	Rule      ptypes.RuleID            // 0: any
}

// Match reports whether the filter takes e.
func (f Filter) Match(e Event) bool {
	if len(f.Types) > 0 && !slices.Contains(f.Types, e.Type) {
		return false
	}
	if e.Type == Lost {
		return true
	}
	either := func(ok func(Peer) bool) bool { return ok(e.Source) || ok(e.Destination) }
	switch {
	case f.Verdict != nil && *f.Verdict != e.Verdict,
		f.Direction != nil && *f.Direction != e.Direction,
		f.Endpoint != 0 && f.Endpoint != e.Endpoint,
		f.Protocol != types.ProtoAny && f.Protocol != e.Protocol,
		f.Rule != 0 && f.Rule != e.Rule,
		f.Port != 0 && !either(func(p Peer) bool { return p.Port == f.Port }),
		f.Identity != 0 && !either(func(p Peer) bool { return p.Identity == f.Identity || p.PrefixIdentity == f.Identity }),
		f.Prefix.IsValid() && !either(func(p Peer) bool { return f.Prefix.Contains(p.Addr) }):
		return false
	}
	return true
}
