// Package eventsmap reads the ring through which the data plane tells what it
// decided (weir_events).
//
// # What
//
// Map is the ring buffer. Map.Run takes records out of it on a deadline of its
// own, because the programs never wake a reader up. Shares are the counters of what
// each endpoint told of (weir_shares).
//
// # Neighbours
//
// Written by the programs in bpf/, read by pkg/monitor, which decodes the records.
//
// # Rules
//
// A ring has one reader. Every producer uses BPF_RB_NO_WAKEUP; one record
// with it silences the wake-ups of all others. The deadline is 20 ms: below
// 10 ms the reader spins, and the ring must hold what comes in one period.
// What found no room is counted by the programs in weir_metrics.
// An endpoint may tell of 2,000 drops and 4,000 other events a second and CPU; what
// is more is counted in Shares, so that a flood of one pod hides no other.
//
// # After a restart
//
// The ring is recognised by its pin path <root>/maps/weir_events; records that
// came while no agent ran are read first. If another size is asked for, a new ring
// takes the pin over, and Run reads the former one beside it until TakeOver says that
// no program writes to it any more; then it is read to the end and goes. How far a
// ring was read is kept by the kernel, so no record is told twice, whoever dies.
//
// # Try it
//
//	go test ./pkg/maps/eventsmap
package eventsmap
