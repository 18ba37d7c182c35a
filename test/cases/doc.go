// Package cases holds the policy cases that Weir's own tests play.
//
// # What
//
// Load reads policy-cases.json.gz, a file of policy/casefile; Sample chooses a
// few cases that are the same every time.
//
// # Neighbours
//
// policy/casefile says what a case is. The tests here run every cell on three
// levels: policy/oracle, the map state of policy/simulate, and the programs in
// the kernel (test/dataplane). test/node plays some of them with live packets.
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
