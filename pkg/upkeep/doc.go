// Package upkeep puts on the node what pods need beside their own links, keeps it
// there, and undoes it.
//
// # What
//
// A Keeper has a list of Steps, each with its undoing: kernel settings, the node's
// own addresses in the pools, routes that end what is meant for an address that no
// pod has, rules of the packet filter, and what the agent adds, such as the CNI
// configuration. SetUp makes them all so, Run does it again and again, Undo takes
// them back.
//
// # Neighbours
//
// The agent makes a Keeper; datapath/orchestrator calls SetUp at base
// initialisation, the agent's clean-up calls Undo. The hands are datapath/route,
// link, sysctl and filter; what is wrong goes to health.
//
// # Rules
//
//   - Steps run in their order and are undone in the reverse one.
//   - In SetUp an error of a step is an error. Later it is a warning, and the
//     other steps go on.
//   - What others took away or changed is put back, logged, and told by a warning
//     that breaks nothing and stands until the agent ends: who did it is not known,
//     nor whether it happens again.
//   - A pool that takes in the network of the default gateway is refused at the
//     start, before anything is changed; overlaps that come later are told.
//   - Everything happens in the network namespace of the calling thread.
//
// # After a restart
//
// Each step knows what is its own: routes by their protocol, rules by a comment,
// settings by the record in the state directory.
//
// # Try it
//
//	go test ./pkg/upkeep
package upkeep
