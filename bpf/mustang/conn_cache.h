/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_CONN_CACHE_H
#define MUSTANG_CONN_CACHE_H

#include "ct.h"

/* The connection of a packet, for reading: a copy of the row; NULL if it has none that is valid. */
static __always_inline struct ct_entry *conn_lookup(const struct tuple *t, __u32 traits)
{
	const struct node_state *node = node_state_row();
	__u32 slot = conn_cache_index(t);
	struct cache *cache_row = bpf_map_lookup_elem(&cache, &slot);
	struct cached_conn *cached;
	struct validity now;
	bool found = true;

	if (unlikely(!cache_row || !node))
		return NULL;
	cached = &cache_row->conn;
	now = validity_now(&node->generations[slot % GENERATIONS]);
	if (likely(is_valid(&cached->validity, &now) && tuple_equal(&cached->key, t))) {
		if (unlikely(cached->row.flags & CT_ABSENT))
			return NULL;
		/* The beginning and the end of a connection are noted in its slot. */
		if (likely(!(traits & TRAIT_FIN) && !(cached->row.flags & CT_OPENING)))
			return &cached->row;
		cached->row.flags &= ~CT_OPENING;
	} else {
		begin_copy(&cached->validity, &now);
		cached->key = *t;
		found = ct_copy(t, &cached->row);
	}
	if (found && ct_use_judged(&cached->row, t, traits))
		return &cached->row;
	cached->row.flags = CT_ABSENT;
	return NULL;
}

/*
 * Copies a row that this program has just stored, for the next packet. The copy is valid from the next change of its generation on,
 * which is to be the caller's; if another one comes first, it never is.
 */
static __always_inline void conn_cache_put(const struct tuple *t, const struct ct_entry *row)
{
	const struct node_state *node = node_state_row();
	__u32 slot = conn_cache_index(t);
	struct cache *cache_row = bpf_map_lookup_elem(&cache, &slot);
	struct cached_conn *cached;
	struct validity next;

	if (!cache_row || !node)
		return;
	cached = &cache_row->conn;
	next = validity_now(&node->generations[slot % GENERATIONS]);
	next.generation++;
	begin_copy(&cached->validity, &next);
	/* Commands raise rows before generations: while rows is old, no generation is newer than the copy. */
	if ((__u32) * (volatile const __u64 *)&node->rows != row->checked)
		cached->validity.generation = 0;
	cached->key = *t;
	cached->row = *row;
	cached->row.flags |= CT_OPENING;
}

#endif
