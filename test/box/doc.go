// Package box starts a node in a box for a test: a lab with the real agent and
// plugin, its own folder of YAML, and a client of its API.
//
// # What
//
// Start builds a lab that the test's end takes down again, and fails the test if
// something is left over.
//
// # Neighbours
//
// The tests in test/node use it; it uses pkg/lab, cli/probe and pkg/client.
//
// # Rules
//
// The test function itself calls testutils.Kernel before Start. Binaries come
// from bin/ ("make build").
//
// # Try it
//
//	make build && go test ./test/node
package box
