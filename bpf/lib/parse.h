/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Reads a packet's headers once, into struct packet. Functions return 0 or a
 * negative drop reason.
 */
#pragma once
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "types.h"
#include "drop_reasons.h"
#include "maps.h"
#include "protocols.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* A function off the hot path. Not static, so that the verifier reads it once
 * instead of once a call and state; it must check its pointers itself. */
#define OUT_OF_LINE __attribute__((noinline))

/* The linear part of the frame. Read by hand: clang takes the fields for 32-bit
 * numbers and may move them in half registers, after which the verifier no
 * longer sees a pointer. */
static __always_inline void *frame_start(struct __sk_buff *skb)
{
	void *p;

	asm volatile("%0 = *(u32 *)(%1 + %2)" : "=r"(p) : "r"(skb), "i"(offsetof(struct __sk_buff, data)));
	return p;
}

static __always_inline void *frame_end(struct __sk_buff *skb)
{
	void *p;

	asm volatile("%0 = *(u32 *)(%1 + %2)" : "=r"(p) : "r"(skb), "i"(offsetof(struct __sk_buff, data_end)));
	return p;
}

enum fragment { WHOLE = 0, FRAGMENT_FIRST = 1, FRAGMENT_LATER = 2 };

/* The packet at hand, and what is known of it so far. Kept in one struct since
 * events report all of it. */
struct packet {
	__be32 saddr[4]; /* IPv4 in the first word, the others 0 */
	__be32 daddr[4];
	__u32 length; /* from the network header on */
	__u32 l4;     /* offset of the transport header in the frame */
	__be32 frag_id;
	__be16 sport; /* as in a conntrack key */
	__be16 dport;
	__be16 icmp_id;
	__u8 icmp_type;
	__u8 icmp_code;
	__u8 family; /* 0 until the addresses are read */
	__u8 protocol;
	__u8 tcp_flags;
	__u8 ttl;
	__u8 fragment; /* enum fragment */

	__u8 hook;    /* enum direction, seen from the endpoint: who sent the packet here */
	__u16 owner;  /* endpoint whose program runs */
	__u32 owner_identity;

	__u8 identified; /* the four identities are filled in */
	__u8 reply;      /* the packet goes from the responder to the initiator */
	__u32 src_identity;
	__u32 dst_identity;
	__u32 src_prefix_identity;
	__u32 dst_prefix_identity;
	__u8 origin; /* enum origin, of the end that is not the owner */
	__u8 quoted; /* not the packet at hand but the one that it quotes, an ICMP error */

	__u8 direction; /* of the decision */
	__u16 endpoint; /* that decided */
	__u32 rule;
	__u32 revision;
};

/* What a packet's way says of the end whose address it is. */
enum origin {
	ORIGIN_HERE = 0,    /* nothing: the address says who it is */
	ORIGIN_OUTSIDE = 1, /* not made on this node, whose address anybody may write, or get by masquerading */
	ORIGIN_FORGED = 2,  /* nor by the pod whose address it is */
};

static __always_inline __u8 echo_request(__u8 family)
{
	return family == FAMILY_V4 ? ICMP4_ECHO_REQUEST : ICMP6_ECHO_REQUEST;
}

static __always_inline __u8 echo_reply(__u8 family)
{
	return family == FAMILY_V4 ? ICMP4_ECHO_REPLY : ICMP6_ECHO_REPLY;
}

static __always_inline bool is_icmp(__u8 family, __u8 protocol)
{
	return protocol == (family == FAMILY_V4 ? IPPROTO_ICMP : IPPROTO_ICMPV6);
}

/* The ports of an ICMP message in a conntrack key. */
static __always_inline void icmp_ports(__u8 family, __u8 type, __be16 id, __be16 *sport, __be16 *dport)
{
	if (type == echo_request(family)) {
		*sport = id;
		*dport = 0;
	} else if (type == echo_reply(family)) {
		*sport = 0;
		*dport = id;
	} else {
		*sport = *dport = bpf_htons(type);
	}
}

/* Reads ports, flags, ICMP type at offset l4 of the frame. */
static __always_inline int parse_transport(struct __sk_buff *skb, struct packet *p, const __u8 family, __u32 l4)
{
	void *data = frame_start(skb), *end = frame_end(skb);
	__u32 have = p->length + ETH_HLEN;
	__u8 protocol = p->protocol;
	__be32 copy[5];

	p->l4 = l4;
	if (protocol == IPPROTO_TCP) {
		if (have < l4 + TCP_HEADER)
			return -DROP_INVALID_PACKET;
		if (likely(data + l4 + TCP_HEADER <= end)) {
			p->sport = *(__be16 *)(data + l4);
			p->dport = *(__be16 *)(data + l4 + 2);
			p->tcp_flags = *(__u8 *)(data + l4 + 13);
			return 0;
		}
		if (bpf_skb_load_bytes(skb, l4, copy, TCP_HEADER))
			return -DROP_INVALID_PACKET;
		p->sport = ((__be16 *)copy)[0];
		p->dport = ((__be16 *)copy)[1];
		p->tcp_flags = ((__u8 *)copy)[13];
		return 0;
	}
	if (protocol != IPPROTO_UDP && protocol != IPPROTO_SCTP && !is_icmp(family, protocol))
		return 0;
	if (have < l4 + (protocol == IPPROTO_SCTP ? SCTP_HEADER : OTHER_HEADER))
		return -DROP_INVALID_PACKET;
	if (likely(data + l4 + OTHER_HEADER <= end)) {
		copy[0] = *(__be32 *)(data + l4);
		copy[1] = *(__be32 *)(data + l4 + 4);
	} else if (bpf_skb_load_bytes(skb, l4, copy, OTHER_HEADER)) {
		return -DROP_INVALID_PACKET;
	}
	if (is_icmp(family, protocol)) {
		p->icmp_type = copy[0] & 0xff; /* the first byte on the wire */
		p->icmp_code = (copy[0] >> 8) & 0xff;
		p->icmp_id = copy[1] & 0xffff;
		icmp_ports(family, p->icmp_type, p->icmp_id, &p->sport, &p->dport);
	} else {
		p->sport = copy[0] & 0xffff;
		p->dport = copy[0] >> 16;
	}
	return 0;
}

/* Loose and strict source routes would take the packet elsewhere than to the
 * address that is judged (RFC 7126). Other options are harmless. */
OUT_OF_LINE int check_options4(struct __sk_buff *skb, __u32 length)
{
	__u8 option[2] = {};
	__u32 off = 0;

	for (int i = 0; i < 40; i++) {
		if (off >= length)
			return 0;
		if (bpf_skb_load_bytes(skb, ETH_HLEN + sizeof(struct iphdr) + (off & 63), option, 2))
			return -DROP_INVALID_PACKET;
		if (option[0] == IPOPT_END)
			return 0;
		if (option[0] == IPOPT_NOOP) {
			off++;
			continue;
		}
		if (option[0] == IPOPT_LSRR || option[0] == IPOPT_SSRR || option[1] < 2)
			return -DROP_INVALID_PACKET;
		off += option[1];
	}
	return 0;
}

static __always_inline int parse_ipv4(struct __sk_buff *skb, struct packet *p)
{
	void *data = frame_start(skb), *end = frame_end(skb);
	__u32 frame = skb->len - ETH_HLEN, header, offset;
	struct iphdr *ip = data + ETH_HLEN;
	__u16 frag;

	if (unlikely((void *)(ip + 1) > end)) {
		if (skb->len < ETH_HLEN + sizeof(*ip) || bpf_skb_pull_data(skb, ETH_HLEN + sizeof(*ip)))
			return -DROP_INVALID_PACKET;
		data = frame_start(skb);
		end = frame_end(skb);
		ip = data + ETH_HLEN;
		if ((void *)(ip + 1) > end)
			return -DROP_INVALID_PACKET;
	}
	p->saddr[0] = ip->saddr;
	p->daddr[0] = ip->daddr;
	p->protocol = ip->protocol;
	p->ttl = ip->ttl;
	p->family = FAMILY_V4;
	p->length = bpf_ntohs(ip->tot_len);
	if (unlikely(!p->length && skb->gso_size)) /* a super-packet beyond 64 KiB */
		p->length = frame;
	header = (*(__u8 *)ip & 0xf) << 2;
	if ((*(__u8 *)ip >> 4) != 4 || header < sizeof(*ip) || p->length < header || p->length > frame)
		return -DROP_INVALID_PACKET;
	frag = bpf_ntohs(ip->frag_off) & 0x3fff;
	if (unlikely(frag)) {
		offset = (frag & 0x1fff) << 3;
		p->frag_id = ip->id;
		p->fragment = offset ? FRAGMENT_LATER : FRAGMENT_FIRST;
		/* A later fragment must not lie over the TCP header (RFC 3128). */
		if (offset && p->protocol == IPPROTO_TCP && offset < TCP_HEADER)
			return -DROP_INVALID_PACKET;
	}
	if (unlikely(header > sizeof(*ip))) {
		int err = check_options4(skb, header - sizeof(*ip));

		if (err)
			return err;
	}
	if (p->fragment == FRAGMENT_LATER)
		return 0;
	return parse_transport(skb, p, FAMILY_V4, ETH_HLEN + header);
}

#define MAX_EXTENSIONS 8
#define MAX_L4_OFFSET 0x3fff

struct extensions {
	__u32 offset;   /* in: of the first header behind the IPv6 header; out: of the transport header */
	__be32 frag_id;
	__u8 next;      /* in and out: type of the header at offset */
	__u8 fragment;
};

static __always_inline bool is_extension(__u8 next)
{
	return next == IPPROTO_HOPOPTS || next == IPPROTO_ROUTING || next == IPPROTO_FRAGMENT ||
	       next == IPPROTO_DSTOPTS || next == IPPROTO_AH;
}

/* Walks IPv6 extension headers up to the transport header, or up to the
 * fragment header of a later fragment. */
OUT_OF_LINE int skip_extensions(struct __sk_buff *skb, struct extensions *x)
{
	__u8 h[8] = {};
	__u16 frag;

	if (!x)
		return -DROP_INVALID_EXTHDR;

	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		__u32 offset = x->offset;

		if (!is_extension(x->next))
			return 0;
		if (offset > MAX_L4_OFFSET || bpf_skb_load_bytes(skb, offset, h, sizeof(h)))
			return -DROP_INVALID_EXTHDR;
		switch (x->next) {
		case IPPROTO_HOPOPTS:
			if (i) /* only directly behind the IPv6 header (RFC 8200) */
				return -DROP_INVALID_EXTHDR;
			x->offset = offset + ((h[1] + 1) << 3);
			break;
		case IPPROTO_ROUTING:
			/* Type 0 is abolished (RFC 5095); with segments left the packet would
			 * go on to another address than the one that is judged. */
			if (h[2] == 0 || h[3] != 0)
				return -DROP_INVALID_EXTHDR;
			x->offset = offset + ((h[1] + 1) << 3);
			break;
		case IPPROTO_DSTOPTS:
			x->offset = offset + ((h[1] + 1) << 3);
			break;
		case IPPROTO_AH:
			x->offset = offset + ((h[1] + 2) << 2);
			break;
		case IPPROTO_FRAGMENT:
			if (x->fragment) /* no fragment of a fragment */
				return -DROP_INVALID_EXTHDR;
			frag = h[2] << 8 | h[3];
			__builtin_memcpy(&x->frag_id, h + 4, 4);
			if (frag & 0xfff8) {
				x->fragment = FRAGMENT_LATER;
				return 0;
			}
			if (frag & 1)
				x->fragment = FRAGMENT_FIRST;
			x->offset = offset + 8;
			break;
		}
		x->next = h[0];
	}
	return is_extension(x->next) ? -DROP_INVALID_EXTHDR : 0;
}

static __always_inline int parse_ipv6(struct __sk_buff *skb, struct packet *p)
{
	void *data = frame_start(skb), *end = frame_end(skb);
	__u32 frame = skb->len - ETH_HLEN, l4 = ETH_HLEN + sizeof(struct ipv6hdr);
	struct ipv6hdr *ip = data + ETH_HLEN;

	if (unlikely((void *)(ip + 1) > end)) {
		if (skb->len < ETH_HLEN + sizeof(*ip) || bpf_skb_pull_data(skb, ETH_HLEN + sizeof(*ip)))
			return -DROP_INVALID_PACKET;
		data = frame_start(skb);
		end = frame_end(skb);
		ip = data + ETH_HLEN;
		if ((void *)(ip + 1) > end)
			return -DROP_INVALID_PACKET;
	}
	for (int i = 0; i < 4; i++) {
		p->saddr[i] = ip->saddr.in6_u.u6_addr32[i];
		p->daddr[i] = ip->daddr.in6_u.u6_addr32[i];
	}
	p->protocol = ip->nexthdr;
	p->ttl = ip->hop_limit;
	p->family = FAMILY_V6;
	p->length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	if (unlikely(!ip->payload_len && skb->gso_size)) /* a super-packet beyond 64 KiB */
		p->length = frame;
	if ((*(__u8 *)ip >> 4) != 6 || p->length > frame)
		return -DROP_INVALID_PACKET;
	if (unlikely(is_extension(p->protocol))) {
		struct extensions x = { .offset = l4, .next = p->protocol };
		int err = skip_extensions(skb, &x);

		if (err)
			return err;
		p->protocol = x.next;
		p->fragment = x.fragment;
		p->frag_id = x.frag_id;
		if (p->fragment == FRAGMENT_LATER)
			return 0;
		l4 = x.offset;
		if (l4 > MAX_L4_OFFSET)
			return -DROP_INVALID_EXTHDR;
	}
	return parse_transport(skb, p, FAMILY_V6, l4);
}

/* Gives a later fragment the ports of the first one. Called when the packet's
 * source is known to be genuine, so that nobody writes into others' datagrams. */
OUT_OF_LINE int match_fragment(struct packet *p)
{
	struct frag_entry entry = {}, *known;
	struct frag_key key = {};

	if (!p)
		return -DROP_INVALID_PACKET;
	key.id = p->frag_id;
	key.family = p->family;
	for (int i = 0; i < 4; i++) {
		key.saddr[i] = p->saddr[i];
		key.daddr[i] = p->daddr[i];
	}
	if (p->family == FAMILY_V4)
		key.protocol = p->protocol;
	if (p->fragment == FRAGMENT_FIRST) {
		entry.sport = p->sport;
		entry.dport = p->dport;
		entry.protocol = p->protocol;
		entry.icmp_type = p->icmp_type;
		bpf_map_update_elem(&weir_frag, &key, &entry, BPF_ANY); /* on failure the later ones are dropped */
		return 0;
	}
	known = bpf_map_lookup_elem(&weir_frag, &key);
	if (!known)
		return -DROP_FRAG_NOT_FOUND;
	p->sport = known->sport;
	p->dport = known->dport;
	p->protocol = known->protocol;
	p->icmp_type = known->icmp_type;
	return 0;
}
