// Package spell measures how far a misspelt name is from a known one, and writes
// numbers of things.
//
// # What
//
// One distance between two words; one count with its noun.
//
// # Neighbours
//
// policy/k8s names the nearest field, daemon/cmd the nearest setting; daemon/cmd
// and cli/cmd count for people.
//
// # Rules
//
// Whether a distant name is still worth naming is the caller's to decide.
//
// # Try it
//
//	go test ./pkg/policy/k8s ./daemon/cmd
package spell
