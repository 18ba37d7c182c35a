// Package types holds small value types that several layers share.
//
// # What
//
// Hardware addresses and the numbers of IP protocols, with their text forms.
//
// # Neighbours
//
// Read by every layer; it imports nothing of the project.
//
// # Rules
//
// Values are comparable and immutable.
//
// # Try it
//
//	go test ./pkg/types
package types
