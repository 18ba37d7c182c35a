// Package simulate is a cluster in memory: pods, nodes, outside hosts and
// policies, judged without an agent, a kernel or root.
//
// # What
//
// New gives everything in a World the identities and prefix identities that an
// agent would give it. The Cluster then judges any connection between two of its
// ends: Decide with the map state that the kernel would hold, Explain with the
// rules that match.
//
// # Neighbours
//
// policy resolves, policy/explain explains. policy/casefile and "weir policy"
// fill Worlds; the tests compare with policy/oracle.
//
// # Rules
//
// Pure, and no second policy engine: what an agent does with the rules is done
// here by the same functions. An address of nobody is outside. A Cluster is not
// safe for concurrent use.
//
// # Try it
//
//	go test ./pkg/policy/simulate
package simulate
