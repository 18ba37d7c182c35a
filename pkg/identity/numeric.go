package identity

import (
	"fmt"
	"strconv"
)

// NumericIdentity is the number of a label set: bits 0-15 the number inside the
// cluster, 16-23 the cluster, 24-31 the scope. In a local scope bits 0-23 are
// one number.
type NumericIdentity uint32

// Scope is the part of a number that says where it is valid.
type Scope uint32

// The scopes, in their place inside a number.
const (
	ScopeGlobal     Scope = 0       // the whole cluster; also reserved numbers
	ScopeLocal      Scope = 1 << 24 // this node: prefixes, DNS names
	ScopeRemoteNode Scope = 2 << 24 // this node's numbers for single other nodes
	ScopeMask       Scope = 0xFF << 24
)

// Bounds of the ranges. Numbers 100 to 127 are well-known, 128 to 255 reserved
// for fixed identities of the user.
const (
	InvalidIdentity             NumericIdentity = 0
	UserReservedNumericIdentity NumericIdentity = 128
	MinimalNumericIdentity      NumericIdentity = 256
	MaxNumericIdentity          NumericIdentity = 65535 // of cluster 0
	MinLocalIdentity            NumericIdentity = NumericIdentity(ScopeLocal) + 1
	MaxLocalIdentity            NumericIdentity = NumericIdentity(ScopeLocal) + 0xFFFFFF
	MinRemoteNodeIdentity       NumericIdentity = NumericIdentity(ScopeRemoteNode) + 1
	MaxRemoteNodeIdentity       NumericIdentity = NumericIdentity(ScopeRemoteNode) + 0xFFFFFF
)

// The reserved numbers.
const (
	ReservedHost          NumericIdentity = 1
	ReservedWorld         NumericIdentity = 2
	ReservedUnmanaged     NumericIdentity = 3
	ReservedHealth        NumericIdentity = 4
	ReservedInit          NumericIdentity = 5
	ReservedRemoteNode    NumericIdentity = 6
	ReservedKubeAPIServer NumericIdentity = 7
	ReservedIngress       NumericIdentity = 8
	ReservedWorldIPv4     NumericIdentity = 9
	ReservedWorldIPv6     NumericIdentity = 10
	// ReservedClosed is who and where an address is that nobody may talk to: the
	// kernel has no room or no number for its prefix. It has no labels, so that no
	// selector matches it, and the data plane asks no policy about it.
	ReservedClosed NumericIdentity = 99
)

// Scope returns the scope bits.
func (id NumericIdentity) Scope() Scope { return Scope(id) & ScopeMask }

// ClusterID returns the cluster of a global number, 0 to 255; 0 in other scopes.
func (id NumericIdentity) ClusterID() uint8 {
	if id.Scope() != ScopeGlobal {
		return 0
	}
	return uint8(id >> 16)
}

// IsReserved reports whether the number is below those given out to label sets
// and not 0.
func (id NumericIdentity) IsReserved() bool { return id > 0 && id < MinimalNumericIdentity }

// IsLocal reports whether the number means something on this node only.
func (id NumericIdentity) IsLocal() bool { return id.Scope() != ScopeGlobal }

// String prints the name of a reserved number ("host"), else the decimal number.
func (id NumericIdentity) String() string {
	if n, ok := names[id]; ok {
		return n
	}
	return strconv.FormatUint(uint64(id), 10)
}

// Parse reads a reserved name or a decimal number from 0 to 4294967295.
func Parse(s string) (NumericIdentity, error) {
	if id, ok := numbers[s]; ok {
		return id, nil
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("identity %q is neither a number from 0 to 4294967295 nor a reserved name such as host or world", s)
	}
	return NumericIdentity(n), nil
}

// String prints "global", "local" or "remote-node".
func (s Scope) String() string {
	switch s {
	case ScopeGlobal:
		return "global"
	case ScopeLocal:
		return "local"
	case ScopeRemoteNode:
		return "remote-node"
	}
	return fmt.Sprintf("scope %#x", uint32(s))
}
