// Command bench measures Weir against the bare redirect, in one run.
//
// # What
//
// "make bench": packet figures of Weir and of two floor programs in
// interleaved rounds, the cost of compiling, loading and of a CNI ADD, memory, and
// how policy grows with identities, lines, endpoints and prefixes; one table of
// ratios, and the same as JSON in build/bench.json. -only measures one part.
//
// # Neighbours
//
// It drives pkg/lab, a loader, policy repository and policy maps of its own and
// the ptp plugin; load/pp.c makes the load, floor/ holds the bare programs.
//
// # Rules
//
// Speed is a ratio to min_peer (MAC rewrite and bpf_redirect_peer) measured in
// the same run, growth a ratio to the small case; the median of many short
// rounds, because a shared machine is slow at times. A missed aim is printed, not
// hidden; it is no failure. What the agent and ptp's host-local keep is in memory,
// as /var/run is on a node.
// Everything is made inside namespaces and taken away, also on an interrupt.
//
// # Try it
//
//	make bench
//	go run ./test/bench -only policy
package main
