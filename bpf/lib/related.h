/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* ICMP errors. They pass, from whatever router, if the packet that they quote is
 * one of a live flow and was sent by the error's receiver. The flow has to be one
 * that policy allows as it is now.
 */
#pragma once
#include "conntrack.h"

static __always_inline bool is_error(const struct packet *p, const __u8 family)
{
	if (!is_icmp(family, p->protocol))
		return false;
	if (family == FAMILY_V4)
		return p->icmp_type == ICMP4_UNREACHABLE || p->icmp_type == ICMP4_TIME_EXCEEDED ||
		       p->icmp_type == ICMP4_PARAMETER_PROBLEM;
	return p->icmp_type >= 1 && p->icmp_type <= ICMP6_LAST_ERROR;
}

/* Redirects and their like change how a host routes; they never pass. */
static __always_inline bool is_forbidden_icmp4(const struct packet *p)
{
	return p->protocol == IPPROTO_ICMP &&
	       (p->icmp_type == ICMP4_SOURCE_QUENCH || p->icmp_type == ICMP4_REDIRECT ||
		p->icmp_type == ICMP4_ROUTER_ADVERTISEMENT || p->icmp_type == ICMP4_ROUTER_SOLICITATION);
}

struct quote {
	__be32 addr[2][4]; /* source, destination */
	__u32 l4;
	__be16 sport; /* as in a conntrack key */
	__be16 dport;
	__u8 protocol;
	__u8 icmp_type;
};

/* Reads the quoted network header at offset off. */
static __always_inline int read_quote(struct __sk_buff *skb, __u32 off, const __u8 family, struct quote *q)
{
	struct extensions x = {};
	__be16 frag;
	__u8 h[2];

	if (off > MAX_L4_OFFSET || bpf_skb_load_bytes(skb, off, h, 1))
		return -DROP_ICMP_UNRELATED;
	if (family == FAMILY_V4) {
		if ((h[0] >> 4) != 4 || (h[0] & 0xf) < 5)
			return -DROP_ICMP_UNRELATED;
		if (bpf_skb_load_bytes(skb, off + offsetof(struct iphdr, frag_off), &frag, 2) ||
		    (frag & bpf_htons(0x1fff)) ||
		    bpf_skb_load_bytes(skb, off + offsetof(struct iphdr, protocol), &q->protocol, 1) ||
		    bpf_skb_load_bytes(skb, off + offsetof(struct iphdr, saddr), q->addr[0], 4) ||
		    bpf_skb_load_bytes(skb, off + offsetof(struct iphdr, daddr), q->addr[1], 4))
			return -DROP_ICMP_UNRELATED;
		q->l4 = off + ((h[0] & 0xf) << 2);
		return 0;
	}
	if ((h[0] >> 4) != 6 || bpf_skb_load_bytes(skb, off + offsetof(struct ipv6hdr, nexthdr), &x.next, 1) ||
	    bpf_skb_load_bytes(skb, off + offsetof(struct ipv6hdr, saddr), q->addr, sizeof(q->addr)))
		return -DROP_ICMP_UNRELATED;
	x.offset = off + sizeof(struct ipv6hdr);
	if (skip_extensions(skb, &x) || x.fragment == FRAGMENT_LATER || x.offset > MAX_L4_OFFSET)
		return -DROP_ICMP_UNRELATED;
	q->protocol = x.next;
	q->l4 = x.offset;
	return 0;
}

/* Reads the quoted ports; the eight bytes that RFC 792 demands are enough. */
static __always_inline int read_quoted_ports(struct __sk_buff *skb, const __u8 family, struct quote *q)
{
	__be32 word[2];

	if (q->protocol != IPPROTO_TCP && q->protocol != IPPROTO_UDP && q->protocol != IPPROTO_SCTP &&
	    !is_icmp(family, q->protocol))
		return 0;
	if (bpf_skb_load_bytes(skb, q->l4, word, sizeof(word)))
		return -DROP_ICMP_UNRELATED;
	q->sport = word[0] & 0xffff;
	q->dport = word[0] >> 16;
	if (is_icmp(family, q->protocol)) {
		q->icmp_type = word[0] & 0xff;
		icmp_ports(family, q->icmp_type, word[1] & 0xffff, &q->sport, &q->dport);
	}
	return 0;
}

static __always_inline bool same_address(const __be32 *a, const __be32 *b, const __u8 family)
{
	if (family == FAMILY_V4)
		return a[0] == b[0];
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3];
}

/* The end of the quoted flow at an address. Returns false if a local pod has it
 * that has no configuration. */
static __always_inline bool quoted_side(struct side *s, const struct packet *p, const __be32 *addr, const __u8 family,
					bool owner)
{
	struct endpoint_info *info;

	if (owner)
		return read_side(s, p->owner);
	info = lookup_endpoint(addr, family);
	return !info || read_side(s, info->id);
}

/* Makes p the packet that the error quotes: the flow is what is judged, and told. */
static __always_inline void become_quoted(struct packet *p, const struct quote *q, const __u8 family, __u8 origin)
{
	for (int i = 0; i < 4; i++) {
		p->saddr[i] = q->addr[0][i];
		p->daddr[i] = q->addr[1][i];
	}
	p->sport = q->sport;
	p->dport = q->dport;
	p->protocol = q->protocol;
	p->icmp_type = q->icmp_type;
	p->icmp_code = 0;
	p->icmp_id = is_icmp(family, q->protocol) ? q->sport | q->dport : 0;
	p->origin = origin;
	p->hook = !p->hook; /* it went the other way */
	p->quoted = 1;
}

#define ERROR_JUDGE 1

/* Returns 0 if the error may pass, else a negative drop reason; or ERROR_JUDGE if
 * the policy of the flow moved on, so that the error passes if the flow's next
 * packet would, which p is then. A pod is no router: it may report only packets that
 * were sent to itself. */
static __always_inline int check_error(struct __sk_buff *skb, struct packet *p, const __u8 family)
{
	struct side from = {}, to = {};
	struct quote q = {};
	struct ct_entry *e;
	union ct_key key;
	bool side, reply;

	if (p->fragment || read_quote(skb, p->l4 + OTHER_HEADER, family, &q) || read_quoted_ports(skb, family, &q))
		return -DROP_ICMP_UNRELATED;
	if (!same_address(q.addr[0], p->daddr, family))
		return -DROP_ICMP_UNRELATED;
	if (p->hook == DIR_EGRESS && !same_address(q.addr[1], p->saddr, family))
		return -DROP_ICMP_UNRELATED;
	if (!quoted_side(&from, p, q.addr[0], family, p->hook == DIR_INGRESS) ||
	    !quoted_side(&to, p, q.addr[1], family, p->hook == DIR_EGRESS))
		return -DROP_NO_CONFIG;
	side = make_key(&key, family, q.addr[0], q.addr[1], q.sport, q.dport, q.protocol);
	e = find_live(&key, family, now_seconds());
	if (!e || is_denied(e))
		return -DROP_ICMP_UNRELATED;
	reply = side != !!(e->flags & CT_INITIATOR_1);
	if (is_icmp(family, q.protocol) && reply != (q.icmp_type == echo_reply(family)))
		return -DROP_ICMP_UNRELATED;
	if (likely(e->egress_revision == current_revision(reply ? &to : &from) &&
		   e->ingress_revision == current_revision(reply ? &from : &to)))
		return 0;
	become_quoted(p, &q, family, e->flags & CT_OUTSIDE ? ORIGIN_OUTSIDE : ORIGIN_HERE);
	return ERROR_JUDGE;
}

/* Out of line, one for each family: rare, and large. */
OUT_OF_LINE int check_error4(struct __sk_buff *skb, struct packet *p)
{
	return !p ? -DROP_ICMP_UNRELATED : check_error(skb, p, FAMILY_V4);
}

OUT_OF_LINE int check_error6(struct __sk_buff *skb, struct packet *p)
{
	return !p ? -DROP_ICMP_UNRELATED : check_error(skb, p, FAMILY_V6);
}
