/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_COPIES_H
#define MUSTANG_COPIES_H

#include "ct.h"

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
	if (found && ct_use_judged(&flow->row, t, traits))
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

#endif
