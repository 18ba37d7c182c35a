// Package link makes, configures, finds and deletes the two ends of a pod's veth.
//
// # What
//
// CreateVeth makes the pair with the peer born in the pod's namespace;
// ConfigurePod gives that peer its addresses and default routes; CheckPod
// compares them with what they should be; the rest looks after the host side.
//
// # Neighbours
//
// The CNI plugin calls CreateVeth, ConfigurePod and CheckPod; the agent calls
// the host-side functions. Addresses come from pkg/ipam.
//
// # Rules
//
//   - The host side stays down until the agent exposes the endpoint (SetUp), so
//     nothing passes before programs and policy are in place.
//   - The peer is created in the pod's namespace and never moved: a move costs
//     12-23 ms.
//   - The host side has no address of its own: no ARP, no generated IPv6
//     address. The pod's default routes go through 169.254.1.1 and fe80::1, which
//     the program on the host side answers for. Pod addresses are not probed
//     for duplicates (nodad), since nobody else is on the wire.
//   - Host-side functions work in the network namespace of the calling thread.
//
// # After a restart
//
// A host side is ours if its alias says so (Mark): it names the endpoint, the
// attachment and the pod, so that the link is known again without a record. Builds
// before the mark left only the name, "lxc" and 12 hexadecimal digits (HostName),
// which others may use too: who takes such a link for ours needs another proof.
// A link is known by its index and its peer's; people may rename it.
//
// # Try it
//
//	go test ./pkg/datapath/link
package link
