// Package node holds the tests of a whole node: the real agent, the real CNI
// plugin, real packets between network namespaces.
//
// # What
//
// Tests only. Those named after B.. and G.. stand for failures that users of
// comparable systems reported.
//
// # Neighbours
//
// test/box starts the node; pkg/lab sends the packets.
//
// # Rules
//
// The test function itself calls testutils.Kernel. No test asserts wall-clock
// time; a wait is bounded and polls.
//
// # Try it
//
//	make build && go test ./test/node
package node
