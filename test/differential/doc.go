// Package differential compares three judges of one packet: the programs in the
// kernel, the map state that they were given, and the oracle.
//
// # What
//
// Random worlds (pods here and elsewhere, nodes, outside addresses), random
// policies and random packets. Every packet runs through the real programs
// (BPF_PROG_TEST_RUN) on the real maps, written by pkg/maps from the map states
// of pkg/policy. A verdict is one direction of one connection: allow or deny and
// the number of the rule, from the event and, for an allow, also from the
// conntrack entry. It must be what MapState.Decide and oracle.Judge say.
// TestMutations plants one-line faults in the C and Go code, one at a time, and
// demands that the comparison fails; the faults are listed in mutations_test.go.
//
// # Neighbours
//
// Reads pkg/policy and its oracle; test/dataplane holds the maps and programs;
// identity numbers come from pkg/policy/simulate.
//
// # Rules
//
// A world is a function of the seed and its number, so that a printed seed is
// enough to see a disagreement again. The programs are loaded once; worlds
// change maps only. What a packet should do is computed from the oracle alone;
// the map state is compared with the same answer. A mutation never touches the
// tree: it is compiled over it (go test -overlay), C files too, as they are
// embedded. When a mutated line changes, its mutation is written anew.
//
// # Try it
//
//	go test -v ./test/differential
//	WEIR_DIFF_SEED=7 WEIR_DIFF_VERDICTS=1000000 go test -v -run Agree ./test/differential
//	go test -v -run TestMutations ./test/differential
package differential
