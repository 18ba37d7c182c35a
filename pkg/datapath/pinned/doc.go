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
// Each map is recognised by its pin path. One of a former layout (layouts.go) is
// replaced at Open by one of now with its entries converted; programs of before go on
// with the former one, as it was then, until their endpoint is built anew. What they
// write to it afterwards is not brought over: a flow that they open meanwhile is judged
// again. Words and policies are replaced together. One of an unknown layout is set
// aside as NAME_aside1 and made anew, empty: its endpoints go on with their former
// programs until they are built; Replaced says so. Another size of weir_ipcache, weir_ct4, weir_ct6 and weir_events is
// carried out: a new map takes the pin over at Open, all endpoints' programs are loaded
// again, as at any start, and once no program in the kernel knows the former map,
// TakeOver takes the rest of it over and it goes. The size of a policy is no property
// of its map.
//
// # Try it
//
//	go test ./pkg/datapath/pinned
package pinned
