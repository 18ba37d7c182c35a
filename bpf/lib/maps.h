/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Every map. The loader may change max_entries of weir_ct4, weir_ct6,
 * weir_ipcache and weir_events, and replaces all but weir_calls by the pinned
 * ones of the node. The map in weir_former4 or weir_former6 may have any room.
 */
#pragma once
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "types.h"

#define MAX_ENDPOINTS 4096
#define POLICY_SLOTS 8192

#define CALL_FROM_BODY 0
#define CALL_TO_BODY 1

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__uint(max_entries, 2);
} weir_calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct endpoint_key);
	__type(value, struct endpoint_info);
} weir_lxc SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_ENDPOINTS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct endpoint_config);
} weir_epconfig SEC(".maps");

struct policy_map {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1 << 20);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(key_size, sizeof(struct policy_key));
	__uint(value_size, sizeof(struct policy_entry));
};

/* Slot 0 is never filled: it denies everything. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, POLICY_SLOTS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__array(values, struct policy_map);
} weir_policy SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 512000);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct ipcache_key);
	__type(value, struct ipcache_entry);
} weir_ipcache SEC(".maps");

struct ct4_map {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct ct4_key);
	__type(value, struct ct_entry);
} weir_ct4 SEC(".maps");
struct ct6_map {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct ct6_key);
	__type(value, struct ct_entry);
} weir_ct6 SEC(".maps");
/* Empty, but while programs run that still know only a former table of flows, of
 * another size: then that one. See find_live. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__array(values, struct ct4_map);
} weir_former4 SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__array(values, struct ct6_map);
} weir_former6 SEC(".maps");
/* One for both families; the family is in the key. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct frag_key);
	__type(value, struct frag_entry);
} weir_frag SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 512); /* reason << 1 | direction */
	__type(key, __u32);
	__type(value, struct metrics_entry);
} weir_metrics SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2 * MAX_ENDPOINTS);
	__type(key, __u32);
	__type(value, struct event_share);
} weir_shares SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20); /* bytes */
} weir_events SEC(".maps");
