/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Asks the policy map of an endpoint for one direction of a flow. */
#pragma once
#include "maps.h"
#include "parse.h"

#define POLICY_FULL_PREFIX 64 /* identity 32, direction 8, protocol 8, port 16 */
#define POLICY_CLASS_DENY 255 /* low byte of a precedence */

/* The port that rules are matched against, in initiator orientation. */
static __always_inline __be16 policy_port(const struct packet *p)
{
	if (is_icmp(p->family, p->protocol))
		return bpf_htons(p->reply ? echo_request(p->family) : p->icmp_type);
	return p->reply ? p->sport : p->dport;
}

/* Looks the peer up by identity, by prefix identity and as anybody; the
 * biggest order decides. Leaves rule, revision, endpoint and direction in p.
 * word is the endpoint's policy word, read before this call and before the
 * identities were looked up. Returns 0 for allow, else the drop reason. */
OUT_OF_LINE int judge_direction(struct packet *p, __u64 word, __u32 endpoint, __u32 direction)
{
	__u32 slot = (__u32)word, rule = 0, identity, prefix_identity;
	struct policy_key key = {};
	struct policy_entry *entry;
	__u64 best = 0;
	bool found = false, deny = true;
	bool peer_is_dst;
	void *map;

	if (!p)
		return DROP_POLICY;
	peer_is_dst = (direction == DIR_EGRESS) != !!p->reply;
	identity = peer_is_dst ? p->dst_identity : p->src_identity;
	prefix_identity = peer_is_dst ? p->dst_prefix_identity : p->src_prefix_identity;
	p->direction = direction;
	p->endpoint = endpoint;
	p->revision = word >> 32;
	p->rule = 0;
	if (!slot)
		return DROP_POLICY;
	map = bpf_map_lookup_elem(&weir_policy, &slot);
	if (!map)
		return DROP_POLICY;

	key.prefixlen = POLICY_FULL_PREFIX;
	key.direction = direction;
	key.protocol = p->protocol;
	key.port = policy_port(p);
	key.identity = identity;
	entry = bpf_map_lookup_elem(map, &key);
	if (entry) {
		found = true;
		best = entry->order;
		rule = entry->rule;
		deny = entry->deny;
	}
	if (prefix_identity && prefix_identity != identity) {
		key.identity = prefix_identity;
		entry = bpf_map_lookup_elem(map, &key);
		if (entry && (!found || entry->order > best)) {
			found = true;
			best = entry->order;
			rule = entry->rule;
			deny = entry->deny;
		}
	}
	if (identity) {
		key.identity = 0;
		entry = bpf_map_lookup_elem(map, &key);
		if (entry && (!found || entry->order > best)) {
			best = entry->order;
			rule = entry->rule;
			deny = entry->deny;
		}
	}
	p->rule = rule;
	if (!deny)
		return 0;
	return ((best >> 32) & 0xff) == POLICY_CLASS_DENY ? DROP_POLICY_DENY : DROP_POLICY;
}
