// Package pinned is the set of pinned maps that the programs of an agent share.
//
// # What
//
// Open opens each map below an agent's root or creates it; Named gives them to the
// loader by their names in C.
//
// # Neighbours
//
// pkg/maps/* make the maps. daemon/cmd and cli/trial open them and hand the single
// ones on.
//
// # Rules
//
// All maps are open, or none. Close leaves the pins.
//
// # After a restart
//
// Each map is recognised by its pin path; one whose layout or room differs is an
// error that says what to do.
//
// # Try it
//
//	go test ./pkg/datapath/pinned
package pinned
