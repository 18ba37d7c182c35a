// Command run is the test runner behind "make test".
//
// # What
//
// It runs every test of the module once, shows what failed, and proves from the
// test events that no kernel test was left out.
//
// # Neighbours
//
// Called by the Makefile; reads the source of the test files.
//
// # Rules
//
// A test is a kernel test when it calls testutils.Kernel; the call stands in
// the test function itself, so that tests can be counted from the source.
// Fewer or skipped ones are a failure.
//
// # Try it
//
//	go run ./test/run ./pkg/bpf
package main
