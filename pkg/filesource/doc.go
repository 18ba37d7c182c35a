// Package filesource is the source of a node without a cluster: folders of
// Kubernetes YAML, and policies put through the API.
//
// # What
//
// It reads Pod, Namespace, Node, the policy kinds and what policies name (Service,
// EndpointSlice, CiliumCIDRGroup) from the files of one or more folders, watches
// them, and writes the changes to the tables of pkg/workload and to the policy
// repository. Look and List are how the agent and the commands without an agent
// find the files of a folder.
//
// # Neighbours
//
// daemon/cmd starts it; the API puts and deletes policies through it, lists the
// sources and accepts them; cli reads a folder with Load. filesource/lastgood keeps
// on disk what is in force. Warnings go to pkg/health.
//
// # Rules
//
//   - What cannot be read changes nothing. A file is one unit: if a part of it is
//     wrong, all of it stays at its last good version, also over a start. Other files
//     apply all the same. A file that held objects and holds none is wrong.
//   - What is to be in force is on the disk before it is (Source.put). What cannot be
//     kept is not put in force.
//   - A file that is not there any more is a deletion if its folder is the one that was
//     read (device and inode; after another boot: it holds others of its files). A folder that is
//     missing, another one, or holds none of its files is held as a whole until it is
//     back or somebody accepts it (Accept, EmptyMark). One that never held anything is
//     read as empty; one that is not configured any more is forgotten.
//   - Fewer objects than before are taken when the file stood still for a second, files
//     that went when no more went for a moment. While a file of a folder is wrong, an
//     object that left another one is kept: it may be in the wrong one. Where the whole
//     file went, that is so only if the wrong one names the object.
//   - A policy of the API goes only by the API.
//   - An object in force that can be read nowhere is Lost: who asks the repository for
//     policy asks Lost first, and keeps what is there.
//   - An object that two files hold is taken from the first in the order of names and
//     told of. Tests of policies (kind PolicyTest) are passed over; CheckTests reads them.
//   - Folders below are read, but for hidden ones, links to folders, recipes (Recipe) and
//     that of weir lab. After an agent that did not read them they wait until the
//     source is accepted.
//   - When an object that policies name changes, exactly the policies that depend on it
//     are translated again; a name that nothing is known under is a warning.
//
// An address of a node, or one that means no single host, is not taken from a Pod
// object and is told; the rest of the object counts.
//
// # Try it
//
//	go test ./pkg/filesource
package filesource
