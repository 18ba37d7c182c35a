// Package regenerator builds endpoints and takes them down.
//
// # What
//
// It consumes the build queue: pulls the policy, computes what differs, loads
// programs where constants changed, swaps the policy, attaches, exposes the
// addresses, and commits. Remove runs the same way backwards.
//
// # Neighbours
//
// Fed by endpoint.BuildQueue; drives policy/repository, maps, datapath and
// ipcache through small interfaces; observers see the committed row.
//
// # Rules
//
// Policy is in the kernel before the programs are attached; an address is
// exposed after them, and taken away before anything else. A build that fails
// undoes its steps in reverse order and is retried with a growing delay; it
// never leaves half of itself behind. A policy that does not fit denies
// everything (slot 0), and the endpoint is shown as degraded.
//
// # After a restart
//
// Adopt reads the slot in force from the configuration word, so the first
// build swaps from it, and removes what an interrupted deletion left.
//
// # Try it
//
//	go test -race ./pkg/endpoint/regenerator
package regenerator
