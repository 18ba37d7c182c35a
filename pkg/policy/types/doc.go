// Package types holds the words of policy: the one rule form that every
// dialect is translated to, and the keys, entries and verdicts that it becomes.
//
// # What
//
// A Policy is one object of any dialect after translation. A Key and an Entry
// are one line of a policy map, in host byte order.
//
// # Neighbours
//
// Written by policy/k8s, resolved by policy, judged by policy/oracle, numbered
// by policy/repository, printed by policy/explain.
//
// # Rules
//
// Values are immutable once handed on. nil and empty differ: a nil peer list
// means anybody, an empty one means nobody.
//
// # Try it
//
//	go test ./pkg/policy/...
package types
