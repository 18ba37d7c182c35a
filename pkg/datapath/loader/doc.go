// Package loader turns the embedded C sources into loaded programs: one
// compiled object and one loaded body per shape, one pair of tiny entry
// programs per endpoint.
//
// # What
//
// fetchOrCompile finds the object of a shape (built in, in memory, on disk, or
// by clang, at most one compile per hash at a time). Load puts the shape's
// bodies into the kernel once and loads a copy of the two entry programs with
// the endpoint's constants written into them.
//
// # Neighbours
//
// Fed by datapath/orchestrator; it reads the sources and objects of bpf/ and
// the maps that the agent opened. The programs it returns go to datapath/attach.
//
// # Rules
//
//   - The hash of a shape is SHA-256 over the sources, the compiler flags and
//     the text of shape.h. Constants of an endpoint never reach it: wrap
//     replaces them by those of the template first.
//   - A program array is new per load of a shape, is filled before anybody gets
//     it, pinned before the first attach, and never filled again.
//   - An array of a former load keeps its pins, because closing its last user
//     reference empties it at once. ReleaseRetired takes the pins away when no
//     entry program in the kernel refers to the array any more and a grace
//     period has passed since.
//   - Instructions lose their line information on the good path. Only a refused
//     program is loaded again with it, for the log.
//
// # After a restart
//
// Compiled objects are in <state>/templates/<hash>/ beside a digest; one that
// does not match its digest is compiled again. A body is recognised by its pins
// in <root>/shapes/<hash>/ and reused if boot, program ids and map ids are those
// of <state>/shapes/<hash>/record.json. Otherwise its directory is set aside as
// <hash>-old-<n> and a new array is made. Who uses an old array is asked of the
// kernel (the map ids of all loaded programs), so nothing must be remembered.
//
// # Try it
//
//	go test ./pkg/datapath/loader
//	go test -run '^$' -bench . ./pkg/datapath/loader
package loader
