/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* One entry per flow, found by one lookup from either direction, and the
 * judgement of flows that have none or whose policy moved on.
 */
#pragma once
#include "identity.h"
#include "notify.h"
#include "policy.h"

/* Seconds that an idle flow is remembered. */
#define TIMEOUT_SYN 60            /* TCP, only SYNs seen */
#define TIMEOUT_ESTABLISHED 21600 /* TCP */
#define TIMEOUT_CLOSING 10        /* TCP, closed by both ends or reset */
#define TIMEOUT_OTHER 60          /* everything else */

#define CT_CLOSING (CT_CLOSING_INIT | CT_CLOSING_RESP)

union ct_key {
	struct ct4_key v4;
	struct ct6_key v6;
};

/* One end of a flow, as far as it is an endpoint of this node. */
struct side {
	__u64 word; /* policy word of the endpoint, read before anything else is looked up */
	__u32 endpoint;
	bool local;
};

/* The policy word of a local endpoint. Read before the lookups that judge by
 * it, so that a race can only cause one more judgement. */
static __always_inline bool read_side(struct side *s, __u32 endpoint)
{
	struct endpoint_config *config = bpf_map_lookup_elem(&weir_epconfig, &endpoint);

	if (!config)
		return false;
	s->word = *(volatile __u64 *)&config->policy;
	s->endpoint = endpoint;
	s->local = true;
	return true;
}

/* The coarse clock is read from memory; the exact ones cost 30 ns a packet. It
 * stands still while the machine sleeps, and so do the flows. */
static __always_inline __u32 now_seconds(void)
{
	return bpf_ktime_get_coarse_ns() / 1000000000ULL;
}

/* The revision that an up-to-date entry holds for this end. A local endpoint
 * without policy has none, and matches no entry. */
static __always_inline __u32 current_revision(const struct side *s)
{
	__u32 revision = s->word >> 32;

	if (!s->local)
		return 0;
	return revision ? revision : ~0u;
}

/* Writes the canonical key. Returns the side, 0 or 1, that the source is. */
static __always_inline bool make_key(union ct_key *key, const __u8 family, const __be32 *saddr, const __be32 *daddr,
				     __be16 sport, __be16 dport, __u8 protocol)
{
	bool swap = bpf_ntohs(sport) > bpf_ntohs(dport);

	if (family == FAMILY_V4) {
		__u32 s = bpf_ntohl(saddr[0]), d = bpf_ntohl(daddr[0]);
		struct ct4_key *k = &key->v4;

		if (s != d)
			swap = s > d;
		if (swap) {
			k->addr[0] = daddr[0];
			k->addr[1] = saddr[0];
			k->port[0] = dport;
			k->port[1] = sport;
		} else {
			k->addr[0] = saddr[0];
			k->addr[1] = daddr[0];
			k->port[0] = sport;
			k->port[1] = dport;
		}
		k->protocol = protocol;
		k->pad[0] = k->pad[1] = k->pad[2] = 0;
	} else {
		__u64 s = bpf_be64_to_cpu((__u64)saddr[1] << 32 | saddr[0]);
		__u64 d = bpf_be64_to_cpu((__u64)daddr[1] << 32 | daddr[0]);
		struct ct6_key *k = &key->v6;

		if (s == d) {
			s = bpf_be64_to_cpu((__u64)saddr[3] << 32 | saddr[2]);
			d = bpf_be64_to_cpu((__u64)daddr[3] << 32 | daddr[2]);
		}
		if (s != d)
			swap = s > d;
		for (int i = 0; i < 4; i++) {
			k->addr[0][i] = swap ? daddr[i] : saddr[i];
			k->addr[1][i] = swap ? saddr[i] : daddr[i];
		}
		k->port[0] = swap ? dport : sport;
		k->port[1] = swap ? sport : dport;
		k->protocol = protocol;
		k->pad[0] = k->pad[1] = k->pad[2] = 0;
	}
	return swap;
}

static __always_inline struct ct_entry *find_flow(const union ct_key *key, const __u8 family)
{
	if (family == FAMILY_V4)
		return bpf_map_lookup_elem(&weir_ct4, &key->v4);
	return bpf_map_lookup_elem(&weir_ct6, &key->v6);
}

static __always_inline long store_flow(const union ct_key *key, const __u8 family, const struct ct_entry *e)
{
	if (family == FAMILY_V4)
		return bpf_map_update_elem(&weir_ct4, &key->v4, e, BPF_ANY);
	return bpf_map_update_elem(&weir_ct6, &key->v6, e, BPF_ANY);
}

/* The table that programs loaded before ours go by, if it is another one. */
static __always_inline void *former_table(const __u8 family)
{
	__u32 only = 0;

	if (family == FAMILY_V4)
		return bpf_map_lookup_elem(&weir_former4, &only);
	return bpf_map_lookup_elem(&weir_former6, &only);
}

/* The flow's entry, unless it has expired. One that only the former table has is
 * taken over as it stands: its revisions say whether it is to be judged again. */
static __always_inline struct ct_entry *find_live(const union ct_key *key, const __u8 family, __u32 now)
{
	struct ct_entry *e = find_flow(key, family);
	void *former;

	if (likely(e && now < e->expires))
		return e;
	former = former_table(family);
	if (likely(!former))
		return NULL;
	e = bpf_map_lookup_elem(former, key);
	if (!e || now >= e->expires || store_flow(key, family, e))
		return NULL;
	return find_flow(key, family);
}

/* Whether the flow's last judgement was a denial: it has no revision at all. The
 * entry stays, because a packet that is on its way back would open the flow anew,
 * with the other end as its initiator, and for as long as the initiator goes on. A
 * local end's revision is never 0, so that every packet of the flow is judged
 * again. */
static __always_inline bool is_denied(const struct ct_entry *e)
{
	return !(e->egress_revision | e->ingress_revision);
}

/* Whether the packet belongs to the entry's flow. Two packets never ride what
 * the other end opened: a SYN of the responder, and an echo request. A SYN on a
 * flow that is closing opens a new one. (Nor does what came from outside ride what
 * the node opened from the same address; that is the caller's to see.) */
static __always_inline bool rides(const struct ct_entry *e, const struct packet *p, const __u8 family, bool reply)
{
	if (p->protocol == IPPROTO_TCP)
		return (p->tcp_flags & (TCP_SYN | TCP_ACK)) != TCP_SYN || (!reply && !(e->flags & CT_CLOSING));
	if (is_icmp(family, p->protocol))
		return reply == (p->icmp_type == echo_reply(family));
	return true;
}

static __always_inline bool is_outside(const struct packet *p)
{
	return p->origin == ORIGIN_OUTSIDE;
}

/* Counts the packet and moves the flow's state and time on. */
static __always_inline void account(struct ct_entry *e, const struct packet *p, bool reply, __u32 now)
{
	__u32 old = e->flags, flags = old, expires;

	e->packets++;
	e->bytes += p->length;
	if (reply)
		flags |= CT_SEEN_REPLY;
	expires = now + TIMEOUT_OTHER;
	if (p->protocol == IPPROTO_TCP) {
		if (!(p->tcp_flags & TCP_SYN))
			flags |= CT_ESTABLISHED;
		if (unlikely(p->tcp_flags & (TCP_FIN | TCP_RST))) {
			flags |= reply ? CT_CLOSING_RESP : CT_CLOSING_INIT;
			if ((p->tcp_flags & TCP_RST) && !(old & CT_SEEN_REPLY))
				flags |= CT_CLOSING;
		}
		/* A reset may be forged: the flow's time is back with the next packet
		 * of any other kind, unless both ends have closed. */
		if ((flags & CT_CLOSING) == CT_CLOSING || (p->tcp_flags & TCP_RST))
			expires = now + TIMEOUT_CLOSING;
		else if (flags & CT_ESTABLISHED)
			expires = now + TIMEOUT_ESTABLISHED;
		else
			expires = now + TIMEOUT_SYN;
		if ((old & CT_CLOSING) == CT_CLOSING)
			expires = e->expires;
	}
	if (flags != old)
		e->flags = flags;
	if (e->expires != expires)
		e->expires = expires;
}

/* What a judgement decided. known: rules of the entry, if there is one. */
struct judgement {
	struct side initiator;
	struct side responder;
	bool known;
	bool egress_stale;
	bool ingress_stale;
	__u32 egress_rule;
	__u32 ingress_rule;
};

/* Whether the denial that stands in p is only to be told of: its endpoint audits
 * its policy. A packet that no rule was found for is never let through. */
static __always_inline bool audits(const struct packet *p)
{
	__u32 endpoint = p->endpoint;
	struct endpoint_config *config;

	if (!p->rule)
		return false;
	config = bpf_map_lookup_elem(&weir_epconfig, &endpoint);
	return config && (config->flags & CONFIG_AUDIT);
}

/* Judges one direction. A packet that may pass is told of, unless the flow is
 * known and its rule the same as before. Returns 0 or the drop reason. */
static __always_inline int judge_side(struct __sk_buff *skb, struct packet *p, const struct side *side, __u32 direction,
				      bool known, __u32 known_rule)
{
	int reason = judge_direction(p, side->word, side->endpoint, direction);
	__u32 type = EVENT_VERDICT, told = 0;

	if (reason) {
		if (!audits(p))
			return reason;
		type = EVENT_AUDIT;
		told = reason;
	}
	if (!known || p->rule != known_rule)
		notify(skb, p, type, told);
	return 0;
}

/* Judges the flow of packet p: egress by the initiator's policy, ingress by the
 * responder's, as far as they are local and stale. Every direction of a new
 * flow gives an event of its own; the first one that is denied gives a drop
 * event, for which p is left as that judgement found it. A known flow is told
 * of only if its rule changed. Returns 0 or a negative drop reason. */
OUT_OF_LINE int judge(struct __sk_buff *skb, struct packet *p, struct judgement *j)
{
	__u32 rule = 0, revision = 0;
	int denied = 0, reason;

	if (!p || !j)
		return -DROP_POLICY;
	/* Revisions were read by the caller; addresses are looked up after that. */
	identify(p);
	if (j->initiator.local && j->egress_stale) {
		denied = judge_side(skb, p, &j->initiator, DIR_EGRESS, j->known, j->egress_rule);
		rule = p->rule;
		revision = p->revision;
		j->egress_rule = rule;
		if (denied && j->known)
			return -denied;
	}
	if (j->responder.local && j->ingress_stale) {
		reason = judge_side(skb, p, &j->responder, DIR_INGRESS, !denied && j->known, j->ingress_rule);
		if (reason && !denied)
			return -reason;
		if (reason)
			notify(skb, p, EVENT_VERDICT, reason);
		j->ingress_rule = p->rule;
	}
	if (denied) {
		p->direction = DIR_EGRESS;
		p->endpoint = j->initiator.endpoint;
		p->rule = rule;
		p->revision = revision;
	}
	return -denied;
}

/* Records a flow that was just allowed, also where programs look that do not know
 * our table yet: its answer may pass through one of them. */
static __always_inline int create_flow(const union ct_key *key, const struct packet *p, const __u8 family,
				       const struct judgement *j, bool side, __u32 now)
{
	struct ct_entry e = {
		.flags = side ? CT_INITIATOR_1 : 0,
		.egress_revision = current_revision(&j->initiator),
		.ingress_revision = current_revision(&j->responder),
		.egress_rule = j->egress_rule,
		.ingress_rule = j->ingress_rule,
	};
	void *former = former_table(family);

	if (is_outside(p))
		e.flags |= CT_OUTSIDE;
	account(&e, p, false, now);
	if (unlikely(former))
		bpf_map_update_elem(former, key, &e, BPF_ANY);
	return store_flow(key, family, &e) ? -DROP_CT_CREATE : 0;
}

/* Judges a known flow again. The result goes in by an update, not through the
 * pointer: the kernel may give an entry's memory to another flow at any time,
 * and that one must not get this one's stamp. Only a packet of the flow's own
 * keeps it alive. */
static __always_inline int judge_again(struct __sk_buff *skb, struct packet *p, const __u8 family,
				       const union ct_key *key, const struct ct_entry *known, struct judgement *j,
				       __u32 now)
{
	struct ct_entry e = *known;
	__u32 egress = current_revision(&j->initiator), ingress = current_revision(&j->responder);
	int err;

	j->known = true;
	j->egress_stale = e.egress_revision != egress;
	j->ingress_stale = e.ingress_revision != ingress;
	j->egress_rule = e.egress_rule;
	j->ingress_rule = e.ingress_rule;
	err = judge(skb, p, j);
	if (err) {
		bool renew = !p->quoted && !p->reply && e.expires < now + TIMEOUT_OTHER / 2;

		if (renew || !is_denied(&e)) {
			if (renew)
				e.expires = now + TIMEOUT_OTHER;
			e.egress_revision = e.ingress_revision = 0;
			store_flow(key, family, &e); /* without room the old revisions stay, which are as stale */
		}
		return err;
	}
	e.egress_revision = egress;
	e.ingress_revision = ingress;
	e.egress_rule = j->initiator.local ? j->egress_rule : 0;
	e.ingress_rule = j->responder.local ? j->ingress_rule : 0;
	if (!p->quoted)
		account(&e, p, p->reply, now);
	return store_flow(key, family, &e) ? -DROP_CT_CREATE : 0;
}

/* Finds or opens the packet's flow. src and dst are the packet's ends. Returns
 * 0 if the packet may pass, else a negative drop reason. */
static __always_inline int track(struct __sk_buff *skb, struct packet *p, const __u8 family, const struct side *src,
				 const struct side *dst)
{
	__u32 src_revision = current_revision(src), dst_revision = current_revision(dst);
	__u32 now = now_seconds();
	struct judgement j = {};
	struct ct_entry *e;
	union ct_key key;
	bool side, reply;
	int err;

	side = make_key(&key, family, p->saddr, p->daddr, p->sport, p->dport, p->protocol);
	e = find_live(&key, family, now);
	if (likely(e)) {
		reply = side != !!(e->flags & CT_INITIATOR_1);
		if (likely(rides(e, p, family, reply) && (reply || is_outside(p) == !!(e->flags & CT_OUTSIDE)))) {
			if (likely(e->egress_revision == (reply ? dst_revision : src_revision) &&
				   e->ingress_revision == (reply ? src_revision : dst_revision))) {
				account(e, p, reply, now);
				return 0;
			}
			p->reply = reply;
			if (reply)
				p->origin = e->flags & CT_OUTSIDE ? ORIGIN_OUTSIDE : ORIGIN_HERE;
			j.initiator = reply ? *dst : *src;
			j.responder = reply ? *src : *dst;
			return judge_again(skb, p, family, &key, e, &j, now);
		}
	}
	if (unlikely(p->quoted)) /* its flow ended meanwhile */
		return -DROP_ICMP_UNRELATED;
	j.initiator = *src;
	j.responder = *dst;
	j.egress_stale = j.ingress_stale = true;
	err = judge(skb, p, &j);
	if (err)
		return err;
	return create_flow(&key, p, family, &j, side, now);
}
