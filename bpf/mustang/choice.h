/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_CHOICE_H
#define MUSTANG_CHOICE_H

#include "maps.h"
#include "metrics.h"
#include "scratch.h"

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
} backend_lut SEC(".maps");

/* local is whether the policy for the client is local. */
static __always_inline struct candidates candidates_of(const struct service *service, bool local)
{
	if (local)
		return (struct candidates){ service->local_first, service->local, service->local_table,
					    service->table / TABLE_BLOCK };
	return (struct candidates){ 0, service->count, service->table, 0 };
}

/* Why a new connection gets no backend: the service has none, which refuses clients, or has none on this node. */
static __always_inline enum drop_reason missing_backend(const struct service *service)
{
	return service->count ? DROP_NO_LOCAL_BACKEND : DROP_NO_BACKEND;
}

/*
 * The slot of the candidate that a hash, or a random number, chooses. There must be one. BACKEND_SLOT_NONE: the table is
 * missing.
 */
static __always_inline __u32 backend_slot(const struct candidates *from, __u32 revision, __u32 hash)
{
	struct backend_key key = { .revision = revision };
	const struct table_block *block;

	if (!from->table)
		return from->first + hash % from->count;
	hash &= from->table - 1;
	key.slot = from->block + hash / TABLE_BLOCK;
	block = bpf_map_lookup_elem(&backend_lut, &key);
	return block ? block->slots[hash % TABLE_BLOCK] : BACKEND_SLOT_NONE;
}

/* Copies the address and port of a service's backend in a slot; false if it is missing. */
static __always_inline bool backend_read(const struct service *service, __u32 slot, union addr *addr, __be16 *port)
{
	struct backend_key key = { .revision = service->revision, .slot = slot };
	const struct backend *row;

	if (slot < FIRST_BACKENDS && service->first_port[slot]) {
		addr_from_v4(addr, service->first_addr[slot]);
		*port = service->first_port[slot];
		return true;
	}
	row = bpf_map_lookup_elem(&backends, &key);
	if (!row)
		return false;
	*addr = row->addr;
	*port = row->port;
	return true;
}

/* A search for a backend in a revision, from a slot on. */
struct backend_search {
	union addr addr;
	__u32 revision;
	__u32 slot; /* the last one that was looked at */
	__u32 first;
	__be16 port;
	__u16 found;
};

static long search_backend(__u32 i, struct backend_search *s)
{
	struct backend_key key = { .revision = s->revision, .slot = s->first + i };
	const struct backend *row = bpf_map_lookup_elem(&backends, &key);

	s->slot = key.slot;
	s->found = row && row->port == s->port && addr_equal(&row->addr, &s->addr);
	return s->found;
}

#endif
