package plan

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/types"
)

// Layout is everything about an endpoint that is a constant of its programs or
// part of its entry in the endpoint map. It is comparable.
type Layout struct {
	ID       uint16
	Identity identity.NumericIdentity
	IfIndex  int // host side of the pair, in the agent's namespace
	MAC      types.MAC
	NodeMAC  types.MAC
	IPv4     netip.Addr // invalid: none
	IPv6     netip.Addr
}

// Addrs lists the addresses that are set, IPv4 first.
func (l Layout) Addrs() []netip.Addr {
	var as []netip.Addr
	for _, a := range []netip.Addr{l.IPv4, l.IPv6} {
		if a.IsValid() {
			as = append(as, a)
		}
	}
	return as
}

// Input is what Build compares.
type Input struct {
	Level    regeneration.Level
	Realized *Layout // what the kernel has; nil: nothing yet, or not known after a restart
	Desired  Layout
	// PolicyDiffers says that the entries in force are not those wanted.
	PolicyDiffers bool
	// PrefixIdentityDiffers says that an address is covered by other prefixes than before.
	PrefixIdentityDiffers bool
	// Redirects counts the proxy redirects that have to be made or taken away.
	Redirects int
}

// Step is one station that the build has to pass.
type Step struct {
	Station regeneration.Station
	Reason  string // for people: why the step is needed
}

// String prints "load (first build)".
func (s Step) String() string { return fmt.Sprintf("%s (%s)", s.Station, s.Reason) }

// Build returns the steps that lead from the realized to the desired state, in
// the order in which they must run. No step means that the kernel is as wanted.
func Build(in Input) []Step {
	var steps []Step
	add := func(s regeneration.Station, reason string) {
		if reason != "" {
			steps = append(steps, Step{s, reason})
		}
	}
	load := loadReason(in)
	if in.Redirects > 0 {
		add(regeneration.StationRedirect, fmt.Sprintf("%d proxy redirects changed", in.Redirects))
	}
	add(regeneration.StationLoad, load)
	add(regeneration.StationPolicySwap, policyReason(in))
	add(regeneration.StationAttach, load)
	expose := load
	if expose == "" && in.PrefixIdentityDiffers {
		expose = "prefix identity changed"
	}
	add(regeneration.StationExpose, expose)
	return steps
}

func loadReason(in Input) string {
	if in.Realized == nil {
		return "first build"
	}
	if d := in.Realized.differences(in.Desired); len(d) > 0 {
		return strings.Join(d, ", ") + " changed"
	}
	if in.Level >= regeneration.LevelLoad {
		return "asked for"
	}
	return ""
}

func policyReason(in Input) string {
	switch {
	case in.Realized == nil:
		return "first build"
	case in.Realized.Identity != in.Desired.Identity:
		return "identity changed"
	case in.PolicyDiffers:
		return "policy changed"
	}
	return ""
}

// differences names the fields in which two layouts differ.
func (l Layout) differences(o Layout) []string {
	var d []string
	for _, f := range []struct {
		name string
		diff bool
	}{
		{"identity", l.Identity != o.Identity},
		{"interface", l.IfIndex != o.IfIndex},
		{"MAC address", l.MAC != o.MAC || l.NodeMAC != o.NodeMAC},
		{"IPv4 address", l.IPv4 != o.IPv4},
		{"IPv6 address", l.IPv6 != o.IPv6},
	} {
		if f.diff {
			d = append(d, f.name)
		}
	}
	return d
}

// Undo is a step of a deletion.
type Undo string

// The steps of a deletion. Each may be repeated without harm.
const (
	UndoEndpointMap Undo = "endpoint map entry" // nothing is delivered to the pod from here on
	UndoIPCache     Undo = "ipcache entry"
	UndoLink        Undo = "link and routes" // the link is down: without programs it would let everything pass
	UndoAttach      Undo = "programs"
	UndoPolicy      Undo = "policy slot"
	UndoConntrack   Undo = "conntrack entries"
	UndoRecord      Undo = "record"
	UndoNumber      Undo = "endpoint id"
	UndoIdentity    Undo = "identity"
)

// Teardown returns the steps of a deletion in the order in which they must run.
func Teardown() []Undo {
	return []Undo{
		UndoEndpointMap, UndoIPCache, UndoLink, UndoAttach, UndoPolicy,
		UndoConntrack, UndoRecord, UndoNumber, UndoIdentity,
	}
}
