package policy

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/types"
)

// Pod is what the Index knows of a pod's address, local or not: who lives there
// and the ports it names. Pods of the host network are not told: their address
// is the node's, which names no ports. A name with number 0 is ignored.
type Pod struct {
	Identity   identity.NumericIdentity // who, not the prefix identity
	NamedPorts types.NamedPorts
}

// Events is a batch of changes for Index.Apply. Removals are applied first, so
// that a number or an address may be given up and taken again in one batch.
type Events struct {
	Added    identity.IdentityMap // a known number with other labels is replaced
	Removed  identity.IdentityMap // labels are not looked at; unknown numbers are ignored
	Pods     map[netip.Addr]Pod   // added, or known with other contents
	GonePods []netip.Addr
	// Select asks to keep the matches of peers up to date, Unselect takes that
	// back; a peer selected twice has to be unselected twice.
	Select, Unselect []types.Peer
}

// Delta is what changed in the matches of one selector; both sorted.
type Delta struct{ Added, Removed []identity.NumericIdentity }

// Changes is what an Apply did to those who use the Index.
type Changes struct {
	Selectors  map[string]Delta         // by PeerKey, of the selectors that Select named
	NamedPorts map[types.NamedPort]bool // names whose numbers may have changed for some peer
}

// Empty reports that no map state made with the old Index can differ now.
func (c Changes) Empty() bool { return len(c.Selectors) == 0 && len(c.NamedPorts) == 0 }

// Index knows the numeric identities, which of them each selector matches, and
// the named ports of pods. It is immutable. Wildcard selectors are never
// enumerated.
//
// Named ports of a destination differ per pod, while the kernel asks by
// identity. Where all pods of an identity give a name the same number, the
// identity's entry is exact. Where they differ, each pod's own address must be
// a prefix of its own (Prefixes asks for that), and the entries go to those
// prefix identities: exact again. Until such a prefix identity exists an allow is
// left out and a deny covers every number that any of the pods gives the name.
type Index struct {
	shards     [256]map[identity.NumericIdentity]*known // by low byte, so that a copy is cheap
	count      int
	selections map[string]*selection
	pods       map[netip.Addr]Pod
	peers      map[identity.NumericIdentity]*portPeer
	hosts      map[netip.Addr]identity.NumericIdentity // prefix identities of single pod addresses
}

// known is one identity.
type known struct {
	labels labels.LabelArray
	prefix netip.Prefix // of its cidr label; not valid without one
	world  bool         // carries a world label: an outside address
}

// selection is the matches of one selector.
type selection struct {
	peer types.Peer
	ids  []identity.NumericIdentity // sorted
	uses int
}

// NewIndex returns an Index of these identities without pods and selectors.
func NewIndex(ids identity.IdentityMap) *Index {
	x, _ := (&Index{}).Apply(Events{Added: ids})
	return x
}

// Len is the number of identities.
func (x *Index) Len() int { return x.count }

// Labels returns the labels of an identity; false if it is not known.
func (x *Index) Labels(id identity.NumericIdentity) (labels.LabelArray, bool) {
	k := x.get(id)
	if k == nil {
		return nil, false
	}
	return k.labels, true
}

// Pod returns what is known of the pod with that address.
func (x *Index) Pod(a netip.Addr) (Pod, bool) {
	p, ok := x.pods[a.Unmap()]
	return p, ok
}

// PodCount is the number of pod addresses known.
func (x *Index) PodCount() int { return len(x.pods) }

func (x *Index) get(id identity.NumericIdentity) *known { return x.shards[byte(id)][id] }

// Matches returns the identities that a peer selects, sorted; not to be changed.
// all is true for a wildcard, whose identities are not enumerated.
func (x *Index) Matches(p types.Peer) (ids []identity.NumericIdentity, all bool) {
	if IsWildcard(p) {
		return nil, true
	}
	if s := x.selections[PeerKey(p)]; s != nil {
		return s.ids, false
	}
	return x.scan(p), false
}

// scan finds the matches of a selector that nobody asked to keep.
func (x *Index) scan(p types.Peer) []identity.NumericIdentity {
	var ids []identity.NumericIdentity
	for _, shard := range x.shards {
		for id, k := range shard {
			if k.matches(p) {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// matches reports whether a peer that is no wildcard selects the identity.
func (k *known) matches(p types.Peer) bool {
	if p.Labels != nil {
		whereOnly := k.prefix.IsValid() && !k.world
		return !whereOnly && p.Labels.Matches(k.labels)
	}
	if p.CIDR == nil || !k.prefix.IsValid() || !(k.world || p.CIDR.Pods) {
		return false
	}
	return blockContains(p.CIDR, k.prefix)
}

// blockContains reports whether a prefix lies in the block and in no except. A
// prefix identity never straddles an except, which is a prefix of its own.
func blockContains(c *types.CIDRPeer, p netip.Prefix) bool {
	if !prefixContains(c.Prefix, p) {
		return false
	}
	for _, e := range c.Except {
		if prefixContains(e, p) {
			return false
		}
	}
	return true
}

func prefixContains(outer, inner netip.Prefix) bool {
	outer = labels.CanonicalPrefix(outer)
	return outer.IsValid() && outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// IsWildcard reports whether the peer is everybody: entity all, or a label
// selector that demands nothing.
func IsWildcard(p types.Peer) bool {
	return p.Entity == types.EntityAll || p.Labels != nil && p.Labels.IsEmpty()
}

// PeerKey names what a peer selects: equal keys, equal matches.
func PeerKey(p types.Peer) string {
	switch {
	case IsWildcard(p):
		return "*"
	case p.Labels != nil:
		return "l" + p.Labels.Key()
	case p.CIDR != nil:
		excepts := make([]string, len(p.CIDR.Except))
		for i, e := range p.CIDR.Except {
			excepts[i] = labels.CanonicalPrefix(e).String()
		}
		slices.Sort(excepts)
		key := "c" + labels.CanonicalPrefix(p.CIDR.Prefix).String()
		if p.CIDR.Pods {
			key = "p" + key[1:]
		}
		for _, e := range slices.Compact(excepts) {
			key += "!" + e
		}
		return key
	}
	return "e" + p.Entity
}

// Identities returns a copy of all identities.
func (x *Index) Identities() identity.IdentityMap {
	out := make(identity.IdentityMap, x.count)
	for _, shard := range x.shards {
		for id, k := range shard {
			out[id] = k.labels
		}
	}
	return out
}

// clone copies the parts that a batch touches; the rest is shared.
func (x *Index) clone(e Events) *Index {
	n := *x
	if len(e.Added)+len(e.Removed)+len(e.Select)+len(e.Unselect) > 0 {
		if n.selections = maps.Clone(x.selections); n.selections == nil {
			n.selections = map[string]*selection{}
		}
	}
	if len(e.Pods)+len(e.GonePods) > 0 {
		if n.pods = maps.Clone(x.pods); n.pods == nil {
			n.pods = make(map[netip.Addr]Pod, len(e.Pods))
		}
		if n.peers = maps.Clone(x.peers); n.peers == nil {
			n.peers = map[identity.NumericIdentity]*portPeer{}
		}
	}
	return &n
}
