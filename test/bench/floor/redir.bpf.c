/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What a veth data plane costs at best; attached by TCX to the ingress of the
 * host side of the source pod's veth.
 * min_peer: write the destination MAC and redirect to a constant interface.
 * full_peer: the least that an enforcing program can do: endpoint hash, ipcache
 * LPM, LRU conntrack, policy hash on a miss, MACs, TTL, redirect_peer.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

volatile const __u32 target_ifindex = 1;
volatile const __u8 dst_mac[6] = {2, 0, 0, 0, 0, 2};
volatile const __u8 src_mac[6] = {2, 0, 0, 0, 0, 1};
volatile const __u32 src_identity = 1001;

static __always_inline int setmac(struct __sk_buff *skb)
{
	void *d = (void *)(long)skb->data, *e = (void *)(long)skb->data_end;
	struct ethhdr *h = d;
	if ((void *)(h + 1) > e)
		return -1;
	if (h->h_proto != bpf_htons(ETH_P_IP))
		return -1;
	for (int i = 0; i < 6; i++) {
		h->h_dest[i] = dst_mac[i];
		h->h_source[i] = src_mac[i];
	}
	return 0;
}
SEC("tcx/ingress") int min_peer(struct __sk_buff *skb)
{
	if (setmac(skb))
		return TC_ACT_OK;
	return bpf_redirect_peer(target_ifindex, 0);
}
struct ep {
	__u32 ifindex, identity;
	__u8 mac[6], smac[6];
	__u32 pad;
};
struct ct_key {
	__u32 sa, da;
	__u16 sp, dp;
	__u8 proto, pad[3];
};
struct ct_val {
	__u64 packets, bytes;
	__u32 lifetime;
	__u32 flags;
};
struct pol_key {
	__u32 identity;
	__u16 dport;
	__u8 proto, dir;
};
struct lpm_key {
	__u32 plen;
	__u32 addr;
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct ep);
} eps SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 512000);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct lpm_key);
	__type(value, __u32);
} ipcache SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 131072);
	__type(key, struct ct_key);
	__type(value, struct ct_val);
} ct SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct pol_key);
	__type(value, __u64);
} policy SEC(".maps");

SEC("tcx/ingress") int full_peer(struct __sk_buff *skb)
{
	void *d = (void *)(long)skb->data, *e = (void *)(long)skb->data_end;
	struct ethhdr *h = d;
	struct iphdr *ip = d + sizeof(*h);
	if ((void *)(ip + 1) > e) {
		if (h + 1 > (struct ethhdr *)e)
			return TC_ACT_OK;
		if (bpf_skb_pull_data(skb, 54))
			return TC_ACT_OK;
		d = (void *)(long)skb->data;
		e = (void *)(long)skb->data_end;
		h = d;
		ip = d + sizeof(*h);
		if ((void *)(ip + 1) > e)
			return TC_ACT_OK;
	}
	if (h->h_proto != bpf_htons(ETH_P_IP))
		return TC_ACT_OK;
	if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP)
		return TC_ACT_OK;
	__u16 *ports = (void *)(ip + 1);
	if ((void *)(ports + 2) > e)
		return TC_ACT_OK;
	__u32 da = ip->daddr, sa = ip->saddr;
	struct ep *ep = bpf_map_lookup_elem(&eps, &da);
	if (!ep)
		return TC_ACT_OK;
	struct lpm_key lk = {.plen = 32, .addr = da};
	__u32 *id = bpf_map_lookup_elem(&ipcache, &lk);
	__u32 dst_id = id ? *id : 2;
	struct ct_key k = {.sa = sa, .da = da, .sp = ports[0], .dp = ports[1], .proto = ip->protocol};
	struct ct_val *v = bpf_map_lookup_elem(&ct, &k);
	__u32 now = bpf_ktime_get_coarse_ns() >> 30;
	if (v) {
		v->packets++;
		v->bytes += skb->len;
		if (v->lifetime != now)
			v->lifetime = now;
	} else {
		struct ct_key r = {.sa = da, .da = sa, .sp = k.dp, .dp = k.sp, .proto = k.proto};
		struct ct_val *rv = bpf_map_lookup_elem(&ct, &r);
		if (rv) {
			rv->packets++;
			rv->bytes += skb->len;
			if (rv->lifetime != now)
				rv->lifetime = now;
		} else {
			struct pol_key e1 = {.identity = dst_id,
					     .dport = k.dp,
					     .proto = k.proto,
					     .dir = 1}; // egress of source
			struct pol_key i1 = {.identity = src_identity,
					     .dport = k.dp,
					     .proto = k.proto,
					     .dir = 0}; // ingress of dest
			if (!bpf_map_lookup_elem(&policy, &e1)) {
				e1.dport = 0;
				if (!bpf_map_lookup_elem(&policy, &e1))
					return TC_ACT_SHOT;
			}
			if (!bpf_map_lookup_elem(&policy, &i1)) {
				i1.dport = 0;
				if (!bpf_map_lookup_elem(&policy, &i1))
					return TC_ACT_SHOT;
			}
			struct ct_val nv = {1, skb->len, now, 0};
			bpf_map_update_elem(&ct, &k, &nv, BPF_ANY);
		}
	}
	if (ip->ttl <= 1)
		return TC_ACT_SHOT;
	{
		__u32 c = ip->check;
		c += bpf_htons(0x0100);
		ip->check = c + (c >= 0xFFFF);
		ip->ttl--;
	}
	__builtin_memcpy(h->h_dest, ep->mac, 6);
	__builtin_memcpy(h->h_source, ep->smac, 6);
	return bpf_redirect_peer(ep->ifindex, 0);
}
char _license[] SEC("license") = "GPL";
