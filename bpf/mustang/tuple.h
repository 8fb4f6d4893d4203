/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_TUPLE_H
#define MUSTANG_TUPLE_H

#include "consts.h"

/* An IPv6 address, or an IPv4 address as ::ffff:a.b.c.d. In network order. */
union addr {
	__u8 bytes[16];
	__be32 words[4];
	/* Halves. Bytes that are read eight at a time must be written so, or the processor waits for the writes. */
	__u64 halves[2] __attribute__((packed, aligned(4)));
};

/* Addresses and ports of a packet. Ports are in network order, and 0 if the protocol has none. */
struct tuple {
	union addr saddr;
	union addr daddr;
	__be16 sport;
	__be16 dport;
	__u8 proto;
	__u8 pad[3];
} __attribute__((aligned(8)));

_Static_assert(sizeof(union addr) == 16, "an address is 16 bytes");
_Static_assert(sizeof(struct tuple) == 40, "hidden padding");

static __always_inline void addr_from_v4(union addr *addr, __be32 v4)
{
	addr->halves[0] = 0;
	addr->halves[1] = (__u64)v4 << 32 | bpf_htonl(0xffff);
}

static __always_inline void addr_from_v6(union addr *addr, const struct in6_addr *v6)
{
	const union addr *from = (const union addr *)v6;

	addr->halves[0] = from->halves[0];
	addr->halves[1] = from->halves[1];
}

static __always_inline bool addr_is_v4(const union addr *addr)
{
	return !addr->halves[0] && addr->words[2] == bpf_htonl(0xffff);
}

/* Whether an IPv6 address holds on its link alone: fe80::/10 (RFC 4291). */
static __always_inline bool is_link_local(const union addr *addr)
{
	return addr->bytes[0] == 0xfe && (addr->bytes[1] & 0xc0) == 0x80;
}

static __always_inline bool addr_equal(const union addr *a, const union addr *b)
{
	return a->halves[1] == b->halves[1] && a->halves[0] == b->halves[0];
}

/* Eight bytes of a tuple, which is aligned to them; an address elsewhere is not, and is read four bytes at a time. */
typedef __u64 __attribute__((may_alias)) tuple_word;

static __always_inline bool tuple_equal(const struct tuple *a, const struct tuple *b)
{
	const tuple_word *x = (const tuple_word *)a, *y = (const tuple_word *)b;

	return x[3] == y[3] && x[1] == y[1] && x[2] == y[2] && x[0] == y[0] && a->sport == b->sport &&
	       a->dport == b->dport && a->proto == b->proto;
}

/* The tuple of replies to a packet of tuple t. */
static __always_inline struct tuple tuple_reverse(const struct tuple *t)
{
	struct tuple reverse = {
		.saddr = t->daddr,
		.daddr = t->saddr,
		.sport = t->dport,
		.dport = t->sport,
		.proto = t->proto,
	};
	return reverse;
}

/* Fills the key of a look-up of the socket that receives packets of a tuple, and returns its size. */
static __always_inline __u32 tuple_socket(const struct tuple *t, struct bpf_sock_tuple *key)
{
	if (addr_is_v4(&t->daddr)) {
		key->ipv4.saddr = t->saddr.words[3];
		key->ipv4.daddr = t->daddr.words[3];
		key->ipv4.sport = t->sport;
		key->ipv4.dport = t->dport;
		return sizeof(key->ipv4);
	}
	for (int i = 0; i < 4; i++) {
		key->ipv6.saddr[i] = t->saddr.words[i];
		key->ipv6.daddr[i] = t->daddr.words[i];
	}
	key->ipv6.sport = t->sport;
	key->ipv6.dport = t->dport;
	return sizeof(key->ipv6);
}

/*
 * A hash of t: the step of FNV-1 over words, then the finalizer of MurmurHash3, which spreads neighbouring ports over all
 * slots.
 */
static __always_inline __u32 tuple_hash(const struct tuple *t)
{
	__u32 hash = t->proto;

	for (int i = 0; i < 4; i++) {
		hash = hash * 0x01000193 ^ t->saddr.words[i];
		hash = hash * 0x01000193 ^ t->daddr.words[i];
	}
	hash = hash * 0x01000193 ^ ((__u32)t->sport << 16 | t->dport);
	hash ^= hash >> 16;
	hash *= 0x85ebca6b;
	hash ^= hash >> 13;
	hash *= 0xc2b2ae35;
	return hash ^ hash >> 16;
}

#endif
