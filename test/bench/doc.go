// Command bench measures Weir against the bare redirect, in one run.
//
// # What
//
// "make bench": packet figures of Weir and of two floor programs in
// interleaved rounds, the cost of compiling, loading and of a CNI ADD, memory;
// one table of ratios, and the same as JSON in build/bench.json.
//
// # Neighbours
//
// It drives pkg/lab and the loader; load/pp.c makes the load, floor/ holds the
// bare programs.
//
// # Rules
//
// Speed is a ratio to min_peer (MAC rewrite and bpf_redirect_peer) measured in
// the same run. A missed aim is printed, not hidden; it is no failure.
//
// # Try it
//
//	make bench
package main
