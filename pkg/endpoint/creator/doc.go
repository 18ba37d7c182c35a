// Package creator makes endpoints from requests.
//
// # What
//
// Create checks a request, registers the endpoint, gets its labels, identity
// and first build, and takes everything back if one of them fails.
//
// # Neighbours
//
// Called by endpoint/api for the CNI plugin; uses endpointmanager as registry
// and endpoint/metadata for labels.
//
// # Rules
//
// The same request returns the same endpoint. After an error nothing of the
// endpoint is left; link and addresses belong to the caller. A deletion that
// comes while a creation runs cancels it.
//
// # After a restart
//
// An endpoint whose creation was cut off by the end of the agent has a record
// and is finished by the restore, or removed with its link.
//
// # Try it
//
//	go test -race ./pkg/endpoint/creator
package creator
