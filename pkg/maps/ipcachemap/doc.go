// Package ipcachemap holds which identity an address has (weir_ipcache).
//
// # What
//
// A longest-prefix-match trie from prefix to identity and prefix identity, for
// both families, written in batches and in the order of the caller.
//
// # Neighbours
//
// Written by pkg/ipcache, read by the programs in bpf/.
//
// # Rules
//
// Policy entries of an identity are in the kernel before an address maps to
// it, and go after the address; the caller keeps that order. Deletes of what
// is not there are no error, so a batch may be repeated after a failure.
//
// # After a restart
//
// The map is recognised by its pin path <root>/maps/weir_ipcache. Its entries
// are still in force; pkg/ipcache compares them with Dump and removes what is
// left over once its sources are in sync. If other room is asked for, a map that has
// it takes the entries and the pin over; programs find it once they are loaded again,
// and until then go on with the former one, which nobody writes to any more.
//
// # Try it
//
//	go test ./pkg/maps/ipcachemap
package ipcachemap
