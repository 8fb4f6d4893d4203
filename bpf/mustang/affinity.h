/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_AFFINITY_H
#define MUSTANG_AFFINITY_H

#include "choice.h"

/* Session affinity. As in maps.h, these structs are the layout of pinned maps. */

#define NS_PER_SECOND 1000000000ULL

/* A client of a service: an address or, for sockets, the cookie of their network namespace. */
struct affinity_key {
	__u32 service;
	union addr client;
};

/* The backend that a client has got. */
struct affinity {
	union addr addr;
	__be16 port;
	__u16 slot; /* of the revision */
	__u32 revision;
	__u64 seen; /* when the client last opened a connection: ns of CLOCK_MONOTONIC */
};

_Static_assert(sizeof(struct affinity_key) == 20, "hidden padding");
_Static_assert(sizeof(struct affinity) == 32, "hidden padding");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct affinity_key);
	__type(value, struct affinity);
} affinities SEC(".maps");

/* Brings the slot of a client's backend up to date; false if the backend may not get new connections. */
static __always_inline bool affinity_valid(struct affinity *row, const struct candidates *from, __u32 revision)
{
	struct backend_search search = {
		.addr = row->addr, .port = row->port, .revision = revision, .first = from->first
	};

	if (row->revision == revision)
		return row->slot - from->first < from->count;
	bpf_loop(from->count, search_backend, &search, 0);
	if (!search.found)
		return false;
	row->slot = search.slot;
	row->revision = revision;
	return true;
}

/* Notes that a client has got the backend in a slot; false if that is missing. */
static __always_inline bool affinity_store(const struct affinity_key *key, const struct service *service, __u32 slot,
					   __u64 now)
{
	struct affinity new = { .revision = service->revision, .slot = slot, .seen = now };

	if (!backend_read(service, slot, &new.addr, &new.port))
		return false;
	bpf_map_update_elem(&affinities, key, &new, BPF_ANY);
	return true;
}

/* The slot of the client's backend. If it has none, or the time-out has passed, it is the one that the hash chooses. */
static __noinline __u32 affinity_slot(const struct service *service, __u32 revision, const union addr *client,
				      __u32 hash, bool local)
{
	struct candidates from = candidates_of(service, local);
	struct affinity_key key = { .service = service->id, .client = *client };
	struct affinity *row = bpf_map_lookup_elem(&affinities, &key);
	__u64 now = bpf_ktime_get_coarse_ns();
	__u32 slot;

	if (row && row->seen + service->affinity_timeout * NS_PER_SECOND > now &&
	    affinity_valid(row, &from, revision)) {
		row->seen = now;
		return row->slot;
	}
	slot = backend_slot(&from, revision, hash);
	return affinity_store(&key, service, slot, now) ? slot : BACKEND_SLOT_NONE;
}

/* The slot of the backend for a new connection of a client. local is whether the policy for the client is local. */
static __always_inline __u32 client_slot(const struct service *service, __u32 revision, const union addr *client,
					 __u32 hash, bool local)
{
	struct candidates from = candidates_of(service, local);

	if (service->flags & SERVICE_AFFINITY)
		return affinity_slot(service, revision, client, hash, local);
	return backend_slot(&from, revision, hash);
}

#endif
