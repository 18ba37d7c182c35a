// Package route keeps the node's routes to its own pods and their pools.
//
// # What
//
// One host route (/32 or /128, scope link) per pod address through the host
// side of its veth: Ensure, Remove, List. One unreachable route per pool, of the
// worst metric, ends what is meant for an address that no pod has. Networks,
// Defaults and Overlaps tell where the node itself is connected, and whether a
// pool takes addresses from there.
//
// # Neighbours
//
// Called by pkg/endpoint when it exposes and withdraws an endpoint, and by
// pkg/upkeep for the pools.
//
// # Rules
//
// Everything happens in the network namespace of the calling thread. A route of
// somebody else to the same address is never replaced or removed: Ensure fails
// and names its owner. A routing table other than main needs a rule, which is
// the caller's.
//
// # After a restart
//
// A route is ours by its protocol number, 87 (rtnetlink(7), RTPROT_STATIC and
// above are for user space; iproute2's list does not use it).
//
// # Try it
//
//	go test ./pkg/datapath/route
package route
