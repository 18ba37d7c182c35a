// Package a is part of a small tree that breaks one rule.
//
// # What
//
// # Neighbours
//
// # Rules
//
// # Try it
package a
