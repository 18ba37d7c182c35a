/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Choices of the shape (defines in shape.h: ENABLE_IPV4, ENABLE_IPV6, DEBUG)
 * and every load-time constant.
 *
 * Constants exist only in the entry programs; the loader writes an endpoint's
 * values just before load. The defaults are harmless, should a template ever
 * reach an interface: no endpoint has the id, the identity is world, the
 * addresses are for documentation. No 32-bit word is zero, so that the
 * compiler never moves a constant to .bss, where it could not be written.
 */
#pragma once
#include <linux/types.h>
#include "shape.h"

#if !defined(ENABLE_IPV4) && !defined(ENABLE_IPV6)
#error "shape.h switches on neither IPv4 nor IPv6"
#endif

#define CONSTANT volatile const __attribute__((section(".rodata.config"), aligned(8), used))

/* bytes a.b.c.d of an address or MAC as they lie in memory */
#define WIRE32(a, b, c, d) ((__be32)((a) | (b) << 8 | (c) << 16 | (__u32)(d) << 24))

CONSTANT __u32 weir_endpoint_id = 65535;         /* 1 to 4095; index into weir_epconfig */
CONSTANT __u32 weir_identity = 2;                /* security identity of the pod; 2: world */
CONSTANT __u32 weir_ifindex = 0xffffffff;        /* host side of the veth */
CONSTANT __be32 weir_ipv4 = WIRE32(192, 0, 2, 3); /* the pod's IPv4 address; RFC 5737 */
CONSTANT __be32 weir_ipv6[4] = {                 /* the pod's IPv6 address; RFC 3849 */
	WIRE32(0x20, 0x01, 0x0d, 0xb8), WIRE32(0x11, 0x11, 0x22, 0x22),
	WIRE32(0x33, 0x33, 0x44, 0x44), WIRE32(0x55, 0x55, 0x66, 0x66),
};
CONSTANT __u8 weir_mac[6] = { 0x02, 0x00, 0x5e, 0x00, 0x53, 0x01 };      /* inside the pod */
CONSTANT __u8 weir_node_mac[6] = { 0x02, 0x00, 0x5e, 0x00, 0x53, 0x02 }; /* host side */

/* The two halves of a MAC constant; it is aligned to 8. */
#define MAC_HEAD(mac) (*(volatile const __u32 *)(mac))
#define MAC_TAIL(mac) (*(volatile const __u16 *)((mac) + 4))

/* What an entry program hands to its body in skb->cb. */
enum handover {
	CB_ENDPOINT = 0, /* endpoint id */
	CB_IDENTITY = 1, /* its identity */
	CB_FLAGS = 2,    /* HANDOVER_* */
	CB_MAC_HEAD = 3, /* node MAC, only with ARP and ICMPv6 from the pod */
	CB_MAC_TAIL = 4,
};
#define HANDOVER_FOREIGN     (1u << 0) /* from the pod: source address or MAC is not the endpoint's */
#define HANDOVER_FOREIGN_MAC (1u << 1) /* from the pod: source MAC is not the endpoint's */
#define HANDOVER_NOT_FOR_POD (1u << 2) /* to the pod: destination address is not the endpoint's */
