// Package sysctl changes kernel settings of the node so that they can be undone.
//
// # What
//
// Changes remembers on disk what a setting was before the first change; Undo
// puts it back. ApplyNode (NodeSettings and accept_ra of links) and VethSettings
// are all that Weir changes.
//
// # Neighbours
//
// Called by pkg/upkeep, at base initialisation, again and again, and in the
// agent's clean-up.
//
// # Rules
//
//   - Settings are those of the calling thread's network namespace.
//   - A setting that has the wanted value already is not touched and not undone.
//   - The record is written before the setting.
//   - Undo leaves a setting alone that somebody else has changed since.
//   - Settings of "all" interfaces and of links of others stay as they are, but for
//     forwarding. The reverse path filter is neither needed nor in the way.
//   - Settings of a veth go with the veth and are not recorded.
//   - No setting of "default" for new interfaces is changed: it would reach every
//     interface that anybody makes on the node meanwhile. The host sides of pods
//     get theirs one by one.
//   - A link that heard routers (accept_ra 1) goes on hearing them: it gets
//     accept_ra 2 before forwarding goes on, and 1 after it went off.
//   - Links that forwarded by themselves do so again after Undo.
//
// # After a restart
//
// The record is a JSON file in the state directory. A new process continues it,
// so that values from before the first life are those that Undo restores. What a
// former build changed and this one does not is put back by the first Apply.
// One that is damaged is set aside: the node is set up all the same, and what was
// before is then not put back by Undo.
//
// # Try it
//
//	go test ./pkg/datapath/sysctl
package sysctl
