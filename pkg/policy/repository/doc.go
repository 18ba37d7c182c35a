// Package repository holds the policies in force and answers what they mean for
// a pod.
//
// # What
//
// A Repository keeps policies by resource, the index of identities and pods,
// and the table of rule numbers. Resolve computes the map state of one subject;
// every change says which subjects it concerns, and which identities' lines: those
// alone are made anew. A subject is resolved as a whole where a policy that selects
// it, or a named port of its destinations, changed.
//
// # Neighbours
//
// filesource writes policies; endpoint (identities), ipcache (prefix
// identities) and the daemon (pods) write the index. The endpoints resolve
// through it and are told of changes; ipcache is told the prefixes that
// policies name.
//
// # Rules
//
//   - One immutable state is replaced as a whole; readers never wait for writers.
//   - The revision grows with every change that can alter a map state.
//   - One change at a time is made and told, so that everybody hears revisions in
//     order. Who is told must not make a change before it has returned. Resolve
//     waits for nobody.
//   - An identity goes (UpdateIdentities) after the last subject that has it.
//   - A rule number is never used for another rule, also not by a later process:
//     map entries, conntrack entries and events may hold it.
//
// # After a restart
//
// rules.json in the state directory holds the numbers that were given, written
// before the kernel sees one. Everything else comes from the sources again.
//
// # Try it
//
//	go test ./pkg/policy/repository
package repository
