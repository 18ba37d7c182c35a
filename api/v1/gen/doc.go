// Package gen is made from api/v1/openapi.yaml by oapi-codegen.
//
// # What
//
// The models of the agent's REST API, its client and its strict server
// interface. doc.go is the only file written by hand.
//
// # Neighbours
//
// See api/v1.
//
// # Rules
//
// Never edited: change the spec and run go generate ./api/v1.
//
// # Try it
//
//	go generate ./api/v1 && git diff --exit-code api/v1/gen
package gen
