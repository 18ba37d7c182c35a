// Command reference writes docs/cli.md, the reference of all commands.
//
// # What
//
// One page from what the commands say of themselves: use, text, flags, examples.
//
// # Neighbours
//
// cli/cmd has the commands; "go generate ./cli" calls it.
//
// # Rules
//
// The page is the same on every machine and day: no environment is looked at, and
// nothing of the machine stands in it. A test fails where the page is stale.
//
// # Try it
//
//	go generate ./cli && git diff docs/cli.md
package main
