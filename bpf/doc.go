// Package bpf embeds the C sources of the data plane and the objects that were
// compiled from them at build time.
//
// # What
//
// Sources holds bpf_lxc.c and lib/*.h, Objects the folder objects. The programs
// are weir_from_container (all that a pod sends) and weir_to_container (all that
// the node sends to it): entry programs with the endpoint's constants, which jump
// into weir_from_body and weir_to_body, one pair for all endpoints of a shape.
//
// # Neighbours
//
// Read by pkg/datapath/loader, which adds shape.h and compiles. The structs of
// lib/types.h have twins in pkg/maps/* and pkg/monitor; pkg/drop is generated
// from lib/drop_reasons.h.
//
// # Rules
//
// Every packet ends counted once in weir_metrics, and every drop goes through
// drop() in lib/drop.h. A policy word is read before the addresses and the
// policy are looked up, so a race can cost one more judgement but never a stale
// allow. Constants live only in entry programs, in .rodata.config, with no zero
// 32-bit word. Functions marked OUT_OF_LINE are global, so that the verifier
// reads each once: keep them off the path of an established flow.
//
// # After a restart
//
// Programs keep running with the maps that they were loaded with. Ours have
// names that begin with weir_. Programs with tables of flows of two sizes may run
// beside each other: see find_live in lib/conntrack.h.
//
// # Try it
//
//	go test ./bpf
package bpf
