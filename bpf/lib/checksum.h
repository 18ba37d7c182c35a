/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Partial checksums. A pod may leave the sum of a packet to whoever sends it on
 * (a packet socket with a vnet header, as the kernel itself does), and says at
 * which two bytes it goes. Those must not be bytes that policy reads.
 */
#pragma once
#include "parse.h"
#include "related.h"
#include <bpf/bpf_core_read.h>

/* The fields of the kernel's sk_buff that no program sees in __sk_buff. */
struct sk_buff___partial {
	__u8 ip_summed : 2;
	__u16 csum_start; /* from head on, as mac_header */
	__u16 csum_offset;
	__u16 mac_header;
} __attribute__((preserve_access_index));

#define CHECKSUM_PARTIAL 3

/* Since Linux 6.2. A kernel without it has no such check. */
extern void *bpf_cast_to_kern_ctx(void *skb) __ksym __weak;

static __always_inline bool is_partial(const struct sk_buff___partial *k)
{
	return BPF_CORE_READ_BITFIELD(k, ip_summed) == CHECKSUM_PARTIAL;
}

/* Offset of a protocol's own checksum in its header, 0: it has none here. */
static __always_inline __u32 checksum_field(const __u8 family, __u8 protocol)
{
	if (protocol == IPPROTO_TCP)
		return 16;
	if (protocol == IPPROTO_UDP)
		return 6;
	if (protocol == IPPROTO_SCTP)
		return 8;
	return is_icmp(family, protocol) ? 2 : 0;
}

/* Whether two bytes at an offset of the frame lie in what was parsed and are no
 * checksum. A datagram's pieces have no checksum to fill in. Behind the header that
 * was parsed a tunnel may have whatever it likes; of an ICMP error all is judged. */
static __always_inline bool in_judged(const struct packet *p, const __u8 family, __u32 at)
{
	__u32 field = checksum_field(family, p->protocol), judged = p->l4;

	if (p->fragment)
		return true;
	if (field && at == p->l4 + field)
		return false;
	if (is_error(p, family))
		return true;
	if (p->protocol == IPPROTO_TCP)
		judged += TCP_HEADER;
	else if (p->protocol == IPPROTO_SCTP)
		judged += SCTP_HEADER;
	else if (field)
		judged += OTHER_HEADER;
	else if (!judged)
		return true;
	return at < judged;
}

static __always_inline bool writes_over_header(struct __sk_buff *skb, const struct packet *p, const __u8 family)
{
	const struct sk_buff___partial *k;
	__u32 at;

	if (!bpf_cast_to_kern_ctx)
		return false;
	k = bpf_cast_to_kern_ctx(skb);
	if (!is_partial(k))
		return false;
	at = (__u32)k->csum_start + k->csum_offset - k->mac_header;
	if (likely(!p->fragment && p->protocol == IPPROTO_TCP && at == p->l4 + 16))
		return false;
	return in_judged(p, family, at);
}
