/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_CHOICE_H
#define MUSTANG_CHOICE_H

#include "maps.h"

/*
 * Look-up tables of backends, for services whose backends do not all get equally many connections, or whose choice is to be
 * the same on all nodes. As in maps.h, these structs are the layout of pinned maps.
 */

/* Entries of a row; a power of two. */
#define TABLE_BLOCK 64

/* No service has a backend in this slot. */
#define BACKEND_SLOT_NONE 0xffffffff

struct table_block {
	__u16 slots[TABLE_BLOCK]; /* of backends */
};

_Static_assert(sizeof(struct table_block) == 128, "hidden padding");

/* By revision and number of the block. User space completes the table of a revision before a service refers to it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct backend_key);
	__type(value, struct table_block);
} tables SEC(".maps");

/*
 * The slot of the backend that a hash, or a random number, chooses of those that get new connections. There must be one.
 * BACKEND_SLOT_NONE: the table is missing.
 */
static __always_inline __u32 backend_slot(const struct service *service, __u32 revision, __u32 hash)
{
	struct backend_key key = { .revision = revision };
	const struct table_block *block;
	__u32 entries = service->table;

	if (!entries)
		return hash % service->count;
	hash &= entries - 1;
	key.slot = hash / TABLE_BLOCK;
	block = bpf_map_lookup_elem(&tables, &key);
	return block ? block->slots[hash % TABLE_BLOCK] : BACKEND_SLOT_NONE;
}

/* A search for a backend in a revision. */
struct backend_search {
	union addr addr;
	__u32 revision;
	__u32 slot;
	__be16 port;
	__u16 found;
};

static long search_backend(__u32 slot, struct backend_search *s)
{
	struct backend_key key = { .revision = s->revision, .slot = slot };
	const struct backend *row = bpf_map_lookup_elem(&backends, &key);

	s->slot = slot;
	s->found = row && row->port == s->port && addr_equal(&row->addr, &s->addr);
	return s->found;
}

#endif
