package policy

import (
	"net/netip"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/types"
)

// Prefixes returns every prefix that the policies name, blocks and excepts, with
// whether a block that matches pods names it; and the single addresses of pods
// that have to be told apart by a prefix of their own because of named ports.
func Prefixes(policies []*types.Policy, x *Index) map[netip.Prefix]bool {
	var n Names
	for _, p := range policies {
		n.Count(p, 1)
	}
	out := n.Prefixes()
	for p := range n.Apart(x) {
		out[p] = true
	}
	return out
}

// Names counts what policies name that Prefixes depends on, so that a change of
// one policy costs no look at the others. The zero value is of no policies.
type Names struct {
	prefixes map[netip.Prefix]uses
	ports    map[string]*namedDestination
}

// uses is how often a prefix is named, and how often of these by blocks that match pods.
type uses struct{ all, pods int }

// namedDestination is a named port of the pods that a peer selects.
type namedDestination struct {
	peer types.Peer
	name types.NamedPort
	uses int
}

// Count adds a policy (by 1) or takes it back (by -1). It returns the prefixes
// for which that makes a difference, and whether Apart may be another.
func (n *Names) Count(p *types.Policy, by int) (touched []netip.Prefix, apart bool) {
	if n.prefixes == nil {
		n.prefixes, n.ports = map[netip.Prefix]uses{}, map[string]*namedDestination{}
	}
	block := func(p netip.Prefix, pods bool) {
		if p = labels.CanonicalPrefix(p); p.IsValid() && n.prefix(p, pods, by) {
			touched = append(touched, p)
		}
	}
	for i := range p.Rules {
		r := &p.Rules[i]
		for _, peer := range r.Peers {
			if peer.CIDR == nil {
				continue
			}
			block(peer.CIDR.Prefix, peer.CIDR.Pods)
			for _, e := range peer.CIDR.Except {
				block(e, peer.CIDR.Pods)
			}
		}
		if r.Direction != types.Egress {
			continue
		}
		for _, port := range r.Ports {
			if port.Name == "" {
				continue
			}
			for _, peer := range peersOf(r) {
				apart = n.port(peer, types.NamedPort{Name: port.Name, Proto: port.Proto}, by) || apart
			}
		}
	}
	return touched, apart
}

func (n *Names) prefix(p netip.Prefix, pods bool, by int) (changed bool) {
	before := n.prefixes[p]
	now := uses{before.all + by, before.pods}
	if pods {
		now.pods += by
	}
	if n.prefixes[p] = now; now.all == 0 {
		delete(n.prefixes, p)
	}
	return (before.all > 0) != (now.all > 0) || (before.pods > 0) != (now.pods > 0)
}

// Prefix reports whether a prefix is named, and whether a block that matches
// pods names it.
func (n *Names) Prefix(p netip.Prefix) (pods, named bool) {
	u, named := n.prefixes[p]
	return u.pods > 0, named
}

func (n *Names) port(peer types.Peer, name types.NamedPort, by int) (changed bool) {
	key := PeerKey(peer) + " " + name.String()
	d := n.ports[key]
	if d == nil {
		d = &namedDestination{peer: peer, name: name}
		n.ports[key] = d
	}
	if d.uses += by; d.uses == 0 {
		delete(n.ports, key)
		return true
	}
	return by > 0 && d.uses == by
}

// Prefixes returns the prefixes that are named, with whether a block that
// matches pods names it.
func (n *Names) Prefixes() map[netip.Prefix]bool {
	out := make(map[netip.Prefix]bool, len(n.prefixes))
	for p, u := range n.prefixes {
		out[p] = u.pods > 0
	}
	return out
}

// Apart returns the single addresses of pods that have to be told apart because
// of named ports.
func (n *Names) Apart(x *Index) map[netip.Prefix]bool {
	out := map[netip.Prefix]bool{}
	for _, d := range n.ports {
		x.eachAmbiguous(d.peer, d.name, func(a netip.Addr) { out[netip.PrefixFrom(a, a.BitLen())] = true })
	}
	return out
}

// eachAmbiguous calls emit with the address of each pod that a peer selects,
// gives the name a number, and cannot be told by identity from one that does not.
func (x *Index) eachAmbiguous(p types.Peer, name types.NamedPort, emit func(netip.Addr)) {
	if p.CIDR != nil {
		x.eachGiver(p.CIDR, name, func(pod podAt) { emit(pod.addr) })
		return
	}
	x.eachPeer(p, func(_ identity.NumericIdentity, peer *portPeer) {
		n := peer.names[name]
		if len(n.all) == 0 || n.agreed {
			return
		}
		for _, a := range peer.addrs {
			if _, gives := x.pod(a).NamedPorts[name]; gives {
				emit(a)
			}
		}
	})
}
