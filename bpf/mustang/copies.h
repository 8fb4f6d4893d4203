/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_COPIES_H
#define MUSTANG_COPIES_H

#include "ct.h"

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

/* The connection of a packet, for reading: a copy of the row; NULL if it has none that is valid. */
static __always_inline struct ct_entry *flow_find(const struct tuple *t, __u32 traits)
{
	const struct filter *filter = filter_row();
	__u32 slot = flow_index(t);
	struct flow *flow = bpf_map_lookup_elem(&flows, &slot);
	struct validity now;
	bool found = true;

	if (unlikely(!flow || !filter))
		return NULL;
	now = validity_now(&filter->generations[slot % GENERATIONS]);
	if (likely(is_valid(&flow->validity, &now) && tuple_equal(&flow->key, t))) {
		if (unlikely(flow->row.flags & CT_ABSENT))
			return NULL;
		/* The beginning and the end of a connection are noted in its slot. */
		if (likely(!(traits & TRAIT_FIN) && !(flow->row.flags & CT_OPENING)))
			return &flow->row;
		flow->row.flags &= ~CT_OPENING;
	} else {
		begin_copy(&flow->validity, &now);
		flow->key = *t;
		found = ct_copy(t, &flow->row);
	}
	if (found && ct_use(&flow->row, t, traits))
		return &flow->row;
	flow->row.flags = CT_ABSENT;
	return NULL;
}

/*
 * Copies a row that this program has just stored, for the next packet. The copy is valid from the next change of its generation on,
 * which is to be the caller's; if another one comes first, it never is.
 */
static __always_inline void flow_add(const struct tuple *t, const struct ct_entry *row)
{
	const struct filter *filter = filter_row();
	__u32 slot = flow_index(t);
	struct flow *flow = bpf_map_lookup_elem(&flows, &slot);
	struct validity next;

	if (!flow || !filter)
		return;
	next = validity_now(&filter->generations[slot % GENERATIONS]);
	next.generation++;
	begin_copy(&flow->validity, &next);
	/* Commands raise rows first: with the old rows, the generation is not that of a later change of pods and services. */
	if ((__u32) * (volatile const __u64 *)&filter->rows != row->checked)
		flow->validity.generation = 0;
	flow->key = *t;
	flow->row = *row;
	flow->row.flags |= CT_OPENING;
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
