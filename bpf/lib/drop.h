/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The one way to drop a packet: counted, told, refused. */
#pragma once
#include <linux/pkt_cls.h>
#include "config.h"
#include "identity.h"
#include "notify.h"

/* entry: the caller is an entry program, which must stay free of subprograms
 * beside its tail call and has read no address. */
static __always_inline int drop(struct __sk_buff *skb, struct packet *p, __u8 reason, const bool entry)
{
	if (!p->length && skb->len >= ETH_HLEN)
		p->length = skb->len - ETH_HLEN;
	count(reason, p->direction & 1, p->length);
	if (entry && has_share(p->endpoint, true, p->direction)) {
		struct event e = {};

		fill_event(&e, skb, p, EVENT_DROP, reason, false);
		send_event(&e);
	} else if (!entry) {
		if (p->family && !p->identified)
			identify(p);
		notify(skb, p, EVENT_DROP, reason);
	}
#ifdef DEBUG
	{
		char format[] = "weir: endpoint %d drops, reason %d, rule %d\n";

		bpf_trace_printk(format, sizeof(format), p->endpoint, reason, p->rule);
	}
#endif
	return TC_ACT_SHOT;
}
