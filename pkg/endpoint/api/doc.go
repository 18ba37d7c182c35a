// Package api answers the operations of the REST API below /endpoint.
//
// # What
//
// Handlers reads requests into plain values, asks the endpoint manager and the
// creator, and gives their answers the form of the spec.
//
// # Neighbours
//
// The daemon joins it with pkg/api's handlers and gives the sources, which
// stand before endpointmanager and endpoint/creator.
//
// # Rules
//
// This is the station api.accept: a request that is wrong is refused here with
// the field's name and changes nothing. Nothing else is decided here.
//
// # Try it
//
//	go test ./pkg/endpoint/api
package api
