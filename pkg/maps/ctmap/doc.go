// Package ctmap reads and cleans the data plane's connections (weir_ct4,
// weir_ct6), and holds the map of fragments (weir_frag).
//
// # What
//
// A Map is one family's LRU hash with one entry per flow. Dump turns entries
// into flows seen from their initiator, GC deletes what has expired, Purge what
// belongs to an address, TakeOver ends a change of the map's size.
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
// If other room is asked for, an empty map takes the pin over and the former one is
// pinned beside it and shown to the programs in weir_former4 or weir_former6. Programs
// of the former agent go by the former map alone until they are loaded again. Ours
// look into both, take over what only the former one has, and write what they open
// into both, so that a flow is known to whichever programs its packets pass. Dump and
// GC do not see a flow that only the former map has. TakeOver brings the rest over
// and gives the former map up: the pin goes first, then the programs' sight of it. An
// agent that dies at any point leaves two maps that the programs go on with; the next
// one goes on with the change, and makes another one only after it.
//
// No entry is made better by that: it keeps its revisions, so one that is stale is
// judged again at the next packet and a denied one stays denied; a live entry of the
// new map counts, and not what the former one says of the flow. What programs of the
// former agent counted in an entry after another program took it over is not counted.
// A flow that ended where only our programs saw it may be found in the former map once
// more, and then stays known for as long as that says.
// A smaller map is refused if it would be crowded by the live flows.
//
// # Try it
//
//	go test ./pkg/maps/ctmap
package ctmap
