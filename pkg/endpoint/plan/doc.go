// Package plan decides what a regeneration has to do.
//
// # What
//
// Build compares what is in the kernel with what is wanted and returns the
// steps in the order in which they must run, each with its reason. Teardown
// returns the steps of a deletion.
//
// # Neighbours
//
// Called by endpoint/regenerator, which runs the steps; printed in the
// endpoint's timeline.
//
// # Rules
//
// Pure. Policy comes before attach, attach before expose; an endpoint leaves
// in the reverse order, its map entry first.
//
// # Try it
//
//	go test ./pkg/endpoint/plan
package plan
