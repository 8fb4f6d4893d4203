/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_BLOOM_H
#define MUSTANG_BLOOM_H

#include "maps.h"

/* The bit of an address and port. User space computes the same (node_state.go); a test compares them. */
static __always_inline __u32 bloom_bit(const union addr *addr, __be16 port, __u8 proto)
{
	__u64 hash = addr->halves[0] * HASH_MULTIPLIER ^ addr->halves[1] ^ ((__u32)port << 8 | proto);

	return hash * HASH_MULTIPLIER >> (64 - BLOOM_LOG);
}

/* Whether a service or a connection may have an address and port. */
static __always_inline bool bloom_has(const union addr *addr, __be16 port, __u8 proto)
{
	const struct node_state *node = node_state_row();
	__u32 bit = bloom_bit(addr, port, proto);

	return !node || node->bloom[bit / 64] >> bit % 64 & 1;
}

/* Adds an address and port. */
static __always_inline void bloom_add(const union addr *addr, __be16 port, __u8 proto)
{
	struct node_state *node = node_state_row();
	__u32 bit = bloom_bit(addr, port, proto);
	__u64 mask = 1ULL << bit % 64;

	if (node && !(node->bloom[bit / 64] & mask))
		__sync_fetch_and_or(&node->bloom[bit / 64], mask);
}

/*
 * Adds to *place. A full barrier too, since the operation returns a value: otherwise the compiler would choose one that
 * some processors, such as arm64's, do not order.
 */
static __always_inline void ordered_add(__u64 *place, __u64 value)
{
	asm volatile("%0 = atomic_fetch_add((u64 *)(%1 + 0), %0)" : "+r"(value) : "r"(place) : "memory");
}

static __always_inline void full_barrier(__u64 *place)
{
	ordered_add(place, 0);
}

/* The slot of a tuple in the cache of connections. */
static __always_inline __u32 conn_cache_index(const struct tuple *t)
{
	__u64 hash =
		(t->saddr.halves[1] ^ t->saddr.halves[0] << 1) + 3 * (t->daddr.halves[1] ^ t->daddr.halves[0] << 1);

	return (hash ^ ((__u32)t->dport << 16 | t->sport)) * HASH_MULTIPLIER >> (64 - CACHE_LOG);
}

/* Voids the copies of a row of connections. To be called after each change of it: who finds the new generation finds it. */
static __always_inline void conn_cache_invalidate(const struct tuple *t)
{
	struct node_state *node = node_state_row();

	if (node)
		ordered_add(&node->generations[conn_cache_index(t) % GENERATIONS], 1);
}

/* Whether a service or a connection may have the destination of t. */
static __always_inline bool bloom_has_destination(const struct tuple *t)
{
	return bloom_has(&t->daddr, t->dport, t->proto);
}

/* Whether a connection may have t as the tuple of its replies. */
static __always_inline bool bloom_has_source(const struct tuple *t)
{
	return bloom_has(&t->saddr, t->sport, t->proto);
}

#endif
