/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* From an address to who (identity) and where (prefix identity). */
#pragma once
#include "maps.h"
#include "parse.h"

#define IDENTITY_HOST 1
#define IDENTITY_WORLD_IPV4 9
#define IDENTITY_WORLD_IPV6 10
#define IDENTITY_CLOSED 99 /* what the agent could not give an identity; see pkg/ipcache */

static __always_inline struct endpoint_info *lookup_endpoint(const __be32 *addr, const __u8 family)
{
	struct endpoint_key key = { .family = family };

	key.ip6[0] = addr[0];
	if (family != FAMILY_V4) {
		key.ip6[1] = addr[1];
		key.ip6[2] = addr[2];
		key.ip6[3] = addr[3];
	}
	return bpf_map_lookup_elem(&weir_lxc, &key);
}

/* The addresses of local pods are in weir_lxc; the trie is asked only on a
 * miss, and an address that it does not know is the world. So is the node's own,
 * but for packets that were made on the node. */
static __always_inline void identify_peer(const __be32 *addr, __u8 family, __u8 origin, __u32 *identity,
					  __u32 *prefix_identity)
{
	__u32 world = family == FAMILY_V4 ? IDENTITY_WORLD_IPV4 : IDENTITY_WORLD_IPV6;
	struct ipcache_key key = { .family = family };
	struct ipcache_entry *entry;
	struct endpoint_info *info;

	*identity = world;
	*prefix_identity = 0;
	if (origin == ORIGIN_FORGED)
		return;
	info = lookup_endpoint(addr, family);
	if (info) {
		*identity = info->identity;
		*prefix_identity = info->prefix_identity;
		return;
	}
	key.prefixlen = family == FAMILY_V4 ? 64 : 160;
	for (int i = 0; i < 4; i++)
		key.ip6[i] = addr[i];
	entry = bpf_map_lookup_elem(&weir_ipcache, &key);
	if (entry) {
		*identity = entry->identity == IDENTITY_HOST && origin == ORIGIN_OUTSIDE ? world : entry->identity;
		*prefix_identity = entry->prefix_identity;
	}
}

/* The endpoint whose program runs has its identity from its own constants
 * until it is exposed; its prefix identity is in weir_lxc. */
static __always_inline void identify_owner(const __be32 *addr, const struct packet *p, __u32 *identity,
					   __u32 *prefix_identity)
{
	struct endpoint_info *info = lookup_endpoint(addr, p->family);

	*identity = p->owner_identity;
	*prefix_identity = 0;
	if (info && info->id == p->owner) {
		*identity = info->identity;
		*prefix_identity = info->prefix_identity;
	}
}

/* Fills in the identities of both ends. */
OUT_OF_LINE int identify(struct packet *p)
{
	if (!p)
		return 0;
	if (p->hook == DIR_EGRESS) {
		identify_owner(p->saddr, p, &p->src_identity, &p->src_prefix_identity);
		identify_peer(p->daddr, p->family, p->origin, &p->dst_identity, &p->dst_prefix_identity);
	} else {
		identify_peer(p->saddr, p->family, p->origin, &p->src_identity, &p->src_prefix_identity);
		identify_owner(p->daddr, p, &p->dst_identity, &p->dst_prefix_identity);
	}
	p->identified = 1;
	return 0;
}
