// Package a is part of a small tree that breaks one rule.
//
// # What
//
// # Neighbours
//
// # Rules
//
// # After a restart
//
// # Try it
package a
