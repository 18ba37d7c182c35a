// Package lab runs a node in a box: a real agent in a network namespace of its
// own, pods attached through the real CNI plugin, outside hosts, servers on
// every declared port, and real packets between them.
//
// # What
//
// Up builds a lab in a directory, Matrix and SendProbes send packets for every pair,
// Down takes everything away. The directory is the lab: several run side by
// side.
//
// # Neighbours
//
// cli and the tests in test/ call it; it starts weir-agent and weir-cni as
// processes and knows neither their packages nor Kubernetes.
//
// # Rules
//
// Everything that a lab makes is below its directory or inside a namespace
// bound there. Packets go only to addresses inside those namespaces.
//
// # After a restart
//
// lab.json in the directory lists pods, hosts and process ids; Down works from
// it and from what it finds, also after a crash in the middle of Up.
//
// # Try it
//
//	make build && bin/weir lab up examples/shop && bin/weir lab probe
package lab
