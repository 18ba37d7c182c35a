// Package endpoint is the per-pod state machine of the agent.
//
// # What
//
// An Endpoint is one attached pod: identity, labels, addresses, links, and how
// far its policy and programs are in the kernel. The build queue bounds and
// merges the expensive work; the record on disk outlives the agent.
//
// # Neighbours
//
// Made by endpoint/creator through endpointmanager, labelled by
// endpoint/metadata, built by endpoint/regenerator, read by the API.
//
// # Rules
//
// One goroutine owns the mutable state of an endpoint. Readers take Row, an
// immutable snapshot; writers take their turn through LockAlive, which fails
// once the endpoint is disconnecting. A turn is short: no call into another
// package, no compile, no policy computation happens inside one. A state changes
// only along regeneration.Allowed. Kernel identities are released only when
// neither the wish, nor the kernel, nor a running build holds them.
//
// # After a restart
//
// <state>/endpoints/<id>/endpoint.json gives back id, addresses, labels,
// identity and settings. Rows start as restoring; the policy slot is read from the kernel's
// configuration word, so traffic and policy stay in force until the next build.
// A record of another boot revives nothing. One that cannot be used is set aside, and
// endpoint/survey makes it again from the kernel.
//
// # Try it
//
//	go test -race ./pkg/endpoint/...
package endpoint
