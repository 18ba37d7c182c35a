// Package cases holds the policy cases that Weir's own tests play.
//
// # What
//
// Load reads policy-cases.json.gz, a file of policy/casefile; Sample chooses a
// few cases that are the same every time.
//
// # Neighbours
//
// policy/casefile says what a case is. The tests here run every cell against
// policy/oracle and against the map state of policy/simulate; tests of the data
// plane run the same cells against the kernel.
//
// # Rules
//
// The cases say what is right. The local node's traffic to its pods is not in
// the tables of NetworkPolicy worlds.
//
// # Try it
//
//	go test ./test/cases
package cases
