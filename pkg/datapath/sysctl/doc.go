// Package sysctl changes kernel settings of the node so that they can be undone.
//
// # What
//
// Changes remembers on disk what a setting was before the first change; Undo
// puts it back. NodeSettings and VethSettings are the complete list of what Weir
// changes. ForwardPolicy looks for a packet filter that drops what the node
// forwards.
//
// # Neighbours
//
// Called by datapath/orchestrator at base initialisation and by the agent's
// clean-up.
//
// # Rules
//
//   - Settings are those of the calling thread's network namespace.
//   - A setting that has the wanted value already is not touched and not undone.
//   - The record is written before the setting.
//   - Undo leaves a setting alone that somebody else has changed since.
//   - Settings of a veth go with the veth and are not recorded.
//   - No setting of "default" for new interfaces is changed: it would reach every
//     interface that anybody makes on the node meanwhile. The host sides of pods
//     get theirs one by one.
//   - The packet filter is only read, never changed.
//
// # After a restart
//
// The record is a JSON file in the state directory. A new process continues it,
// so that values from before the first life are those that Undo restores. One that
// is damaged is set aside: the node is set up all the same, and what was before is
// then not put back by Undo.
//
// # Try it
//
//	go test ./pkg/datapath/sysctl
package sysctl
