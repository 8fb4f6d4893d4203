/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_WAYS_H
#define MUSTANG_WAYS_H

#include "filter.h"

/*
 * Copies of rows that a CPU has just read. A look-up in a hash table is a call; one in an array is a few instructions. Each
 * change of connections or endpoints voids all copies.
 */

/* What a copy that is read now is to have. generation is NULL if the filter is missing, which cannot be. */
static __always_inline struct validity validity_now(const __u64 *generation)
{
	struct validity now = {};

	if (generation) {
		now.generation = *(volatile const __u64 *)generation;
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

/* A copy of the row of the pod that has the address; absent if no pod of this node has it. NULL: none, which cannot be. */
static __always_inline const struct way *way_find(const union addr *addr)
{
	const struct filter *filter = filter_row();
	__u32 slot = (addr->halves[1] ^ addr->halves[0]) * FILTER_MULTIPLIER >> (64 - COPIES_LOG);
	struct way *way = bpf_map_lookup_elem(&ways, &slot);
	struct validity now;

	if (unlikely(!way || !filter))
		return NULL;
	now = validity_now(&filter->rows);
	if (unlikely(!is_valid(&way->validity, &now) || !addr_equal(&way->key, addr))) {
		begin_copy(&way->validity, &now);
		struct endpoint *endpoint = bpf_map_lookup_elem(&endpoints, addr);

		way->key = *addr;
		way->endpoint = 0;
		if (endpoint) {
			way->path = endpoint->path;
			way->segment = endpoint->segment;
			way->endpoint = endpoint->id;
			way->netns = endpoint->netns;
			way->egress = endpoint->egress;
			way->ingress = endpoint->ingress;
		}
	}
	return way;
}

/* The path into the pod that has the address; NULL if no pod of this node has it. */
static __always_inline const struct ep_path *way_to(const union addr *addr)
{
	const struct way *way = way_find(addr);

	return way && way->endpoint ? &way->path : NULL;
}

#endif
