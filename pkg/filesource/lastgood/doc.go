// Package lastgood keeps on disk what of the sources is in force.
//
// # What
//
// A Store holds the text of the last good version of every file of the sources and
// of every policy put through the API, and the Index: which objects are in force,
// from which source and file, and which pods each policy selects. The index is
// kept apart from the texts and in several places, so that an object whose text is
// damaged is still known.
//
// # Neighbours
//
// pkg/filesource decides what is in force, writes it here first, and reads it here
// at a start. daemon/cmd says where: DATA-DIR/sources, DATA-DIR/policies and
// DATA-DIR/policies.copy, and a copy of the index in the state directory.
//
// # Rules
//
//   - The index is what counts: a text that it does not name is not in force and is
//     removed by the next Commit. So a deletion is complete once the index is written,
//     whatever becomes of the texts.
//   - A text is on the disk before the index names it, and stays until an index
//     without it is.
//   - A text that does not have the sum that the index gives is damaged. A policy of
//     the API is stored twice, and each copy restores the other. The second one is
//     written after the index: until then it is the version that was in force before.
//   - What is damaged is set aside, never fatal.
//
// # After a restart
//
// Open reads the newest whole index. Where none can be read although there was one,
// Lost says so.
//
// # Try it
//
//	go test ./pkg/filesource/lastgood
package lastgood
