package filesource

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/weirnet/weir/pkg/labels"
)

// Host is who has addresses and is no pod.
type Host struct {
	Name   string // of a Node; kube-apiserver
	Local  bool   // this node
	Addrs  []netip.Addr
	Labels labels.LabelArray // reserved ones, as the agent gives them
}

// Hosts returns the nodes, sorted by name, and the API server. An address of both
// is the API server's, but one of this node stays this node's.
func (s *Snapshot) Hosts() []Host {
	var out []Host
	server := Host{Name: labels.NameKubeAPIServer, Labels: labels.NewLabelArray(labels.Reserved(labels.NameKubeAPIServer), labels.Reserved(labels.NameRemoteNode))}
	server.Addrs = slices.DeleteFunc(slices.Clone(s.APIServer), func(a netip.Addr) bool {
		for _, n := range s.Nodes {
			if n.Local && slices.Contains(n.Addresses, a) {
				return true
			}
		}
		return false
	})
	for _, name := range slices.Sorted(maps.Keys(s.Nodes)) {
		n := s.Nodes[name]
		h := Host{Name: name, Local: n.Local, Labels: labels.NewLabelArray(labels.Reserved(labels.NameHost)), Addrs: n.Addresses}
		if !n.Local {
			h.Labels = labels.NewLabelArray(labels.Reserved(labels.NameRemoteNode))
			h.Addrs = slices.DeleteFunc(slices.Clone(n.Addresses), func(a netip.Addr) bool { return slices.Contains(server.Addrs, a) })
		}
		out = append(out, h)
	}
	if len(server.Addrs) > 0 {
		out = append(out, server)
	}
	return out
}
