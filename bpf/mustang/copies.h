/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_COPIES_H
#define MUSTANG_COPIES_H

#include "filter.h"

/*
 * Copies of rows that a CPU has just read. A look-up in a hash table is a call; one in an array is a few instructions. Each
 * change of connections or endpoints voids all copies.
 */

/* What a copy that is read now is to have; zero if the filter is missing, which cannot be. */
static __always_inline struct validity validity_now(void)
{
	const struct filter *filter = filter_row();
	struct validity now = {};

	if (filter) {
		now.generation = *(volatile __u64 *)&filter->generation;
		now.second = bpf_jiffies64() >> 8;
	}
	return now;
}

static __always_inline bool is_valid(const struct validity *copy, const struct validity *now)
{
	return copy->generation == now->generation && copy->second == now->second;
}

/* Begins a copy: what is read from here on is as new as the validity. */
static __always_inline void begin_copy(struct validity *copy, const struct validity *now)
{
	*copy = *now;
	full_barrier(&copy->generation);
}

/* The connection of a packet, for reading: a row of connections, or a copy. */
static __always_inline struct ct_entry *flow_find(const struct tuple *t)
{
	__u64 hash =
		(t->saddr.halves[1] ^ t->saddr.halves[0] << 1) + 3 * (t->daddr.halves[1] ^ t->daddr.halves[0] << 1);
	__u32 slot = (hash ^ ((__u32)t->dport << 16 | t->sport)) * FILTER_MULTIPLIER >> (64 - COPIES_LOG);
	struct flow *flow = bpf_map_lookup_elem(&flows, &slot);
	struct validity now = validity_now();
	struct ct_entry *ct;

	if (!flow)
		return bpf_map_lookup_elem(&connections, t);
	if (is_valid(&flow->validity, &now) && tuple_equal(&flow->key, t))
		return flow->row.flags & CT_ABSENT ? NULL : &flow->row;
	begin_copy(&flow->validity, &now);
	ct = bpf_map_lookup_elem(&connections, t);
	flow->key = *t;
	if (!ct) {
		flow->row.flags = CT_ABSENT;
		return NULL;
	}
	flow->row = *ct;
	return ct;
}

/* The path into the pod that has the address; NULL if no pod of this node has it. */
static __always_inline const struct ep_path *way_to(const union addr *addr)
{
	__u32 slot = (addr->halves[1] ^ addr->halves[0]) * FILTER_MULTIPLIER >> (64 - COPIES_LOG);
	struct way *way = bpf_map_lookup_elem(&ways, &slot);
	struct validity now = validity_now();

	if (!way)
		return NULL;
	if (!is_valid(&way->validity, &now) || !addr_equal(&way->key, addr)) {
		begin_copy(&way->validity, &now);
		struct endpoint *endpoint = bpf_map_lookup_elem(&endpoints, addr);

		way->key = *addr;
		way->absent = !endpoint;
		if (endpoint)
			way->path = endpoint->path;
	}
	return way->absent ? NULL : &way->path;
}

#endif
