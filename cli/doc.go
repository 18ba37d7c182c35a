// Command weir is the one command that a person types.
//
// # What
//
// See cli/cmd.
//
// # Neighbours
//
// It talks to the agent over its socket, reads maps below "weir bpf", and runs
// labs.
//
// # Rules
//
// Nothing but a call of cli/cmd stands here.
//
// # Try it
//
//	make build && bin/weir --help
package main

//go:generate go run ./reference ../docs/cli.md
