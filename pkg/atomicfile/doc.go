// Package atomicfile replaces files whole.
//
// # What
//
// Write and WriteSync put a new content in the place of a file: who reads it sees
// the old content or the new one, never a part. Load reads a file of state; what
// cannot be used is set aside under another name (SetAside), which ListAside finds
// until somebody removes it. Dir and Private make directories for state.
//
// # Neighbours
//
// Whoever keeps state in a file uses it, from floor 2 up. Two do it otherwise: the
// queue of deletions in pkg/client and weir policy fmt, because several processes
// may write at once.
//
// # After a restart
//
// A process that was killed may leave the temporary file. The next write of the
// same file takes it away; who lists a folder passes over names that end in
// TempSuffix.
//
// # Rules
//
// Damaged state is never an error that ends a start: whoever reads state goes on
// without it, says so, and makes it anew from what else is known.
//
// One writer of a file at a time. The folder exists. Write outlives the death of
// the process, WriteSync also that of the machine.
//
// # Try it
//
//	go test ./pkg/atomicfile
package atomicfile
