// Package casefile reads and plays files of policy cases: small worlds of pods,
// policies applied to them step by step, and the verdict that each pair of ends
// must get.
//
// # What
//
// Read reads a file of the format netpol-cases/1. A World is changed by the
// operations of a Step, which then says what every Cell of its tables must be.
// World.Simulate makes it a simulate.Cluster; Play runs a whole case on one.
//
// # Neighbours
//
// policy/k8s translates the objects of the steps, policy/simulate judges.
// "weir policy test" plays files; test/cases holds the file that Weir's own tests play.
//
// # Rules
//
// Pure. The cases say what is right. Steps are cumulative: run them in order on
// one World. Cells that mean nothing (an end and itself, two ends that are no
// pods) are skipped by Cell.Skip.
//
// # Try it
//
//	go test ./pkg/policy/casefile ./test/cases
package casefile
