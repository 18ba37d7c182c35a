// Package bpf holds what every user of the bpf system call needs: the root of
// the pins, maps that are opened or created with a checked layout, batches and
// the state of the process.
//
// # What
//
// Root names every pin path of one agent. OpenOrCreate opens a pinned map or
// creates and pins it, and refuses one whose layout differs; OpenResized puts one of
// the wanted size in the place of a pinned one of another size; ConvertLayout puts one of
// the wanted layout in the place of one of another. Update, Delete and
// Each move many entries with one system call where the kernel can, one by one
// where it cannot. UpdateLock serialises the writers of one map.
//
// # Neighbours
//
// Read by pkg/maps/*, pkg/datapath/*, pkg/monitor and pkg/testutils. It imports
// nothing of the project.
//
// # Rules
//
// A missing kernel feature is looked for only after a call failed, so the good
// path costs nothing. Functions return errors that say what was done on what.
// An UpdateLock is held around one write or one batch, never across a call into
// another package.
//
// # After a restart
//
// A map is recognised as ours by its pin path under Root; OpenOrCreate compares
// type, sizes and flags before it is used. One that is pinned as NAME_former lost its
// place to a map of another size and is still in use; NAME_new never got the place;
// NAME_aside1 is of a layout that nobody knew.
// Ids of kernel objects hold only until the next boot, which BootID tells apart.
//
// # Try it
//
//	go test ./pkg/bpf
package bpf
