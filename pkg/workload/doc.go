// Package workload holds the tables of pods, namespaces and nodes as the
// source of the cluster's state (a folder, later the Kubernetes API) tells them.
//
// # What
//
// Three statedb tables of immutable plain rows, and a transaction over them for
// the writer.
//
// # Neighbours
//
// Written by filesource. Read and watched by endpoint/metadata, node and the
// feeders of ipcache.
//
// # Rules
//
// A row is never changed once written: writers insert a new one. The addresses of
// pods that have ended and of pods in the node's own network belong to somebody
// else (Pod.OwnsAddresses). Nothing may be pruned because it is missing here
// before Synced reports true.
//
// # After a restart
//
// The tables are empty and not in sync; the source fills them again.
//
// # Try it
//
//	go test ./pkg/workload
package workload
