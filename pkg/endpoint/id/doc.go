// Package id holds the names that endpoints answer to and the numbers they get.
//
// # What
//
// A Ref is a parsed reference such as "42", "ipv4:10.0.0.3" or
// "pod-name:shop/api". A Pool hands out the numbers 1 to 4095.
//
// # Neighbours
//
// Read by the API's path parameters and by endpointmanager, which owns the one
// Pool of an agent.
//
// # Rules
//
// Pure: no locks, no clock. A number is given to one owner at a time; a number
// that was just freed is the last one to be given again.
//
// # Try it
//
//	go test ./pkg/endpoint/id
package id
