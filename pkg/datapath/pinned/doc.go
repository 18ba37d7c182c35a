// Package pinned is the set of pinned maps that the programs of an agent share.
//
// # What
//
// Recover puts back pins that are gone while programs use their maps. Open opens each map below an agent's root or creates it; Named gives them to the
// loader by their names in C. TakeOver ends the change of a map's size.
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
// Each map is recognised by its pin path; one whose layout differs is an error that
// says what to do. Another size of weir_ipcache, weir_ct4, weir_ct6 and weir_events is
// carried out: a new map takes the pin over at Open, all endpoints' programs are loaded
// again, as at any start, and once no program in the kernel knows the former map,
// TakeOver takes the rest of it over and it goes. The size of a policy is no property
// of its map.
//
// # Try it
//
//	go test ./pkg/datapath/pinned
package pinned
