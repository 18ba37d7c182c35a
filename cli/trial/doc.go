// Package trial is the data plane of a node without its agent: the real maps and
// programs, given frames one by one (BPF_PROG_TEST_RUN).
//
// # What
//
// Open makes the maps and a loader; Load gives an endpoint's entry programs;
// Places, SetPolicy and Run write the maps as an agent does, run a program once
// and return what it tells. A Judge asks a simulated cluster's connections of it.
//
// # Neighbours
//
// pkg/maps, pkg/datapath/loader and pkg/endpoint, joined as an agent joins them.
// "weir policy test --kernel" and, through test/dataplane, the tests use it.
//
// # Rules
//
// It has no opinion of policies, attaches nothing and sends nothing: no interface
// and no route is touched. Root is needed, and a directory of its own on a bpffs.
// A Node is not safe for concurrent use.
//
// # Try it
//
//	bin/weir policy test --kernel examples/shop
package trial
