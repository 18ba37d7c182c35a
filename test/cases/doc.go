// Package cases holds the policy cases: small worlds of pods, policies applied
// to them step by step, and the verdict that each pair of ends must get.
//
// # What
//
// Load reads policy-cases.json.gz, whose format is netpol-cases/1: a World is
// changed by the operations of a Step, which then says what every Cell of its
// tables must be. World.Ends gives everything in a world the identities and
// prefix identities that an agent would give it.
//
// # Neighbours
//
// The tests here run every cell against policy/oracle and against the map state
// of pkg/policy; tests of the data plane run the same cells against the kernel.
//
// # Rules
//
// The cases say what is right. Steps are cumulative: run them in order on one
// World. Cells that mean nothing (an end and itself, two ends that are no pods)
// are skipped by Cell.Skip. The local node's traffic to its pods is not in the
// tables of NetworkPolicy worlds.
//
// # Try it
//
//	go test ./test/cases
package cases
