/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The single list of reasons for which a packet is dropped. pkg/drop is
 * generated from it: go generate ./pkg/drop
 * X(name, number, short name, what happened and what to try next)
 * Numbers are shared with events, metrics and tools; one is never given a new
 * meaning. 0 means "not dropped" and 255 counts lost events.
 */
#pragma once

#define DROP_REASONS(X) \
	X(INVALID_SOURCE, 132, "invalid-source", "The pod used a source address or MAC that is not its own. Compare the address in the pod with `weir endpoint get`.") \
	X(POLICY, 133, "policy-default-deny", "No rule allows the connection and a policy isolates the endpoint in this direction. Run `weir why SRC DST:PORT` to see which one.") \
	X(INVALID_PACKET, 134, "invalid-packet", "The packet's headers are truncated or contradict each other. Capture it inside the pod with tcpdump.") \
	X(UNKNOWN_L3, 139, "unknown-l3", "The frame is neither ARP nor of an IP family that is switched on. Check the family settings of the agent.") \
	X(MISSED_TAIL_CALL, 140, "missed-tail-call", "The program of this shape is not loaded. Look at `weir status` and at the agent's log for a load error.") \
	X(CT_CREATE, 155, "conntrack-create-failed", "The connection could not be recorded. Raise the conntrack limit or look at `weir bpf ct`.") \
	X(INVALID_EXTHDR, 156, "invalid-ipv6-extension", "The IPv6 extension headers are too many, out of place, truncated or of a refused type. Capture the packet inside the pod.") \
	X(NO_CONFIG, 165, "no-endpoint-config", "The endpoint has no configuration entry yet. Run `weir endpoint get` and look at its state.") \
	X(FRAG_NOT_FOUND, 175, "fragment-without-first", "A later fragment came before the first one, or too long after it. Senders retransmit; lower the packet size below the MTU to avoid fragments.") \
	X(FORBIDDEN_ICMP6, 176, "forbidden-icmpv6", "Router advertisements, redirects and the like may not pass. A pod has no business to send them; capture the sender with tcpdump.") \
	X(POLICY_DENY, 181, "policy-deny", "A deny rule matches. Run `weir why SRC DST:PORT` to see which one.") \
	X(VLAN, 182, "vlan", "The frame carries a VLAN tag. Remove the VLAN interface inside the pod.") \
	X(TTL, 196, "ttl-exceeded", "The TTL or hop limit is used up. Expected under traceroute, otherwise look for a routing loop.") \
	X(ARP, 220, "arp-not-for-gateway", "Only ARP requests for the gateway 169.254.1.1 are answered, and the pod asked for, or spoke of, another address. Compare the pod's routes with those the CNI plugin made.") \
	X(ND, 221, "nd-not-for-gateway", "The pod solicited or announced an address that is neither the gateway fe80::1 nor its own. Compare the pod's routes with those the CNI plugin made.") \
	X(MULTICAST, 222, "multicast", "Multicast and broadcast do not pass between pods and node. Use unicast.") \
	X(FORBIDDEN_ICMP4, 223, "forbidden-icmpv4", "ICMP redirect, source quench and router discovery may not pass. A pod has no business to send them; capture the sender with tcpdump.") \
	X(ICMP_UNRELATED, 224, "icmp-error-unrelated", "An ICMP error quotes a packet of no live connection of its receiver. It is forged, or the connection is over.") \
	X(NOT_ENDPOINT, 225, "destination-not-endpoint", "The node sent the pod a packet for an address that is not the pod's. Look for a stale route with `ip route get`.") \
	X(SELF, 226, "own-address", "The pod's packet to its own address left the pod. Look at the pod's local routing table.") \
	X(PREFIX_CLOSED, 227, "prefix-closed", "The other end's prefix found no room in the ipcache map or no identity number, so nothing may pass. Look at `weir status`; raise ipcache-entries.") \
	X(FORGED_POD, 228, "pod-address-forged", "The packet has the address of a pod of this node as its source, but that pod did not send it. Look for who forges it, or routes it in a circle, with tcpdump on the node's interfaces.") \
	X(PARTIAL_CHECKSUM, 229, "partial-checksum", "The pod asks the node to write a checksum over a header that policy judges. Nothing but an attack or a broken packet generator does; look at what runs in the pod.")

enum drop_reason {
#define X(name, number, ...) DROP_##name = number,
	DROP_REASONS(X)
#undef X
	DROP_EVENT_LOST = 255, /* not a drop: an event found no room in the ring; index into weir_metrics */
};
