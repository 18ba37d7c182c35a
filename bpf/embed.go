package bpf

import "embed"

// Sources are the C files as the loader hands them to clang: bpf_lxc.c, with the
// headers under lib. shape.h is not among them; the loader generates it.
//
//go:embed bpf_lxc.c lib/*.h
var Sources embed.FS

// Objects is the folder objects with what the build compiled: <shape hash>.o.
// It may hold no object at all.
//
//go:embed objects
var Objects embed.FS
