// Package endpointmanager holds the node's endpoints: it registers, finds,
// observes, restores, deletes and sweeps them.
//
// # What
//
// A Manager is the one registry of an agent. It owns the numbers, refuses two
// endpoints with one attachment or address, and spreads policy changes.
//
// # Neighbours
//
// Used by endpoint/creator, the API, policy/repository and ipcache; it drives
// the endpoints, and endpoint/regenerator for deletions.
//
// # Rules
//
// The registry's lock is a leaf: no endpoint, map or file is touched under it.
// All restored endpoints are registered before any is built. A number is free
// again only when nothing of its endpoint is left in the kernel or on disk.
// An endpoint is swept only after its link was missing in two passes.
//
// # After a restart
//
// Restore takes the records that endpoint/survey found or made, registers all,
// finishes interrupted deletions, removes endpoints whose link is gone, and lets the
// rest go on. One whose labels are not known stays as it is in the kernel.
//
// # Try it
//
//	go test -race ./pkg/endpointmanager
package endpointmanager
