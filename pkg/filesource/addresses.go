package filesource

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/weirnet/weir/pkg/workload"
)

// fieldPodIPs is the field of a pod's addresses.
const fieldPodIPs = "status.podIPs"

// dropForeign takes from pods the addresses that no pod has: those of nodes, and those
// that mean no single host. Whoever writes a Pod object must not lend its labels to a
// node. A pod in its node's network has that node's addresses, and keeps them.
func (s *Snapshot) dropForeign() (problems []Problem) {
	nodes := map[netip.Addr]string{}
	for name, n := range s.Nodes {
		for _, a := range n.Addresses {
			if first, ok := nodes[a]; !ok || name < first {
				nodes[a] = name
			}
		}
	}
	for _, key := range s.PodOrder {
		p := s.Pods[key]
		if p.HostNetwork {
			continue
		}
		var own []netip.Addr
		for _, a := range p.IPs {
			why := noPodAddress(a)
			if name, ok := nodes[a]; ok {
				why = "is an address of node " + name
			}
			if why == "" {
				own = append(own, a)
				continue
			}
			problems = append(problems, Problem{File: s.Places[key].File, Line: s.Places[key].Line, Field: fieldPodIPs, Warning: true,
				Text: fmt.Sprintf("%s %s and is not taken as the pod's; correct the field (Pod %s)", a, why, key)})
		}
		if len(own) < len(p.IPs) {
			s.Pods[key] = withAddresses(p, own)
		}
	}
	return problems
}

func withAddresses(p *workload.Pod, own []netip.Addr) *workload.Pod {
	q := *p
	q.IPs = slices.Clip(own)
	return &q
}

// noPodAddress says why no pod has an address; empty: one may.
func noPodAddress(a netip.Addr) string {
	switch {
	case a.IsUnspecified():
		return "is no address of anybody (RFC 1122, RFC 4291)"
	case a.IsLoopback():
		return "is a loopback address"
	case a.IsMulticast():
		return "is a multicast address"
	case a.IsLinkLocalUnicast():
		return "is a link-local address"
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "is the broadcast address"
	}
	return ""
}
