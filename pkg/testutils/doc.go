// Package testutils opens every kernel test: it gives a test a network
// namespace and a bpffs directory of its own and fails it for what it left behind.
//
// # What
//
// Kernel checks that the machine can run the test (root, BPF, a bpffs and what
// the test asks for), moves the test's goroutine into a new network namespace
// and looks for leaked links, pins and BPF file descriptors at the end. Needs is
// for tests that need a tool and no root.
// NewNetns and VethPair make the other ends that a test talks to.
//
// # Neighbours
//
// Read by *_kernel_test.go files and by the tests under test/. It imports
// pkg/bpf only; tests of pkg/bpf that use it live in package bpf_test.
//
// # Rules
//
// The first line of a kernel test is Kernel(t). A subtest runs in another
// goroutine, outside the namespace: it calls Kernel itself or wraps its body in
// Env.Do. Kernel tests of one process do not run in parallel, because the count
// of open BPF descriptors belongs to the process. Nothing is mounted.
// A thread whose namespace could not be restored stays locked to its goroutine,
// so that the runtime ends it with the goroutine.
//
// # After a restart
//
// A namespace lives only as long as the test's descriptors. A directory that a
// killed test left is recognised by its name, weir-test-* directly under the
// bpffs, and may be removed at any time.
//
// # Try it
//
//	go test ./pkg/testutils
//	WEIR_KERNEL_TESTS=1 go test ./...   # a missing need fails instead of skipping
package testutils
