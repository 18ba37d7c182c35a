// Package identity holds the numbers that stand for sets of labels: their
// layout, the reserved table and maps from number to labels.
//
// # What
//
// A NumericIdentity is 32 bits: scope, cluster, number. Reserved numbers have
// fixed labels; the others are given out by identity/cache.
//
// # Neighbours
//
// Read by every layer; it imports only labels.
//
// # Rules
//
// Numbers of a scope other than global mean something on this node only. The
// zero value is no identity, and the wildcard peer in policy maps. Closed is the one
// reserved number without labels: no selector can match it.
//
// # Try it
//
//	go test ./pkg/identity
package identity
