// Package cell wires the endpoint machinery for hive.
//
// # What
//
// A cell that makes the build queue, the keeper of identities, metadata,
// regenerator, manager and creator of endpoints from one Config.
//
// # Neighbours
//
// daemon/cmd provides the Config and uses the Endpoints.
//
// # Rules
//
// Wiring only. Builds start with the hive; restoring is the daemon's, which
// knows when everything else is there.
//
// # Try it
//
//	go test ./daemon/cmd
package cell
