/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The last step of a packet that may pass. */
#pragma once
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>
#include "parse.h"

/* To another pod of this node, straight into its namespace. Neither the node's
 * stack nor the other veth's egress hook sees the packet, so this is a router's
 * hop: MACs and TTL change. The mark is cleared, or it would leak into the pod. */
static __always_inline int deliver_local(struct __sk_buff *skb, const struct packet *p, const __u8 family,
					 const struct endpoint_info *to)
{
	void *data, *end;
	struct ethhdr *eth;

	if (unlikely(p->ttl <= 1))
		return -DROP_TTL;
	data = frame_start(skb);
	end = frame_end(skb);
	eth = data;
	if (family == FAMILY_V4) {
		struct iphdr *ip = data + ETH_HLEN;
		__u32 sum;

		if ((void *)(ip + 1) > end)
			return -DROP_INVALID_PACKET;
		/* RFC 1141: the TTL is the high byte of its word, the sum grows as it falls */
		sum = ip->check + bpf_htons(0x0100);
		ip->check = sum + (sum >= 0xffff);
		ip->ttl--;
	} else {
		struct ipv6hdr *ip = data + ETH_HLEN;

		if ((void *)(ip + 1) > end)
			return -DROP_INVALID_PACKET;
		ip->hop_limit--;
	}
	__builtin_memcpy(eth->h_dest, to->mac, ETH_ALEN);
	__builtin_memcpy(eth->h_source, to->node_mac, ETH_ALEN);
	skb->mark = 0;
	if (unlikely(skb->pkt_type != PACKET_HOST))
		bpf_skb_change_type(skb, PACKET_HOST);
	return bpf_redirect_peer(to->ifindex, 0);
}

/* To the node's stack, for itself or to be routed. */
static __always_inline int deliver_node(struct __sk_buff *skb)
{
	if (unlikely(skb->pkt_type != PACKET_HOST))
		bpf_skb_change_type(skb, PACKET_HOST);
	return TC_ACT_OK;
}
