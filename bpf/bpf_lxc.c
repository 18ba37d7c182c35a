// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/* The programs of a pod's veth, on its host side.
 *
 * Each hook has a tiny entry program, loaded once per endpoint with the
 * endpoint's constants, and a body, loaded once per shape. The entry hands the
 * constants over in skb->cb and jumps into the body.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>
#include <stddef.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "lib/config.h"
#include "lib/conntrack.h"
#include "lib/checksum.h"
#include "lib/deliver.h"
#include "lib/drop.h"
#include "lib/neighbour.h"
#include "lib/related.h"

/* For an entry whose body is not there. */
static __always_inline int missed_tail_call(struct __sk_buff *skb, __u8 hook)
{
	struct packet p = { .hook = hook, .direction = hook };

	p.endpoint = skb->cb[CB_ENDPOINT];
	if (hook == DIR_EGRESS)
		p.src_identity = skb->cb[CB_IDENTITY];
	else
		p.dst_identity = skb->cb[CB_IDENTITY];
	return drop(skb, &p, DROP_MISSED_TAIL_CALL, true);
}

/* Makes length bytes at offset of the frame linear, if it has them; the caller
 * checks. If not, no address matches, and the body finds the packet invalid
 * before it asks whose it is. */
static __always_inline void *reach(struct __sk_buff *skb, const __u32 offset, const __u32 length)
{
	if (unlikely(frame_start(skb) + offset + length > frame_end(skb)))
		bpf_skb_pull_data(skb, offset + length);
	return frame_start(skb) + offset;
}

/* Whether the address at an offset of the IP header is the endpoint's. */
static __always_inline bool is_own_address(struct __sk_buff *skb, __be16 protocol, const __u32 offset4,
					   const __u32 offset6)
{
	const __be32 *a;

	if (protocol == bpf_htons(ETH_P_IP)) {
		a = reach(skb, ETH_HLEN + offset4, 4);
		return (void *)(a + 1) <= frame_end(skb) && a[0] == weir_ipv4;
	}
	a = reach(skb, ETH_HLEN + offset6, 16);
	return (void *)(a + 4) <= frame_end(skb) && a[0] == weir_ipv6[0] && a[1] == weir_ipv6[1] &&
	       a[2] == weir_ipv6[2] && a[3] == weir_ipv6[3];
}

static __always_inline bool is_ip(__be16 protocol)
{
	return protocol == bpf_htons(ETH_P_IP) || protocol == bpf_htons(ETH_P_IPV6);
}

/* Ingress hook: all that the pod sends. */
SEC("tc")
int weir_from_container(struct __sk_buff *skb)
{
	void *data = frame_start(skb), *end = frame_end(skb);
	__be16 protocol = skb->protocol;
	struct ethhdr *eth = data;
	__u32 flags = 0;

	if ((void *)(eth + 1) > end || *(__u32 *)eth->h_source != MAC_HEAD(weir_mac) ||
	    *(__u16 *)(eth->h_source + 4) != MAC_TAIL(weir_mac))
		flags = HANDOVER_FOREIGN | HANDOVER_FOREIGN_MAC;
	if (likely(is_ip(protocol)) && !is_own_address(skb, protocol, offsetof(struct iphdr, saddr),
						       offsetof(struct ipv6hdr, saddr)))
		flags |= HANDOVER_FOREIGN;
	if (protocol != bpf_htons(ETH_P_IP)) { /* the gateway's MAC, for ARP and neighbour discovery */
		skb->cb[CB_MAC_HEAD] = MAC_HEAD(weir_node_mac);
		skb->cb[CB_MAC_TAIL] = MAC_TAIL(weir_node_mac);
	}
	skb->cb[CB_ENDPOINT] = weir_endpoint_id;
	skb->cb[CB_IDENTITY] = weir_identity;
	skb->cb[CB_FLAGS] = flags;
	bpf_tail_call_static(skb, &weir_calls, CALL_FROM_BODY);
	return missed_tail_call(skb, DIR_EGRESS);
}

/* Egress hook: all that the node sends to the pod. The device has no neighbour
 * discovery of its own, so the frame gets its MACs here. */
SEC("tc")
int weir_to_container(struct __sk_buff *skb)
{
	__be16 protocol = skb->protocol;
	void *data, *end;
	struct ethhdr *eth;
	__u32 flags = 0;

	if (likely(is_ip(protocol)) && !is_own_address(skb, protocol, offsetof(struct iphdr, daddr),
						       offsetof(struct ipv6hdr, daddr)))
		flags = HANDOVER_NOT_FOR_POD;
	data = frame_start(skb);
	end = frame_end(skb);
	eth = data;
	if ((void *)(eth + 1) <= end) {
		*(__u32 *)eth->h_dest = MAC_HEAD(weir_mac);
		*(__u16 *)(eth->h_dest + 4) = MAC_TAIL(weir_mac);
		*(__u32 *)eth->h_source = MAC_HEAD(weir_node_mac);
		*(__u16 *)(eth->h_source + 4) = MAC_TAIL(weir_node_mac);
	}
	skb->cb[CB_ENDPOINT] = weir_endpoint_id;
	skb->cb[CB_IDENTITY] = weir_identity;
	skb->cb[CB_FLAGS] = flags;
	bpf_tail_call_static(skb, &weir_calls, CALL_TO_BODY);
	return missed_tail_call(skb, DIR_INGRESS);
}

/* What both bodies start with. */
static __always_inline void open_packet(struct __sk_buff *skb, struct packet *p, __u8 hook)
{
	p->owner = skb->cb[CB_ENDPOINT];
	p->owner_identity = skb->cb[CB_IDENTITY];
	p->endpoint = p->owner;
	p->hook = hook;
	p->direction = hook;
}

/* What both bodies end with: every packet is counted once. */
static __always_inline int finish(struct __sk_buff *skb, struct packet *p, int ret)
{
	if (unlikely(ret < 0))
		return drop(skb, p, -ret, false);
	count(0, p->hook, p->length);
	return ret;
}

static __always_inline bool is_multicast(const __be32 *addr, const __u8 family)
{
	__u8 first = addr[0] & 0xff;

	return family == FAMILY_V4 ? first >= 224 : first == 0xff; /* with class E and broadcast */
}

static __always_inline int parse_ip(struct __sk_buff *skb, struct packet *p, const __u8 family)
{
	return family == FAMILY_V4 ? parse_ipv4(skb, p) : parse_ipv6(skb, p);
}

/* The ends of the packet that an ICMP error quotes: its receiver sent it. Who sent
 * the error need not be the other one. */
static __always_inline int turn_sides(const struct packet *p, const __u8 family, struct side *src, struct side *dst)
{
	struct side receiver = *dst;
	struct endpoint_info *other = lookup_endpoint(p->daddr, family);

	dst->word = 0;
	dst->endpoint = 0;
	dst->local = false;
	if (other && !read_side(dst, other->id))
		return -DROP_NO_CONFIG;
	*src = receiver;
	return 0;
}

/* Policy for everything. An ICMP error passes with the flow that it is about. */
static __always_inline int admit(struct __sk_buff *skb, struct packet *p, const __u8 family, struct side *src,
				 struct side *dst)
{
	int err;

	if (unlikely(is_error(p, family))) {
		err = family == FAMILY_V4 ? check_error4(skb, p) : check_error6(skb, p);
		if (err != ERROR_JUDGE)
			return err;
		err = turn_sides(p, family, src, dst);
		if (err)
			return err;
	}
	err = track(skb, p, family, src, dst);
	if (unlikely(p->quoted) && !err)
		p->hook = !p->hook;
	return err;
}

static __always_inline int from_ip(struct __sk_buff *skb, struct packet *p, const __u8 family, __u32 flags)
{
	struct endpoint_config *config;
	struct side src = {}, dst = {};
	struct endpoint_info *to;
	__u32 owner = p->owner;
	int err;

	err = parse_ip(skb, p, family);
	if (unlikely(err))
		return err;
	if (family == FAMILY_V6 && unlikely(is_link_icmp6(p)))
		return answer_nd(skb, p, flags);
	if (unlikely(flags & HANDOVER_FOREIGN))
		return -DROP_INVALID_SOURCE;
	if (unlikely(is_multicast(p->daddr, family)))
		return -DROP_MULTICAST;
	if (unlikely(same_address(p->saddr, p->daddr, family)))
		return -DROP_SELF;
	if (unlikely(p->fragment)) {
		err = match_fragment(p);
		if (err)
			return err;
	}
	if (family == FAMILY_V4 && unlikely(is_forbidden_icmp4(p)))
		return -DROP_FORBIDDEN_ICMP4;
	if (unlikely(writes_over_header(skb, p, family)))
		return -DROP_PARTIAL_CHECKSUM;

	config = bpf_map_lookup_elem(&weir_epconfig, &owner);
	if (!config)
		return -DROP_NO_CONFIG;
	src.word = *(volatile __u64 *)&config->policy;
	src.endpoint = owner;
	src.local = true;
	if (unlikely(!config->first_packet))
		config->first_packet = bpf_ktime_get_boot_ns();

	to = lookup_endpoint(p->daddr, family);
	if (to && !read_side(&dst, to->id))
		return -DROP_NO_CONFIG;
	err = admit(skb, p, family, &src, &dst);
	if (unlikely(err))
		return err;
	return to ? deliver_local(skb, p, family, to) : deliver_node(skb);
}

SEC("tc")
int weir_from_body(struct __sk_buff *skb)
{
	__be16 protocol = skb->protocol;
	__u32 flags = skb->cb[CB_FLAGS];
	struct packet p = {};
	int ret = -DROP_UNKNOWN_L3;

	open_packet(skb, &p, DIR_EGRESS);
	if (unlikely(skb->vlan_present || protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD)))
		ret = -DROP_VLAN;
#ifdef ENABLE_IPV4
	else if (protocol == bpf_htons(ETH_P_IP))
		ret = from_ip(skb, &p, FAMILY_V4, flags);
	else if (protocol == bpf_htons(ETH_P_ARP))
		ret = answer_arp(skb, flags);
#endif
#ifdef ENABLE_IPV6
	else if (protocol == bpf_htons(ETH_P_IPV6))
		ret = from_ip(skb, &p, FAMILY_V6, flags);
#endif
	return finish(skb, &p, ret);
}

/* Neighbour discovery of the node reaches the pod without policy; everything
 * else of its kind does not. A router's packet has lost its 255 (RFC 4861). */
static __always_inline int pass_nd(const struct packet *p)
{
	if (p->fragment || p->ttl != 255 ||
	    (p->icmp_type != ICMP6_NEIGHBOUR_SOLICITATION && p->icmp_type != ICMP6_NEIGHBOUR_ADVERTISEMENT))
		return -DROP_FORBIDDEN_ICMP6;
	return TC_ACT_OK;
}

/* Whether a packet on its way to the pod was made on this node. What was received,
 * forwarded or masqueraded carries its device; but the kernel does not hand that on
 * to each piece of a datagram that it cuts, while what a socket of the node sent
 * still has that. */
static __always_inline bool made_here(struct __sk_buff *skb, const struct packet *p)
{
	return !skb->ingress_ifindex && (likely(!p->fragment) || skb->sk);
}

static __always_inline int to_ip(struct __sk_buff *skb, struct packet *p, const __u8 family, __u32 flags)
{
	struct side src = {}, dst = {};
	struct endpoint_info *from;
	int err;

	err = parse_ip(skb, p, family);
	if (unlikely(err))
		return err;
	if (family == FAMILY_V6 && unlikely(is_link_icmp6(p)))
		return pass_nd(p);
	if (unlikely(is_multicast(p->daddr, family)))
		return -DROP_MULTICAST;
	if (unlikely(flags & HANDOVER_NOT_FOR_POD))
		return -DROP_NOT_ENDPOINT;
	if (unlikely(same_address(p->saddr, p->daddr, family)))
		return -DROP_SELF;

	if (!read_side(&dst, p->owner))
		return -DROP_NO_CONFIG;
	/* A pod of this node whose packet came through the node's stack. */
	from = lookup_endpoint(p->saddr, family);
	if (from) {
		if (unlikely(from->ifindex != skb->ingress_ifindex)) {
			p->origin = ORIGIN_FORGED;
			return -DROP_FORGED_POD;
		}
		if (!read_side(&src, from->id))
			return -DROP_NO_CONFIG;
	} else if (!made_here(skb, p)) {
		p->origin = ORIGIN_OUTSIDE;
	}
	if (unlikely(p->fragment)) {
		err = match_fragment(p);
		if (err)
			return err;
	}
	if (family == FAMILY_V4 && unlikely(is_forbidden_icmp4(p)))
		return -DROP_FORBIDDEN_ICMP4;
	return admit(skb, p, family, &src, &dst);
}

SEC("tc")
int weir_to_body(struct __sk_buff *skb)
{
	__be16 protocol = skb->protocol;
	__u32 flags = skb->cb[CB_FLAGS];
	struct packet p = {};
	int ret = -DROP_UNKNOWN_L3;

	open_packet(skb, &p, DIR_INGRESS);
	if (unlikely(skb->vlan_present || protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD)))
		ret = -DROP_VLAN;
#ifdef ENABLE_IPV4
	else if (protocol == bpf_htons(ETH_P_IP))
		ret = to_ip(skb, &p, FAMILY_V4, flags);
	else if (protocol == bpf_htons(ETH_P_ARP))
		ret = TC_ACT_OK;
#endif
#ifdef ENABLE_IPV6
	else if (protocol == bpf_htons(ETH_P_IPV6))
		ret = to_ip(skb, &p, FAMILY_V6, flags);
#endif
	return finish(skb, &p, ret);
}

char _license[] SEC("license") = "Dual BSD/GPL";
