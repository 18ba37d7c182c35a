package ipcache

import (
	"net/netip"
	"strconv"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
)

// Source says where metadata comes from. A greater one wins.
type Source uint8

// The sources, weakest first.
const (
	SourceUnspec Source = iota
	SourceRestored
	SourceGenerated // made by Weir, as entries of the policy's prefixes are
	SourceAPI
	SourceDirectory
	SourceClusterMesh
	SourceKubernetes
	SourceCustomResource
	SourceKVStore
	SourceLocal // endpoints and addresses of this node
	SourceKubeAPIServer
)

var sourceNames = [...]string{"unspec", "restored", "generated", "api", "directory", "clustermesh", "k8s",
	"custom-resource", "kvstore", "local", "kube-apiserver"}

// String prints the source's name.
func (s Source) String() string {
	if int(s) < len(sourceNames) {
		return sourceNames[s]
	}
	return "source " + strconv.Itoa(int(s))
}

// Metadata is what an owner says about a prefix. With neither field it says
// nothing.
type Metadata struct {
	// Identity is a number that exists: a local endpoint's, host, remote-node.
	// 0: the identity comes from Labels.
	Identity identity.NumericIdentity
	// Labels are identity-relevant labels; the cache allocates their number.
	Labels labels.LabelArray
}

func (m Metadata) empty() bool { return m.Identity == 0 && len(m.Labels) == 0 }

func (m Metadata) equal(o Metadata) bool { return m.Identity == o.Identity && m.Labels.Equal(o.Labels) }

// Entry is what a prefix resolves to, as the kernel has it.
type Entry struct {
	Prefix         netip.Prefix             // the zero Prefix: no entry, so world
	Identity       identity.NumericIdentity // who
	PrefixIdentity identity.NumericIdentity // where; 0: no prefix selector covers it
	Source         Source
	Resource       string // the owner; empty for a prefix of the policy
}

func world(a netip.Addr) identity.NumericIdentity {
	if a.Is4() {
		return identity.ReservedWorldIPv4
	}
	return identity.ReservedWorldIPv6
}
