// Package ipam leases pod addresses from the node's configured pools.
//
// # What
//
// A lease is one address of each family asked for, taken and given back
// together. A lease made for a CNI ADD expires unless Confirm says that an
// endpoint uses it.
//
// # Neighbours
//
// Asked by the REST API for the CNI plugin and by the endpoint's creator
// (Confirm, Release, Restore). Built on ipam/pool.
//
// # Rules
//
// An owner (container and interface) has one lease: asking again returns it if
// it answers the request, and is an error if not. An endpoint gets only addresses
// that Claim has found leased to it, or has leased. What Allocate returns is in the
// file; a change that cannot be written is undone. The file is renamed into place
// without a sync: it survives kill -9, and a power cut ends the pods together with
// their leases. Expired leases go at the next Allocate or Expire. Addresses of
// nodes (Config.Foreign) are not leased, as they are at that moment; who has one
// already keeps it, and Conflicts tells of it.
//
// # After a restart
//
// New reads leases.json. Endpoints that come back call Restore, which also
// covers a lost file; until all have, nobody may call Allocate. A damaged or
// newer file is set aside with a warning. A lease whose
// address is in no pool any more stays with its owner until it is released.
//
// # Try it
//
//	go test -race ./pkg/ipam/...
package ipam
