// Package ctmap reads and cleans the data plane's connections (weir_ct4,
// weir_ct6), and holds the map of fragments (weir_frag).
//
// # What
//
// A Map is one family's LRU hash with one entry per flow. Dump turns entries
// into flows seen from their initiator, GC deletes what has expired, Purge what
// belongs to an address.
//
// # Neighbours
//
// Written by the programs in bpf/; read by the API, cleaned by pkg/endpoint
// (an address that changes its owner) and by a periodic job of the agent.
//
// # Rules
//
// The programs own the entries and change them at any time, so a dump is no
// snapshot. GC deletes an entry within a millisecond of having read that it
// expired, chunk by chunk. An address that is given to a new pod is purged
// after the old pod's programs are gone and before the new one's run, so that
// no connection of the old pod opens a way to the new one.
//
// # After a restart
//
// The maps are recognised by their pin paths <root>/maps/weir_ct4, weir_ct6 and
// weir_frag. The entries stay valid, because policy revisions go on.
//
// # Try it
//
//	go test ./pkg/maps/ctmap
package ctmap
