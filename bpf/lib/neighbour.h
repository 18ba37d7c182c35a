/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The gateway of a pod, 169.254.1.1 and fe80::1, exists only here: requests for
 * it are answered in place and sent back into the pod.
 */
#pragma once
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>
#include "config.h"
#include "parse.h"

/* RFC 826; the kernel's header needs a libc */
#define ARP_ETHERNET 1
#define ARP_REQUEST 1
#define ARP_REPLY 2

struct arp_frame {
	__u8 h_dest[6];
	__u8 h_source[6];
	__be16 h_proto;
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_length;
	__u8 protocol_length;
	__be16 operation;
	__u8 sender_mac[6];
	__u8 sender[4];
	__u8 target_mac[6];
	__u8 target[4];
} __attribute__((packed));

static __always_inline void put_mac(__u8 *to, const __u32 *mac)
{
	__builtin_memcpy(to, mac, 6);
}

/* Sends the packet at hand back to the pod that it came from. */
static __always_inline int send_back(struct __sk_buff *skb)
{
	if (skb->pkt_type != PACKET_HOST)
		bpf_skb_change_type(skb, PACKET_HOST);
	skb->mark = 0;
	return bpf_redirect_peer(skb->ifindex, 0);
}

static __always_inline bool is_arp_about_itself(const struct arp_frame *f)
{
	bool empty = !(f->sender[0] | f->sender[1] | f->sender[2] | f->sender[3]);
	bool gateway = f->target[0] == 169 && f->target[1] == 254 && f->target[2] == 1 && f->target[3] == 1;

	return (empty && f->operation == bpf_htons(ARP_REQUEST) && !gateway) ||
	       (f->sender[0] == f->target[0] && f->sender[1] == f->target[1] && f->sender[2] == f->target[2] &&
		f->sender[3] == f->target[3]);
}

/* A request with an empty sender is a probe whether the address is free, one for the
 * sender's own address tells of it. Neither is answered: with no answer the pod finds
 * its address free, which is its own affair. */
static __always_inline int answer_arp(struct __sk_buff *skb, __u32 flags)
{
	__u32 mac[2] = { skb->cb[CB_MAC_HEAD], skb->cb[CB_MAC_TAIL] };
	struct arp_frame f, a;

	if (flags & HANDOVER_FOREIGN_MAC)
		return -DROP_INVALID_SOURCE;
	if (bpf_skb_load_bytes(skb, 0, &f, sizeof(f)))
		return -DROP_INVALID_PACKET;
	if (f.hardware != bpf_htons(ARP_ETHERNET) || f.protocol != bpf_htons(ETH_P_IP) || f.hardware_length != 6 ||
	    f.protocol_length != 4)
		return -DROP_INVALID_PACKET;
	if (is_arp_about_itself(&f))
		return TC_ACT_SHOT;
	if (f.operation != bpf_htons(ARP_REQUEST) || f.target[0] != 169 || f.target[1] != 254 || f.target[2] != 1 ||
	    f.target[3] != 1)
		return -DROP_ARP;
	if (!(f.sender[0] | f.sender[1] | f.sender[2] | f.sender[3]))
		return -DROP_ARP;
	a = f;
	__builtin_memcpy(a.h_dest, f.h_source, 6);
	put_mac(a.h_source, mac);
	a.operation = bpf_htons(ARP_REPLY);
	put_mac(a.sender_mac, mac);
	__builtin_memcpy(a.sender, f.target, 4);
	__builtin_memcpy(a.target_mac, f.sender_mac, 6);
	__builtin_memcpy(a.target, f.sender, 4);
	if (bpf_skb_store_bytes(skb, 0, &a, sizeof(a), 0))
		return -DROP_INVALID_PACKET;
	return send_back(skb);
}

/* Neighbour discovery and its kin: types that live on one link only. */
static __always_inline bool is_link_icmp6(const struct packet *p)
{
	return p->protocol == IPPROTO_ICMPV6 &&
	       ((p->icmp_type >= ICMP6_MLD_QUERY && p->icmp_type <= ICMP6_REDIRECT) || p->icmp_type == ICMP6_MLD2_REPORT);
}

/* Neighbour advertisement (RFC 4861 4.4) behind its IPv6 header. Together with
 * the addresses in front of it, what its checksum covers. */
struct nd_message {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be32 flags;
	__be32 target[4];
	__u8 option_type;
	__u8 option_length; /* in units of 8 bytes */
	__u8 option_mac[6];
};

struct nd_frame {
	__u8 pad[2]; /* aligns the rest; not sent */
	__u8 h_dest[6];
	__u8 h_source[6];
	__be16 h_proto;
	__u8 version;
	__u8 flow[3];
	__be16 payload_length;
	__u8 next;
	__u8 hop_limit;
	__be32 saddr[4];
	__be32 daddr[4];
	struct nd_message message;
};

#define ND_ROUTER bpf_htonl(1u << 31)
#define ND_SOLICITED bpf_htonl(1u << 30)
#define ND_OVERRIDE bpf_htonl(1u << 29)
#define ND_TARGET_LINK_ADDRESS 2
#define ND_FRAME_LENGTH (sizeof(struct nd_frame) - 2)

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Whether a healthy pod sends the message without waiting for an answer: its search
 * for routers, its membership reports, the question whether an address of its own is
 * free, and the announcement of one. */
static __always_inline bool is_idle_nd(struct __sk_buff *skb, const struct packet *p)
{
	bool unspecified = !(p->saddr[0] | p->saddr[1] | p->saddr[2] | p->saddr[3]);
	__be32 target[4];

	switch (p->icmp_type) {
	case ICMP6_MLD_REPORT:
	case ICMP6_MLD_DONE:
	case ICMP6_MLD2_REPORT:
	case ICMP6_ROUTER_SOLICITATION:
		return true;
	case ICMP6_NEIGHBOUR_SOLICITATION:
		return unspecified;
	case ICMP6_NEIGHBOUR_ADVERTISEMENT:
		return !bpf_skb_load_bytes(skb, p->l4 + 8, target, sizeof(target)) && target[0] == p->saddr[0] &&
		       target[1] == p->saddr[1] && target[2] == p->saddr[2] && target[3] == p->saddr[3];
	}
	return false;
}

/* Answers a solicitation for fe80::1. What else a healthy pod sends ends here, without
 * being a drop. A solicitation with an unspecified source
 * asks whether the address is free (RFC 4862): all nodes are told that it is not. */
OUT_OF_LINE int answer_nd(struct __sk_buff *skb, const struct packet *p, __u32 flags)
{
	__u32 mac[2] = { skb->cb[CB_MAC_HEAD], skb->cb[CB_MAC_TAIL] };
	struct nd_frame f = {};
	__be32 target[4], pseudo[2];
	__u64 sum;

	if (!p)
		return -DROP_INVALID_PACKET;
	if (p->icmp_type == ICMP6_ROUTER_ADVERTISEMENT || p->icmp_type == ICMP6_REDIRECT)
		return -DROP_FORBIDDEN_ICMP6;
	if (p->fragment)
		return -DROP_ND;
	if (p->icmp_type != ICMP6_NEIGHBOUR_SOLICITATION)
		return is_idle_nd(skb, p) ? TC_ACT_SHOT : -DROP_ND;
	if (flags & HANDOVER_FOREIGN_MAC)
		return -DROP_INVALID_SOURCE;
	/* RFC 4861 7.1.1; a message behind extension headers is not worth an answer */
	if (p->ttl != 255 || p->icmp_code || p->l4 != ETH_HLEN + sizeof(struct ipv6hdr) ||
	    bpf_skb_load_bytes(skb, p->l4 + 8, target, sizeof(target)))
		return -DROP_INVALID_PACKET;
	if (target[0] != bpf_htonl(0xfe800000) || target[1] || target[2] || target[3] != bpf_htonl(1))
		return is_idle_nd(skb, p) ? TC_ACT_SHOT : -DROP_ND;

	bpf_skb_load_bytes(skb, ETH_ALEN, f.h_dest, ETH_ALEN);
	put_mac(f.h_source, mac);
	f.h_proto = bpf_htons(ETH_P_IPV6);
	f.version = 0x60;
	f.payload_length = bpf_htons(sizeof(f.message));
	f.next = IPPROTO_ICMPV6;
	f.hop_limit = 255;
	for (int i = 0; i < 4; i++) {
		f.saddr[i] = target[i];
		f.daddr[i] = p->saddr[i];
		f.message.target[i] = target[i];
	}
	f.message.type = ICMP6_NEIGHBOUR_ADVERTISEMENT;
	f.message.flags = ND_ROUTER | ND_SOLICITED | ND_OVERRIDE;
	if (!(p->saddr[0] | p->saddr[1] | p->saddr[2] | p->saddr[3])) {
		f.daddr[0] = bpf_htonl(0xff020000);
		f.daddr[3] = bpf_htonl(1);
		f.message.flags = ND_ROUTER | ND_OVERRIDE;
	}
	f.message.option_type = ND_TARGET_LINK_ADDRESS;
	f.message.option_length = 1;
	put_mac(f.message.option_mac, mac);

	pseudo[0] = bpf_htonl(sizeof(f.message));
	pseudo[1] = bpf_htonl(IPPROTO_ICMPV6);
	sum = bpf_csum_diff(NULL, 0, pseudo, sizeof(pseudo), 0);
	sum = bpf_csum_diff(NULL, 0, f.saddr, sizeof(f.saddr) + sizeof(f.daddr) + sizeof(f.message), sum);
	f.message.checksum = fold(sum);

	if (bpf_skb_change_tail(skb, ND_FRAME_LENGTH, 0) ||
	    bpf_skb_store_bytes(skb, 0, f.h_dest, ND_FRAME_LENGTH, 0))
		return -DROP_INVALID_PACKET;
	return send_back(skb);
}
