/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Counters and events. An event never wakes the reader up: it polls, and all
 * producers of a ring must use the same discipline. */
#pragma once
#include "maps.h"
#include "parse.h"

static __always_inline void count(__u32 reason, __u32 direction, __u32 bytes)
{
	__u32 index = reason << 1 | direction;
	struct metrics_entry *m = bpf_map_lookup_elem(&weir_metrics, &index);

	if (m) {
		m->packets++;
		m->bytes += bytes;
	}
}

/* A decision is told in the orientation of the flow that it is about, so that
 * the endpoint of an egress decision is always the source. All other events
 * tell the packet as it is. */
static __always_inline void fill_event(struct event *e, struct __sk_buff *skb, const struct packet *p, __u8 type,
				       __u8 reason, bool turned)
{
	const __be32 *saddr = turned ? p->daddr : p->saddr, *daddr = turned ? p->saddr : p->daddr;

	e->timestamp = bpf_ktime_get_boot_ns();
	e->type = type;
	e->reason = reason;
	e->direction = p->direction;
	e->family = p->family;
	e->endpoint = p->endpoint;
	e->protocol = p->protocol;
	e->tcp_flags = p->tcp_flags;
	if (is_icmp(p->family, p->protocol)) {
		e->sport = p->icmp_id;
		e->dport = bpf_htons(p->icmp_type << 8 | p->icmp_code);
	} else {
		e->sport = turned ? p->dport : p->sport;
		e->dport = turned ? p->sport : p->dport;
	}
	e->length = p->length;
	e->src_identity = turned ? p->dst_identity : p->src_identity;
	e->dst_identity = turned ? p->src_identity : p->dst_identity;
	e->src_prefix_identity = turned ? p->dst_prefix_identity : p->src_prefix_identity;
	e->dst_prefix_identity = turned ? p->src_prefix_identity : p->dst_prefix_identity;
	e->rule = p->rule;
	e->revision = p->revision;
	e->ifindex = skb->ifindex;
	e->pad = 0;
	for (int i = 0; i < 4; i++) {
		e->saddr[i] = saddr[i];
		e->daddr[i] = daddr[i];
	}
}

/* What one endpoint may have told of in a window (a second and a bit) by each CPU:
 * a pod that floods must not fill the ring, or a reader, for all others. What is
 * beyond it is counted. Drops have a share of their own, as anybody outside can cause
 * them. */
#define SHARE_WINDOW 30 /* 2^n ns */
#define SHARE_DROPS 2000
#define SHARE_VERDICTS 4000

static __always_inline bool has_share(__u32 owner, bool dropped, __u32 direction)
{
	__u64 window = bpf_ktime_get_boot_ns() >> SHARE_WINDOW;
	__u32 index = owner << 1 | dropped;
	struct event_share *s = bpf_map_lookup_elem(&weir_shares, &index);

	if (!s)
		return true;
	if (s->window != window) {
		s->window = window;
		s->told = 0;
	}
	if (s->told < (dropped ? SHARE_DROPS : SHARE_VERDICTS)) {
		s->told++;
		return true;
	}
	s->left_out++;
	count(DROP_EVENT_LEFT_OUT, direction & 1, 0);
	return false;
}

static __always_inline void send_event(struct event *e)
{
	if (bpf_ringbuf_output(&weir_events, e, sizeof(*e), BPF_RB_NO_WAKEUP))
		count(DROP_EVENT_LOST, e->direction & 1, 0);
}

OUT_OF_LINE int may_tell(const struct packet *p, __u32 type)
{
	return p && has_share(p->owner, type == EVENT_DROP, p->direction);
}

OUT_OF_LINE int tell(struct __sk_buff *skb, const struct packet *p, __u32 type, __u32 reason)
{
	struct event e = {};

	if (!p)
		return 0;
	if (p->reply && (type != EVENT_DROP || reason == DROP_POLICY || reason == DROP_POLICY_DENY))
		fill_event(&e, skb, p, type, reason, true);
	else
		fill_event(&e, skb, p, type, reason, false);
	send_event(&e);
	return 0;
}

/* Tells of the decision that stands in p, if its endpoint has not told of too many. */
static __always_inline void notify(struct __sk_buff *skb, const struct packet *p, __u32 type, __u32 reason)
{
	if (may_tell(p, type))
		tell(skb, p, type, reason);
}
