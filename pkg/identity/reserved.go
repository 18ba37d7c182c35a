package identity

import (
	"maps"

	"github.com/weirnet/weir/pkg/labels"
)

var names = map[NumericIdentity]string{
	InvalidIdentity:       "unknown",
	ReservedHost:          labels.NameHost,
	ReservedWorld:         labels.NameWorld,
	ReservedUnmanaged:     labels.NameUnmanaged,
	ReservedHealth:        labels.NameHealth,
	ReservedInit:          labels.NameInit,
	ReservedRemoteNode:    labels.NameRemoteNode,
	ReservedKubeAPIServer: labels.NameKubeAPIServer,
	ReservedIngress:       labels.NameIngress,
	ReservedWorldIPv4:     labels.NameWorldIPv4,
	ReservedWorldIPv6:     labels.NameWorldIPv6,
	ReservedClosed:        "closed",
}

var (
	numbers  = make(map[string]NumericIdentity, len(names))
	reserved = make(IdentityMap, len(names))
)

func init() {
	for id, name := range names {
		numbers[name] = id
		if id != InvalidIdentity && id != ReservedClosed {
			reserved[id] = labels.NewLabelArray(labels.Reserved(name))
		}
	}
	reserved[ReservedKubeAPIServer] = labels.NewLabelArray(
		labels.Reserved(labels.NameKubeAPIServer), labels.Reserved(labels.NameRemoteNode))
}

// ReservedIdentities returns a copy of the reserved table, which is of numbers
// with labels: closed is not in it.
func ReservedIdentities() IdentityMap { return maps.Clone(reserved) }

// LookupReservedByLabels returns the fixed number of a label set, if it has one.
// A set with reserved:host is host whatever else it holds; remote-node and
// kube-apiserver together are kube-apiserver, and each of the two keeps its
// number with labels beside it. Every other reserved label must be the only one
// of its set.
func LookupReservedByLabels(a labels.LabelArray) (NumericIdentity, bool) {
	switch {
	case a.HasReserved(labels.NameHost):
		return ReservedHost, true
	case a.HasReserved(labels.NameKubeAPIServer):
		return ReservedKubeAPIServer, true
	case a.HasReserved(labels.NameRemoteNode):
		return ReservedRemoteNode, true
	}
	if len(a) != 1 || a[0].Source != labels.SourceReserved {
		return 0, false
	}
	id := numbers[a[0].Key]
	if _, ok := reserved[id]; !ok {
		return 0, false
	}
	return id, true
}

// LabelsOfReserved returns the labels of a reserved number.
func LabelsOfReserved(id NumericIdentity) (labels.LabelArray, bool) {
	a, ok := reserved[id]
	return a, ok
}
