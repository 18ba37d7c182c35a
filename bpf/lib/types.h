/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Structs shared with Go. Each has a Go twin in pkg/maps/<map> (or pkg/monitor
 * for events) that a test compares with these by their BTF.
 * Addresses and ports are in network byte order where the type says __be,
 * everything else is in host byte order. No implicit padding.
 */
#pragma once
#include <linux/types.h>

enum direction { DIR_INGRESS = 0, DIR_EGRESS = 1 };

#define FAMILY_V4 1
#define FAMILY_V6 2

/* weir_lxc: HASH. A local endpoint (or, flagged, an address of the node) by its address. */
struct endpoint_key {
	union {
		__be32 ip4;
		__be32 ip6[4];
	};
	__u8 family;
	__u8 pad[3];
};

struct endpoint_info {
	__u32 ifindex;         /* host side of the veth */
	__u32 identity;        /* who */
	__u32 prefix_identity; /* where; 0 if no prefix selector covers the address */
	__u16 id;              /* endpoint id, index into weir_epconfig */
	__u8 pad0[2];
	__u8 mac[6];           /* inside the pod */
	__u8 pad1[2];
	__u8 node_mac[6];      /* host side */
	__u8 pad2[2];
};

/* weir_epconfig: ARRAY, BPF_F_MMAPABLE, by endpoint id. */
struct endpoint_config {
	__u64 policy;       /* low half: policy slot; high half: policy revision. Written in one aligned store. 0: nothing allowed */
	__u64 first_packet; /* bpf_ktime_get_boot_ns of the first packet from the pod; written by the program */
	__u32 flags; /* CONFIG_* */
	__u32 pad;
};
#define CONFIG_AUDIT (1u << 0) /* what a rule denies is let through and told of */

/* inner map of weir_policy: LPM_TRIE. prefixlen counts the bits after itself:
 * 40 any protocol, 48 any port, 48 + n for a port prefix of n bits. */
struct policy_key {
	__u32 prefixlen;
	__u32 identity; /* 0: any peer */
	__u8 direction; /* enum direction; above bit 0 the stage, see policy.h */
	__u8 protocol;
	__be16 port;
};

struct policy_entry {
	__u64 order;       /* precedence << 32 | ~rank: the bigger one decides */
	__u32 rule;
	__be16 proxy_port;
	__u8 deny;       /* also of a line that passes */
	__u8 pass;       /* not 0: the stage that decides instead */
	__u64 judged;    /* packets that this line decided or passed on; written by the program */
};

/* weir_ipcache: LPM_TRIE. prefixlen = 32 + bits of the address that count. */
struct ipcache_key {
	__u32 prefixlen;
	__u8 family;
	__u8 pad[3];
	union {
		__be32 ip4;
		__be32 ip6[4];
	};
};

struct ipcache_entry {
	__u32 identity;
	__u32 prefix_identity; /* 0 if none, or the same as identity for an outside address */
};

/* weir_ct4, weir_ct6: LRU_HASH. Both directions of a flow share one entry: the
 * smaller address (then port) is side 0, compared as on the wire. An ICMP echo
 * has its identifier as the requester's port and 0 as the responder's; other
 * ICMP messages have their type as both ports; protocols without ports have 0. */
struct ct4_key {
	__be32 addr[2];
	__be16 port[2];
	__u8 protocol;
	__u8 pad[3];
};

struct ct6_key {
	__be32 addr[2][4];
	__be16 port[2];
	__u8 protocol;
	__u8 pad[3];
};

struct ct_entry {
	__u64 packets;     /* both directions */
	__u64 bytes;
	__u32 expires;     /* seconds of CLOCK_MONOTONIC */
	__u32 flags;       /* CT_* */
	__u32 egress_revision;  /* policy revision of the initiator's endpoint; 0: not a local endpoint */
	__u32 ingress_revision; /* policy revision of the responder's endpoint; 0: not a local endpoint */
	__u32 egress_rule;
	__u32 ingress_rule;
};
#define CT_INITIATOR_1   (1u << 0) /* side 1 opened the flow (else side 0) */
#define CT_SEEN_REPLY    (1u << 1)
#define CT_CLOSING_INIT  (1u << 2) /* FIN or RST seen from the initiator */
#define CT_CLOSING_RESP  (1u << 3)
#define CT_ESTABLISHED   (1u << 4) /* a TCP segment other than SYN was seen */
#define CT_OUTSIDE       (1u << 5) /* the initiator is no local pod, and its packets came here by a device */

/* weir_frag: LRU_HASH. What a datagram's first fragment says of its transport
 * header. protocol is 0 for IPv6, whose fragments are matched without it. */
struct frag_key {
	__be32 saddr[4];
	__be32 daddr[4];
	__be32 id;
	__u8 protocol;
	__u8 family;
	__u8 pad[2];
};

struct frag_entry {
	__be16 sport; /* as in a conntrack key */
	__be16 dport;
	__u8 protocol;
	__u8 icmp_type;
	__u8 pad[2];
};

/* weir_metrics: PERCPU_ARRAY, index = reason << 1 | direction; reason 0 counts forwarded packets. */
struct metrics_entry {
	__u64 packets;
	__u64 bytes;
};

/* weir_events: RINGBUF. One fixed record. */
enum event_type { EVENT_DROP = 1, EVENT_VERDICT = 2, EVENT_AUDIT = 3 };

struct event {
	__u64 timestamp;   /* CLOCK_BOOTTIME, ns */
	__u8 type;         /* enum event_type */
	__u8 reason;       /* drop reason; 0 for an allow verdict; of an audit what it would be */
	__u8 direction;    /* enum direction */
	__u8 family;       /* FAMILY_* ; 0 if the packet was not IP */
	__u16 endpoint;    /* id of the endpoint whose policy or program decided */
	__u8 protocol;
	__u8 tcp_flags;
	__be16 sport;      /* ICMP: type << 8 | code in dport, identifier in sport */
	__be16 dport;
	__u32 length;      /* bytes of the packet from the network header on */
	__u32 src_identity;
	__u32 dst_identity;
	__u32 src_prefix_identity;
	__u32 dst_prefix_identity;
	__u32 rule;        /* number of the deciding rule; 0: none */
	__u32 revision;    /* policy revision that decided */
	__u32 ifindex;
	__u32 pad;
	__be32 saddr[4];   /* IPv4 in the first word */
	__be32 daddr[4];
};
