// Package docs runs the examples of docs/policy.md and the tour of docs/testing.md.
//
// # What
//
// The first YAML block, "yaml cast", is the pods, namespaces and nodes of all
// examples. Every other YAML block is put beside it, and the "verdicts" block
// after it says what has to come of it, one thing a line:
//
//	shop/web -> shop/db 5432: allow      a connection, PORT or PORT/PROTO
//	lint: WL101 WL301                    what weir policy lint finds, in order of lines
//	refused: has no rule                 a part of the reason why it is refused
//
// An end is a pod, a node, or an address. Where no lint line stands nothing may
// be found.
//
// Of docs/testing.md the blocks "yaml PATH" are files and the lines of the "sh"
// blocks are run beside them, as the reader would; each must end with exit code 0.
//
// # Neighbours
//
// cli/folder reads the YAML, policy/simulate judges and policy/oracle judges
// again; cli/cmd lints.
//
// # Rules
//
// A YAML block without expectations is an error, and so is a line that cannot be
// read: what the page says is what Weir does.
//
// # Try it
//
//	go test ./test/docs
package docs
