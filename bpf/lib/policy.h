/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Asks the policy map of an endpoint for one direction of a flow. */
#pragma once
#include "identity.h"
#include "maps.h"
#include "parse.h"

#define POLICY_FULL_PREFIX 64 /* identity 32, direction 8, protocol 8, port 16 */
#define POLICY_CLASS_DEFAULT 0 /* low byte of a precedence: no rule of a user */
#define POLICY_STAGES 3        /* all tiers; those below Admin; those below Baseline */

/* The port that rules are matched against, in initiator orientation. */
static __always_inline __be16 policy_port(const struct packet *p)
{
	if (is_icmp(p->family, p->protocol))
		return bpf_htons(p->reply ? echo_request(p->family) : p->icmp_type);
	return p->reply ? p->sport : p->dport;
}

/* Looks a peer up by identity, by prefix identity and as anybody. Returns the
 * line of the biggest order, NULL if there is none. */
static __always_inline struct policy_entry *
strongest_entry(void *map, struct policy_key *key, __u32 identity, __u32 prefix_identity)
{
	struct policy_entry *best, *other;

	key->identity = identity;
	best = bpf_map_lookup_elem(map, key);
	if (prefix_identity && prefix_identity != identity) {
		key->identity = prefix_identity;
		other = bpf_map_lookup_elem(map, key);
		if (other && (!best || other->order > best->order))
			best = other;
	}
	if (identity) {
		key->identity = 0;
		other = bpf_map_lookup_elem(map, key);
		if (other && (!best || other->order > best->order))
			best = other;
	}
	return best;
}

/* Judges one direction. A line that passes (a Pass of an ordered tier) sends the
 * lookup to the stage that holds the tiers below. A closed peer is denied whatever
 * the policy says. Leaves rule, revision, endpoint and direction in p.
 * word is the endpoint's policy word, read before this call and before the
 * identities were looked up. Returns 0 for allow, else the drop reason. */
OUT_OF_LINE int judge_direction(struct packet *p, __u64 word, __u32 endpoint, __u32 direction)
{
	__u32 slot = (__u32)word, identity, prefix_identity, stage = 0;
	struct policy_key key = {};
	struct policy_entry *entry;
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
	if (unlikely(identity == IDENTITY_CLOSED || prefix_identity == IDENTITY_CLOSED))
		return DROP_PREFIX_CLOSED;
	if (!slot)
		return DROP_POLICY;
	map = bpf_map_lookup_elem(&weir_policy, &slot);
	if (!map)
		return DROP_POLICY;

	key.prefixlen = POLICY_FULL_PREFIX;
	key.protocol = p->protocol;
	key.port = policy_port(p);
	for (int i = 0; i < POLICY_STAGES; i++) {
		key.direction = direction | stage << 1;
		entry = strongest_entry(map, &key, identity, prefix_identity);
		if (!entry)
			return DROP_POLICY;
		__sync_fetch_and_add(&entry->judged, 1);
		if (entry->pass) {
			stage = entry->pass;
			continue;
		}
		p->rule = entry->rule;
		if (!entry->deny)
			return 0;
		return ((entry->order >> 32) & 0xff) == POLICY_CLASS_DEFAULT ? DROP_POLICY : DROP_POLICY_DENY;
	}
	return DROP_POLICY;
}
