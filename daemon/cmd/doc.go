// Package cmd wires the agent: it reads the configuration, opens the maps,
// joins the modules and runs them in order.
//
// # What
//
// The cobra root of weir-agent, its configuration, and thin adapters between
// modules that do not know each other.
//
// # Neighbours
//
// It imports every module of the agent; nothing imports it but the binary.
//
// # Rules
//
// No domain logic: an adapter renames and converts, nothing more. The start
// order is in agent.go and is the only place that knows it.
//
// # Try it
//
//	go test ./daemon/cmd
//	bin/weir-agent --help
package cmd
