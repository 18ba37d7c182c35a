package simulate

import (
	"net/netip"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/types"
)

// World is what a Cluster is made from.
type World struct {
	Pods     []Pod
	Hosts    []Host
	Policies []*types.Policy
	Mode     types.Mode
}

// Pod is a managed pod.
type Pod struct {
	Name       string            // namespace/name
	Labels     labels.LabelArray // who: those that make the identity
	Addrs      []netip.Addr      // its own; a pod without one cannot be asked about
	NamedPorts types.NamedPorts
}

// Host is an end that is no pod: a node, or somebody outside.
type Host struct {
	Name   string
	Addrs  []netip.Addr
	Labels labels.LabelArray // of a node its reserved labels; nil: outside
}

// End is one end of a connection as the data plane knows it.
type End struct {
	Name       string // of the pod or host; of nobody's address the address
	Addr       netip.Addr
	Pod        bool              // its policy is asked
	Labels     labels.LabelArray // who: those that make the identity
	NamedPorts types.NamedPorts
	Identity   identity.NumericIdentity // who
	Prefix     identity.NumericIdentity // where; 0: no policy names a prefix around the address
}

// Numbers gives one number per label set, the same one for as long as it lives.
// The zero value is ready.
type Numbers struct {
	byKey map[string]identity.NumericIdentity
	pods  identity.NumericIdentity // numbers given to pods
	local identity.NumericIdentity // numbers given to prefixes
}

// Of returns the number of a label set.
func (n *Numbers) Of(a labels.LabelArray) identity.NumericIdentity {
	if id, ok := identity.LookupReservedByLabels(a); ok {
		return id
	}
	if id, ok := n.byKey[a.Key()]; ok {
		return id
	}
	if n.byKey == nil {
		n.byKey = map[string]identity.NumericIdentity{}
	}
	id := 256 + n.pods
	if scope := identity.ScopeForLabels(a); scope != identity.ScopeGlobal {
		n.local++
		id = identity.NumericIdentity(scope) | n.local
	} else {
		n.pods++
	}
	n.byKey[a.Key()] = id
	return id
}
