// Package dataplane is the data plane of a node without its agent, for tests
// that give frames to the programs.
//
// # What
//
// Open makes the real maps and a loader; Load gives an endpoint's entry programs;
// Places, SetPolicy and Run write the maps as an agent does, run a program once
// (BPF_PROG_TEST_RUN) and return what it tells.
//
// # Neighbours
//
// pkg/maps, pkg/datapath/loader and pkg/endpoint, joined as an agent joins them.
// test/differential and test/cases say what must come out.
//
// # Rules
//
// It has no opinion of policies. The test function itself calls testutils.Kernel
// before Open. A Node is not safe for concurrent use.
//
// # Try it
//
//	go test ./test/differential ./test/cases
package dataplane
