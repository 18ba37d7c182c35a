// Package metricsmap reads the data plane's counters (weir_metrics).
//
// # What
//
// An array with one slot per reason and direction, counted on each CPU and
// summed here. Reason 0 counts forwarded packets, reason 255 lost events.
//
// # Neighbours
//
// Written by the programs in bpf/, read by pkg/metrics, the API and the
// consumer of pkg/monitor.
//
// # Rules
//
// Counters only grow while the map lives; nobody but the programs writes.
//
// # After a restart
//
// The map is recognised by its pin path <root>/maps/weir_metrics; the counters
// go on.
//
// # Try it
//
//	go test ./pkg/maps/metricsmap
package metricsmap
