package policy

import (
	"encoding/binary"
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
	Prefixes   bool                     // what Prefixes returns of the Index may have changed
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
type Index struct{ tables }

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
	x, _ := (&Index{newTables()}).Apply(Events{Added: ids})
	return x
}

// Len is the number of identities.
func (x *Index) Len() int { return x.known.Len() }

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
	p, ok := x.pods.Get(addrKey(a.Unmap()))
	return p.Pod, ok
}

// PodCount is the number of pod addresses known.
func (x *Index) PodCount() int { return x.pods.Len() }

func (x *Index) get(id identity.NumericIdentity) *known {
	k, _ := x.known.Get(idKey(id))
	return k
}

// Matches returns the identities that a peer selects, sorted; not to be changed.
// all is true for a wildcard, whose identities are not enumerated.
func (x *Index) Matches(p types.Peer) (ids []identity.NumericIdentity, all bool) {
	if IsWildcard(p) {
		return nil, true
	}
	if s, ok := x.selections.Get([]byte(PeerKey(p))); ok {
		return s.ids, false
	}
	return x.found(p), false
}

// found is what scan finds, sorted.
func (x *Index) found(p types.Peer) (ids []identity.NumericIdentity) {
	x.scan(p, func(id identity.NumericIdentity) { ids = append(ids, id) })
	slices.Sort(ids)
	return slices.Compact(ids)
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
	out := make(identity.IdentityMap, x.Len())
	for key, k := range x.known.All {
		out[identity.NumericIdentity(binary.BigEndian.Uint32(key))] = k.labels
	}
	return out
}
