// Package lxcmap holds what the data plane knows of the node's endpoints: whose
// an address is (weir_lxc) and which policy an endpoint has (weir_epconfig).
//
// # What
//
// Map is a hash from address to endpoint. Config is a memory-mapped array by
// endpoint id whose first word names the policy slot and the policy revision,
// so that a new policy takes effect in one atomic store.
//
// # Neighbours
//
// Written by pkg/endpoint/regenerator, also when pkg/ipcache tells of another
// prefix identity; read by the programs in bpf/.
//
// # Rules
//
// The contents of a policy slot are complete before SetPolicy names it.
// Revisions come from one counter: no two are equal, none is 0, and all are
// above those that a former agent left in the map. So a conntrack entry that
// carries the current revision was judged under the current policy.
// Clear keeps the revision moving, so that numbers are not used again.
//
// # After a restart
//
// Both maps are recognised by their pin paths, <root>/maps/weir_lxc and
// <root>/maps/weir_epconfig. OpenOrCreateConfig reads every revision once.
//
// # Try it
//
//	go test ./pkg/maps/lxcmap
package lxcmap
