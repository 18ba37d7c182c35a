package policy

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"

	"github.com/weirnet/weir/pkg/identity"
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
	if len(e.Pods)+len(e.GonePods) == 0 {
		return
	}
	pods, named := x.pods.Txn(), x.named.Txn()
	moved := map[identity.NumericIdentity]map[netip.Addr]bool{} // which addresses an identity has now, of those that changed
	move := func(p podAt, here bool) {
		if moved[p.Identity] == nil {
			moved[p.Identity] = map[netip.Addr]bool{}
		}
		moved[p.Identity][p.addr] = here
		for name := range p.NamedPorts {
			names[name] = true
			if key := append(nameKey(name), addrKey(p.addr)...); here {
				named.Insert(key, p)
			} else {
				named.Delete(key)
			}
		}
	}
	drop := func(a netip.Addr) {
		if old, was := pods.Delete(addrKey(a)); was {
			move(old, false)
		}
	}
	for _, a := range e.GonePods {
		drop(a.Unmap())
	}
	for a, p := range e.Pods {
		a = a.Unmap()
		p.NamedPorts = maps.Clone(p.NamedPorts)
		maps.DeleteFunc(p.NamedPorts, func(_ types.NamedPort, number uint16) bool { return number == 0 })
		if old, ok := pods.Get(addrKey(a)); ok && old.Identity == p.Identity && maps.Equal(old.NamedPorts, p.NamedPorts) {
			continue
		}
		drop(a)
		pods.Insert(addrKey(a), podAt{a, p})
		move(podAt{a, p}, true)
	}
	x.pods, x.named = pods.Commit(), named.Commit()
	peers := x.peers.Txn()
	for id, addrs := range moved {
		old, _ := peers.Get(idKey(id))
		next := x.tabulate(old.moved(addrs))
		if len(next.addrs) == 0 {
			peers.Delete(idKey(id))
			continue
		}
		peers.Insert(idKey(id), next)
		// A pod without a name makes the others' number for it a matter of addresses.
		for name, n := range next.names {
			if old == nil || n.agreed != old.names[name].agreed {
				names[name] = true
			}
		}
	}
	x.peers = peers.Commit()
}

// moved returns the addresses after some came and went.
func (p *portPeer) moved(changes map[netip.Addr]bool) []netip.Addr {
	var out []netip.Addr
	if p != nil {
		for _, a := range p.addrs {
			if _, changed := changes[a]; !changed {
				out = append(out, a)
			}
		}
	}
	for a, here := range changes {
		if here {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

func (x *Index) tabulate(addrs []netip.Addr) *portPeer {
	out, givers := map[types.NamedPort]portNumbers{}, map[types.NamedPort]int{}
	for _, a := range addrs {
		for name, number := range x.pod(a).NamedPorts {
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
	return &portPeer{addrs, out}
}

// pod is the pod at an address without an IPv4-mapped form.
func (x *Index) pod(a netip.Addr) podAt {
	p, _ := x.pods.Get(addrKey(a))
	return p
}

// eachPeer calls emit with the identities of pods that a peer which is no block
// selects.
func (x *Index) eachPeer(p types.Peer, emit func(identity.NumericIdentity, *portPeer)) {
	ids, all := x.Matches(p)
	if all {
		for key, peer := range x.peers.All {
			emit(identity.NumericIdentity(binary.BigEndian.Uint32(key)), peer)
		}
	}
	for _, id := range ids {
		if peer, ok := x.peers.Get(idKey(id)); ok {
			emit(id, peer)
		}
	}
}

// eachNamed calls emit with every identity and port number that a named port of
// the destination stands for, among the pods that the peer selects. One that is
// not exact also stands for pods that give the name another number or none.
func (x *Index) eachNamed(p types.Peer, name types.NamedPort, emit func(id identity.NumericIdentity, number uint16, exact bool)) {
	if p.CIDR != nil {
		x.eachNamedInBlock(p, name, emit)
		return
	}
	x.eachPeer(p, func(id identity.NumericIdentity, peer *portPeer) { x.namedOf(id, peer, name, emit) })
}

// eachNamedAt is eachNamed as far as it is about some identities, without a look
// at all others that the peer selects.
func (x *Index) eachNamedAt(p types.Peer, name types.NamedPort, ids []identity.NumericIdentity, emit func(id identity.NumericIdentity, number uint16, exact bool)) {
	if p.CIDR != nil {
		x.eachNamedInBlock(p, name, emit)
		return
	}
	for _, id := range x.podsOf(ids) {
		peer, ok := x.peers.Get(idKey(id))
		if k := x.get(id); ok && (IsWildcard(p) || k != nil && k.matches(p)) {
			x.namedOf(id, peer, name, emit)
		}
	}
}

// podsOf adds to identities those of the pods whose addresses they are.
func (x *Index) podsOf(ids []identity.NumericIdentity) []identity.NumericIdentity {
	out := slices.Clone(ids)
	for _, id := range ids {
		if k := x.get(id); k != nil && k.prefix.IsValid() && k.prefix.IsSingleIP() {
			out = append(out, x.pod(k.prefix.Addr()).Identity)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// namedOf is eachNamed for the pods of one identity.
func (x *Index) namedOf(id identity.NumericIdentity, peer *portPeer, name types.NamedPort, emit func(id identity.NumericIdentity, number uint16, exact bool)) {
	n := peer.names[name]
	switch {
	case len(n.all) == 0:
		return
	case n.agreed:
		emit(id, n.all[0], true)
		return
	}
	apart := true
	for _, a := range peer.addrs {
		number, gives := x.pod(a).NamedPorts[name]
		if !gives {
			continue
		}
		if host, ok := x.hosts.Get(addrKey(a)); ok {
			emit(host, number, true)
		} else {
			apart = false
		}
	}
	if !apart {
		for _, number := range n.all {
			emit(id, number, false)
		}
	}
}

// eachNamedInBlock is eachNamed for a CIDR peer: the pods inside the block, each
// through the prefix identity of its own address.
func (x *Index) eachNamedInBlock(p types.Peer, name types.NamedPort, emit func(identity.NumericIdentity, uint16, bool)) {
	var ids []identity.NumericIdentity // of the block, once they are needed
	x.eachGiver(p.CIDR, name, func(pod podAt) {
		number := pod.NamedPorts[name]
		if host, ok := x.hosts.Get(addrKey(pod.addr)); ok {
			emit(host, number, true)
			return
		}
		if ids == nil {
			ids, _ = x.Matches(p)
		}
		for _, id := range ids {
			if k := x.get(id); !k.world && k.prefix.Contains(pod.addr) {
				emit(id, number, false)
			}
		}
	})
}

// eachGiver calls emit with the pods in a block that give a name a number.
func (x *Index) eachGiver(c *types.CIDRPeer, name types.NamedPort, emit func(podAt)) {
	if !c.Pods {
		return
	}
	inBlock(&x.named, nameKey(name), c.Prefix, func(pod podAt) {
		if blockContains(c, netip.PrefixFrom(pod.addr, pod.addr.BitLen())) {
			emit(pod)
		}
	})
}

// peersOf returns the rule's peers, with the wildcard for nil.
func peersOf(r *types.Rule) []types.Peer {
	if r.Peers == nil {
		return []types.Peer{{Entity: types.EntityAll}}
	}
	return r.Peers
}
