package oracle

import (
	"net/netip"
	"slices"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/types"
)

// Pod is an endpoint that policies select, on any node.
type Pod struct {
	Name       string
	Labels     labels.LabelArray // identity-relevant
	Addrs      []netip.Addr
	NamedPorts types.NamedPorts
	// Enforcement is its own mode, where it has one.
	Enforcement types.Enforcement
}

// Node is a machine of the cluster. Host-network pods are part of theirs.
type Node struct {
	Name  string
	Local bool // the node whose pods are judged
	Addrs []netip.Addr
	// Labels are its labels as a peer; nil: reserved:host of the local node,
	// reserved:remote-node of every other.
	Labels labels.LabelArray
}

// World is everything that has an address. An address of nobody is outside.
type World struct {
	Pods  []Pod
	Nodes []Node
	// Outside gives labels to outside addresses that have more than those of the
	// world, an API server's for example. nil: none has.
	Outside map[netip.Addr]labels.LabelArray
}

// end is one end of a connection.
type end struct {
	addr    netip.Addr
	labels  labels.LabelArray
	pod     *Pod // nil: not a pod
	local   bool // the local node
	outside bool
}

// at finds out who has an address.
func (w *World) at(a netip.Addr) end {
	a = a.Unmap()
	for i := range w.Pods {
		if slices.Contains(w.Pods[i].Addrs, a) {
			return end{addr: a, labels: w.Pods[i].Labels, pod: &w.Pods[i]}
		}
	}
	for _, n := range w.Nodes {
		if !slices.Contains(n.Addrs, a) {
			continue
		}
		e := end{addr: a, labels: n.Labels, local: n.Local}
		if e.labels == nil {
			name := labels.NameRemoteNode
			if n.Local {
				name = labels.NameHost
			}
			e.labels = labels.NewLabelArray(labels.Reserved(name))
		}
		return e
	}
	e := end{addr: a, labels: labels.NewLabelArray(labels.WorldLabel(a)), outside: true}
	if more, ok := w.Outside[a]; ok {
		e.labels = more
	}
	return e
}
