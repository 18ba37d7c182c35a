// Package attach puts an endpoint's two programs on the host side of its veth.
//
// # What
//
// A clsact qdisc with one cls_bpf filter (direct action, handle 1, priority 1)
// on each hook: ingress is what the pod sends, egress what the node sends to
// the pod. Attach replaces atomically, Query tells what runs, Detach removes.
//
// # Neighbours
//
// Called by datapath/orchestrator with the programs of datapath/loader.
//
// # Rules
//
// Everything happens in the network namespace of the calling thread. Policy
// must be in the kernel before Attach: packets meet the program at once. cls_bpf
// and not TCX, because a TCX attach waits 10-20 ms for a grace period while it
// holds the lock of all netlink writers. A replacement loses no packet: the
// kernel swaps the program under a filter that stays.
//
// # After a restart
//
// A filter is ours if its name, which is the program's, starts with "weir_".
// Query gives the ids of the programs that run, to be compared with the
// endpoint's record.
//
// # Try it
//
//	go test ./pkg/datapath/attach
package attach
