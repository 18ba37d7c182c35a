package policy

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/types"
)

// portPeer is the pods of one identity and the numbers they give to names.
type portPeer struct {
	addrs []netip.Addr // sorted
	names map[types.NamedPort]portNumbers
}

// portNumbers is what the pods of one identity make of a name.
type portNumbers struct {
	all    []uint16 // sorted
	agreed bool     // every pod gives the name, and the same number
}

// applyPods changes the pods, and the tables of the identities they belong to.
func (x *Index) applyPods(e Events, names map[types.NamedPort]bool) {
	touched := map[identity.NumericIdentity]bool{}
	drop := func(a netip.Addr) {
		old, ok := x.pods[a]
		if !ok {
			return
		}
		delete(x.pods, a)
		x.movePod(old.Identity, a, false)
		touched[old.Identity] = true
		for name := range old.NamedPorts {
			names[name] = true
		}
	}
	for _, a := range e.GonePods {
		drop(a.Unmap())
	}
	for a, p := range e.Pods {
		a = a.Unmap()
		p.NamedPorts = maps.Clone(p.NamedPorts)
		maps.DeleteFunc(p.NamedPorts, func(_ types.NamedPort, number uint16) bool { return number == 0 })
		if old, ok := x.pods[a]; ok && old.Identity == p.Identity && maps.Equal(old.NamedPorts, p.NamedPorts) {
			continue
		}
		drop(a)
		x.pods[a] = p
		x.movePod(p.Identity, a, true)
		touched[p.Identity] = true
		for name := range p.NamedPorts {
			names[name] = true
		}
	}
	for id := range touched {
		peer := x.peers[id]
		if peer == nil {
			continue
		}
		before := peer.names
		peer.names = x.tabulate(peer.addrs)
		// A pod without a name makes the others' number for it a matter of addresses.
		for name, n := range peer.names {
			if n.agreed != before[name].agreed {
				names[name] = true
			}
		}
	}
}

// movePod adds or removes one address of an identity.
func (x *Index) movePod(id identity.NumericIdentity, a netip.Addr, add bool) {
	next := &portPeer{}
	if old := x.peers[id]; old != nil {
		next.addrs, next.names = slices.Clone(old.addrs), old.names
	}
	i, found := slices.BinarySearchFunc(next.addrs, a, netip.Addr.Compare)
	switch {
	case add && !found:
		next.addrs = slices.Insert(next.addrs, i, a)
	case !add && found:
		next.addrs = slices.Delete(next.addrs, i, i+1)
	}
	if len(next.addrs) == 0 {
		delete(x.peers, id)
		return
	}
	x.peers[id] = next
}

func (x *Index) tabulate(addrs []netip.Addr) map[types.NamedPort]portNumbers {
	out, givers := map[types.NamedPort]portNumbers{}, map[types.NamedPort]int{}
	for _, a := range addrs {
		for name, number := range x.pods[a].NamedPorts {
			n := out[name]
			if i, found := slices.BinarySearch(n.all, number); !found {
				n.all = slices.Insert(n.all, i, number)
			}
			out[name] = n
			givers[name]++
		}
	}
	for name, n := range out {
		n.agreed = len(n.all) == 1 && givers[name] == len(addrs)
		out[name] = n
	}
	return out
}

// eachNamed calls emit with every identity and port number that a named port of
// the destination stands for, among the pods that the peer selects.
func (x *Index) eachNamed(p types.Peer, name types.NamedPort, v types.Verdict, emit func(identity.NumericIdentity, uint16)) {
	if p.CIDR != nil {
		x.eachNamedInBlock(p, name, v, emit)
		return
	}
	ids, all := x.Matches(p)
	for id, peer := range x.peers {
		n := peer.names[name]
		if len(n.all) == 0 {
			continue
		}
		if _, in := slices.BinarySearch(ids, id); !all && !in {
			continue
		}
		if n.agreed {
			emit(id, n.all[0])
			continue
		}
		apart := true
		for _, a := range peer.addrs {
			number, gives := x.pods[a].NamedPorts[name]
			if !gives {
				continue
			}
			if host := x.hosts[a]; host != 0 {
				emit(host, number)
			} else {
				apart = false
			}
		}
		if !apart && v == types.Deny {
			for _, number := range n.all {
				emit(id, number)
			}
		}
	}
}

// eachNamedInBlock is eachNamed for a CIDR peer: the pods inside the block, each
// through the prefix identity of its own address.
func (x *Index) eachNamedInBlock(p types.Peer, name types.NamedPort, v types.Verdict, emit func(identity.NumericIdentity, uint16)) {
	if !p.CIDR.Pods {
		return
	}
	ids, _ := x.Matches(p)
	for a, pod := range x.pods {
		number, gives := pod.NamedPorts[name]
		if !gives || !blockContains(p.CIDR, netip.PrefixFrom(a, a.BitLen())) {
			continue
		}
		if host := x.hosts[a]; host != 0 {
			emit(host, number)
			continue
		}
		if v != types.Deny {
			continue
		}
		for _, id := range ids {
			if k := x.get(id); !k.world && k.prefix.Contains(a) {
				emit(id, number)
			}
		}
	}
}

// Prefixes returns every prefix that the policies name, blocks and excepts, with
// whether a block that matches pods names it; and the single addresses of pods
// that have to be told apart by a prefix of their own because of named ports.
func Prefixes(policies []*types.Policy, x *Index) map[netip.Prefix]bool {
	out := map[netip.Prefix]bool{}
	add := func(p netip.Prefix, pods bool) {
		if p = labels.CanonicalPrefix(p); p.IsValid() {
			out[p] = out[p] || pods
		}
	}
	done := map[string]bool{} // peers and names seen, as many rules repeat them
	for _, policy := range policies {
		for i := range policy.Rules {
			r := &policy.Rules[i]
			for _, p := range r.Peers {
				if p.CIDR == nil {
					continue
				}
				add(p.CIDR.Prefix, p.CIDR.Pods)
				for _, e := range p.CIDR.Except {
					add(e, p.CIDR.Pods)
				}
			}
			if r.Direction != types.Egress {
				continue
			}
			for _, port := range r.Ports {
				if port.Name == "" {
					continue
				}
				name := types.NamedPort{Name: port.Name, Proto: port.Proto}
				for _, p := range peersOf(r) {
					if key := PeerKey(p) + " " + name.String(); !done[key] {
						done[key] = true
						x.eachAmbiguous(p, name, func(a netip.Addr) { add(netip.PrefixFrom(a, a.BitLen()), true) })
					}
				}
			}
		}
	}
	return out
}

// peersOf returns the rule's peers, with the wildcard for nil.
func peersOf(r *types.Rule) []types.Peer {
	if r.Peers == nil {
		return []types.Peer{{Entity: types.EntityAll}}
	}
	return r.Peers
}

// eachAmbiguous calls emit with the address of each pod that a peer selects,
// gives the name a number, and cannot be told by identity from one that does not.
func (x *Index) eachAmbiguous(p types.Peer, name types.NamedPort, emit func(netip.Addr)) {
	if p.CIDR != nil {
		for a, pod := range x.pods {
			_, gives := pod.NamedPorts[name]
			if gives && p.CIDR.Pods && blockContains(p.CIDR, netip.PrefixFrom(a, a.BitLen())) {
				emit(a)
			}
		}
		return
	}
	ids, all := x.Matches(p)
	for id, peer := range x.peers {
		n := peer.names[name]
		if len(n.all) == 0 || n.agreed {
			continue
		}
		if _, in := slices.BinarySearch(ids, id); !all && !in {
			continue
		}
		for _, a := range peer.addrs {
			if _, gives := x.pods[a].NamedPorts[name]; gives {
				emit(a)
			}
		}
	}
}
