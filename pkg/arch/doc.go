// Package arch enforces the shape of the tree.
//
// # What
//
// It checks, from the output of "go list", that a package imports only lower
// floors, that third-party modules stay on the floors they belong to, that
// every package documents itself and that no file outgrows one room.
//
// # Neighbours
//
// Nothing imports it. Its data are floors.txt (package, floor), sideways.txt
// (allowed imports on one floor, each with its reason) and modules.txt
// (third-party modules per floor), all beside this file.
//
// # Rules
//
// A package that floors.txt does not list is an error. Every rule has a small
// broken tree under testdata that must be caught.
//
// # Try it
//
//	go test ./pkg/arch
package arch
