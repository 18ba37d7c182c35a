// Package drop holds the reasons for which the data plane drops a packet.
//
// # What
//
// Reason is the number that events and metrics carry, with a short name and a
// sentence that ends with the next thing to try.
//
// # Neighbours
//
// Generated from bpf/lib/drop_reasons.h, the single list. Read by monitor,
// metrics and the CLI.
//
// # Rules
//
// zz_reasons.go is never edited. A number keeps its meaning for ever.
//
// # Try it
//
//	go generate ./pkg/drop && go test ./pkg/drop
package drop

//go:generate go run gen.go
