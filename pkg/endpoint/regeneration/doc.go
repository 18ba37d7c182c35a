// Package regeneration holds the words of an endpoint's life: its states and
// their one transition table, the levels of a regeneration, the station names.
//
// # What
//
// Constants and pure predicates; no state of its own.
//
// # Neighbours
//
// Driven by endpoint and endpoint/regenerator; printed by the API, the logs
// and the CNI plugin.
//
// # Rules
//
// A state changes only along a pair that Allowed accepts. Station names are
// used verbatim in logs, timelines, CNI errors and tests.
//
// # Try it
//
//	go test ./pkg/endpoint/regeneration
package regeneration
