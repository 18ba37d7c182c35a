// Package spell measures how far a misspelt name is from a known one.
//
// # What
//
// One distance between two words.
//
// # Neighbours
//
// policy/k8s names the nearest field, daemon/cmd the nearest setting.
//
// # Rules
//
// Whether a distant name is still worth naming is the caller's to decide.
//
// # Try it
//
//	go test ./pkg/policy/k8s ./daemon/cmd
package spell
