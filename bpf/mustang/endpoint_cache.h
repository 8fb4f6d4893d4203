/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_ENDPOINT_CACHE_H
#define MUSTANG_ENDPOINT_CACHE_H

#include "bloom.h"

/*
 * Copies of rows that a CPU has just read. A look-up in a hash table is a call; one in an array is a few instructions. Each
 * change of connections or endpoints voids all copies.
 */

/* How long a copy of a row may be used. */
struct validity {
	__u64 generation; /* of node_state, before the row was read */
	__u64 second;     /* when it was read, in units of about a second */
};

/* A copy of a row of connections. */
struct cached_conn {
	struct tuple key;
	struct validity validity;
	struct ct_entry row;
};

/* A copy of the path of a row of endpoints, or of a row of remotes: an address is of a pod here, or elsewhere. */
struct cached_endpoint {
	union addr key;
	struct validity validity;
	struct ep_path path;
	__u32 segment;
	__u32 id; /* 0: the row does not exist */
	/* Its rule sets. */
	__u32 egress;
	__u32 ingress;
	__u32 reserved;
	__u64 netns; /* the cookie of its network namespace */
	struct remote remote;
};

/* That packets from an address may pass at a device of a pod without endpoint. */
struct cached_source {
	union addr from;
	struct validity validity;
	__u64 netns;
	__u32 ifindex;
	__u8 mac[ETH_ALEN];
	__u8 reserved[6];
};

/*
 * One slot of the caches; each cache has its own hash. A copy of a connection serves for about a second, so that its slot in
 * slots knows when a packet was last seen.
 */
struct cache {
	struct cached_conn conn;
	struct cached_endpoint endpoint;
	struct cached_source source;
};

_Static_assert(sizeof(struct cache) == 144 + 152 + 56, "hidden padding");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << CACHE_LOG);
	__type(key, __u32);
	__type(value, struct cache);
} cache SEC(".maps");

/* The validity of a copy that is read now. generation is NULL if node_state is missing, which cannot occur. */
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

/* Begins a copy: rows read from here on are at least as new as the validity. */
static __always_inline void begin_copy(struct validity *copy, const struct validity *now)
{
	*copy = *now;
	full_barrier(&copy->generation);
}

/* Copies the row of the range that has the address, if the device there has programs: they deliver what comes back. */
static __noinline int remote_copy(const union addr *addr, struct remote *copy)
{
	struct remote_key key = { .length = 128, .addr = *addr };
	const struct remote *remote = bpf_map_lookup_elem(&remotes, &key);

	if (remote && device_of(remote->ifindex, DEVICE_UPLINK))
		*copy = *remote;
	return 0;
}

/* A copy of the row of the pod that has the address; absent if no pod of this node has it. NULL: none, which cannot be. */
static __always_inline const struct cached_endpoint *endpoint_lookup(const union addr *addr)
{
	const struct node_state *node = node_state_row();
	__u32 slot = (addr->halves[1] ^ addr->halves[0]) * HASH_MULTIPLIER >> (64 - CACHE_LOG);
	struct cache *cache_row = bpf_map_lookup_elem(&cache, &slot);
	struct cached_endpoint *ep;
	struct validity now;

	if (unlikely(!cache_row || !node))
		return NULL;
	ep = &cache_row->endpoint;
	now = validity_now(&node->rows);
	if (unlikely(!is_valid(&ep->validity, &now) || !addr_equal(&ep->key, addr))) {
		begin_copy(&ep->validity, &now);
		struct endpoint *endpoint = bpf_map_lookup_elem(&endpoints, addr);

		ep->key = *addr;
		ep->id = 0;
		if (endpoint) {
			ep->path = endpoint->path;
			ep->segment = endpoint->segment;
			ep->id = endpoint->id;
			ep->netns = endpoint->netns;
			ep->egress = endpoint->egress;
			ep->ingress = endpoint->ingress;
		}
		ep->remote.ifindex = 0;
		if (!endpoint && node->remotes)
			remote_copy(addr, &ep->remote);
	}
	return ep;
}

/* The path into the pod that has the address; NULL if no pod of this node has it. */
static __always_inline const struct ep_path *endpoint_path(const union addr *addr)
{
	const struct cached_endpoint *ep = endpoint_lookup(addr);

	return ep && ep->id ? &ep->path : NULL;
}

/* The way to the node whose pod has the address; NULL: none is known. */
static __always_inline const struct remote *remote_of(const union addr *addr)
{
	const struct cached_endpoint *ep = endpoint_lookup(addr);

	return ep && !ep->id && ep->remote.ifindex ? &ep->remote : NULL;
}

#endif
