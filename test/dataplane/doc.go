// Package dataplane is the data plane of a node without its agent, for tests
// that give frames to the programs.
//
// # What
//
// The Node of cli/trial, which fails its test where it cannot go on and goes with
// the test's end.
//
// # Neighbours
//
// cli/trial does the work. test/differential and test/cases say what must come out.
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
