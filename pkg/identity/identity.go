package identity

import (
	"maps"
	"slices"

	"github.com/weirnet/weir/pkg/labels"
)

// Identity is a number and the label set it stands for. Immutable once shared.
type Identity struct {
	ID             NumericIdentity
	Labels         labels.Labels     // by key
	LabelArray     labels.LabelArray // sorted
	ReferenceCount int               // users at the time of reading; 0 for reserved numbers
}

// New returns an Identity without users.
func New(id NumericIdentity, a labels.LabelArray) *Identity {
	return &Identity{ID: id, Labels: a.Labels(), LabelArray: a}
}

// IdentityMap maps numbers to their labels.
type IdentityMap map[NumericIdentity]labels.LabelArray

// Clone returns a copy of the map; the label sets are shared.
func (m IdentityMap) Clone() IdentityMap { return maps.Clone(m) }

// IDs returns the numbers, sorted.
func (m IdentityMap) IDs() []NumericIdentity { return slices.Sorted(maps.Keys(m)) }

// ScopeForLabels says in which scope a label set that is not a reserved one gets
// its number: remote-node for a remote-node label, local if every label is from
// the sources cidr, cidrgroup, fqdn or reserved (a prefix with or without a
// world label), else global. The empty set is global.
func ScopeForLabels(a labels.LabelArray) Scope {
	if a.HasReserved(labels.NameRemoteNode) {
		return ScopeRemoteNode
	}
	for _, l := range a {
		switch l.Source {
		case labels.SourceCIDR, labels.SourceCIDRGroup, labels.SourceFQDN, labels.SourceReserved:
		default:
			return ScopeGlobal
		}
	}
	if len(a) == 0 {
		return ScopeGlobal
	}
	return ScopeLocal
}
