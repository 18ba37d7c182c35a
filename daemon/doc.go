// Command weir-agent is the node agent, one per node.
//
// # What
//
// The process that owns the pods of a node: see daemon/cmd.
//
// # Neighbours
//
// weir-cni and weir talk to it over its unix socket.
//
// # Rules
//
// Nothing but a call of daemon/cmd stands here.
//
// # Try it
//
//	make build && bin/weir-agent --help
package main
