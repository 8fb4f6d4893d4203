/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_FILTER_H
#define MUSTANG_FILTER_H

#include "maps.h"

/* The bit of an address and port. User space computes the same (filter.go); a test compares them. */
static __always_inline __u32 filter_bit(const union addr *addr, __be16 port, __u8 proto)
{
	__u64 hash = addr->halves[0] * FILTER_MULTIPLIER ^ addr->halves[1] ^ ((__u32)port << 8 | proto);

	return hash * FILTER_MULTIPLIER >> (64 - FILTER_LOG);
}

/* The row of the filter. It is always there; the verifier wants the callers to ask. */
static __always_inline struct filter *filter_row(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&filter, &zero);
}

/* Whether a service or a connection may have an address and port. */
static __always_inline bool filter_has(const union addr *addr, __be16 port, __u8 proto)
{
	const struct filter *row = filter_row();
	__u32 bit = filter_bit(addr, port, proto);

	return !row || row->words[bit / 64] >> bit % 64 & 1;
}

/* Adds an address and port. */
static __always_inline void filter_add(const union addr *addr, __be16 port, __u8 proto)
{
	struct filter *row = filter_row();
	__u32 bit = filter_bit(addr, port, proto);
	__u64 mask = 1ULL << bit % 64;

	if (row && !(row->words[bit / 64] & mask))
		__sync_fetch_and_or(&row->words[bit / 64], mask);
}

/*
 * Adds to *place. A full barrier too, since the operation returns a value: the compiler would choose one that returns none
 * and that some processors, such as arm64's, do not order.
 */
static __always_inline void ordered_add(__u64 *place, __u64 value)
{
	asm volatile("%0 = atomic_fetch_add((u64 *)(%1 + 0), %0)" : "+r"(value) : "r"(place) : "memory");
}

static __always_inline void full_barrier(__u64 *place)
{
	ordered_add(place, 0);
}

/* The place of a tuple among the copies. */
static __always_inline __u32 flow_index(const struct tuple *t)
{
	__u64 hash =
		(t->saddr.halves[1] ^ t->saddr.halves[0] << 1) + 3 * (t->daddr.halves[1] ^ t->daddr.halves[0] << 1);

	return (hash ^ ((__u32)t->dport << 16 | t->sport)) * FILTER_MULTIPLIER >> (64 - COPIES_LOG);
}

/* Voids the copies of a row of connections. To be called after each change of it: who finds the new generation finds it. */
static __always_inline void filter_change(const struct tuple *t)
{
	struct filter *row = filter_row();

	if (row)
		ordered_add(&row->generations[flow_index(t) % GENERATIONS], 1);
}

/* Whether a service or a connection may have the destination of t. */
static __always_inline bool filter_has_destination(const struct tuple *t)
{
	return filter_has(&t->daddr, t->dport, t->proto);
}

/* Whether a connection may have t as the tuple of its replies. */
static __always_inline bool filter_has_source(const struct tuple *t)
{
	return filter_has(&t->saddr, t->sport, t->proto);
}

#endif
