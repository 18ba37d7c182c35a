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
// A test is a kernel test when it calls testutils.Kernel, itself or through
// functions of its package: they are counted from the source. One that did not
// run, or was skipped, is a failure.
//
// # Try it
//
//	go run ./test/run ./pkg/bpf
package main
