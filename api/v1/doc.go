// Package v1 is the contract of the agent's REST API: the spec, its version
// and the form of its failures.
//
// # What
//
// openapi.yaml is the source; gen/ holds the models, client and server made
// from it. Error is the one failure form, used on both sides of the socket.
//
// # Neighbours
//
// Served by pkg/api and pkg/endpoint/api, called by pkg/client.
//
// # Rules
//
// The spec comes first: change it, run go generate, then the code. A change
// that an older client cannot read raises the major number of Version.
// A code of an Error is never renamed.
//
// # Try it
//
//	go test ./api/v1/...
package v1

//go:generate go tool oapi-codegen -config oapi-codegen.yaml -o gen/api.gen.go openapi.yaml
