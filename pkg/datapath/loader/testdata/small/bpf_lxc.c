// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/* The smallest object with the loader's names. The bodies return the number in
 * weir_marker, plus the endpoint id, plus 1000 on the way to the pod, so that a
 * test sees which body ran for whom. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "shape.h"

#define CONSTANT volatile const __attribute__((section(".rodata.config"), aligned(8), used))
CONSTANT __u32 weir_endpoint_id = 65535;
CONSTANT __u32 weir_identity = 2;

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 4);
	__uint(max_entries, 2);
} weir_calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} weir_marker SEC(".maps");

static __always_inline int body(struct __sk_buff *skb, int add)
{
	__u32 zero = 0, *marker = bpf_map_lookup_elem(&weir_marker, &zero);

	return marker ? (int)(*marker + skb->cb[0] + add) : 0;
}

SEC("tc")
int weir_from_container(struct __sk_buff *skb)
{
	skb->cb[0] = weir_endpoint_id;
	skb->cb[1] = weir_identity;
	bpf_tail_call_static(skb, &weir_calls, 0);
	return 7;
}

SEC("tc")
int weir_to_container(struct __sk_buff *skb)
{
	skb->cb[0] = weir_endpoint_id;
	skb->cb[1] = weir_identity;
	bpf_tail_call_static(skb, &weir_calls, 1);
	return 7;
}

SEC("tc")
int weir_from_body(struct __sk_buff *skb) { return body(skb, 0); }
SEC("tc")
int weir_to_body(struct __sk_buff *skb) { return body(skb, 1000); }

char _license[] SEC("license") = "Dual BSD/GPL";
