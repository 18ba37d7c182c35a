// Command builtin compiles the objects of the common shapes, which the agent's
// binary then embeds.
//
// # What
//
// It writes <hash>.o for each shape of loader.BuiltinShapes into a directory
// and removes objects of former sources from there.
//
// # Neighbours
//
// Called by `make build` before the binaries; it uses datapath/loader.
//
// # Rules
//
// It reads the sources from the folder it is told, not from an embedded copy,
// since package bpf embeds its output.
//
// # Try it
//
//	go run ./pkg/datapath/loader/builtin -sources bpf -out bpf/objects
package main
