/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_CONNECT_H
#define MUSTANG_CONNECT_H

#include <asm-generic/errno-base.h>

#include "maps.h"
#include "metrics.h"

/* A connection that is being made. */
struct opening {
	struct tuple from; /* the first packet as the client sends it */
	struct tuple to;   /* as the backend is to get it */
	__u32 service;
	__u32 revision;
	__u32 flags;
	/* The ways into the pods at both ends. */
	struct entrance into_backend, into_client;
	/* The endpoints at both ends; 0 where there is none. */
	__u32 backend, client;
	/* Only what it takes to write it counts. */
	__u64 fence;
	/* Scratch: a row of the table. */
	struct tuple key;
	struct connection row;
};

/* Room for one on each CPU, which the stack has not. Packets' programs don't interrupt each other. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct opening);
} openings SEC(".maps");

/* The service that a packet calls, or NULL. A loopback address on a link is nobody's. */
static __always_inline struct service *service_of(const struct tuple *t)
{
	struct service_key key = { .addr = t->daddr, .port = t->dport, .proto = t->proto };
	struct service *service = bpf_map_lookup_elem(&services, &key);

	return service && !(service->flags & SERVICE_LOOPBACK) ? service : NULL;
}

/* Makes o->row lead from o->key to o->row.to. The sums are worked out here, once, and not for each packet. */
static __always_inline void complete_row(struct opening *o, __u32 direction)
{
	struct tuple *from = &o->key, *to = &o->row.to;

	o->row.addr_diff = bpf_csum_diff((__be32 *)&from->saddr, 32, (__be32 *)&to->saddr, 32, 0);
	o->row.port_diff = 0;
	if (from->sport != to->sport || from->dport != to->dport)
		o->row.port_diff = bpf_csum_diff((__be32 *)&from->sport, 4, (__be32 *)&to->sport, 4, 0);
	o->row.service = o->service;
	o->row.revision = o->revision;
	o->row.flags = o->flags | direction;
	o->row.entrance = direction & CONNECTION_FORWARD ? o->into_backend : o->into_client;
}

/*
 * Stores the way back, unless another connection has it: then the source port is changed until one is free. The ways
 * back of two connections are the same where a client uses one port for two services that share a backend.
 */
static __always_inline enum metric reserve_way_back(struct opening *o)
{
	enum metric metric = METRIC_NEW_CONNECTION;

	o->row.to = tuple_reverse(&o->from);
	for (int i = 0; i < PORT_TRIES; i++) {
		struct connection *taken;
		long err;

		o->key = tuple_reverse(&o->to);
		taken = bpf_map_lookup_elem(&connections, &o->key);
		if (!taken || tuple_equal(&taken->to, &o->row.to)) {
			complete_row(o, 0);
			err = bpf_map_update_elem(&connections, &o->key, &o->row, taken ? BPF_ANY : BPF_NOEXIST);
			if (!err)
				return metric;
			if (err != -EEXIST)
				return METRIC_DROP_TABLE_FULL;
			/* Another CPU was faster: maybe with this same connection. */
			continue;
		}
		metric = METRIC_PORT_CHANGED;
		o->to.sport = bpf_htons(PORT_FIRST + bpf_get_prandom_u32() % (0x10000 - PORT_FIRST));
	}
	return METRIC_DROP_PORT_EXHAUSTED;
}

/* Forgets both directions of o. */
static __always_inline void forget(struct opening *o)
{
	bpf_map_delete_elem(&connections, &o->from);
	o->key = tuple_reverse(&o->to);
	bpf_map_delete_elem(&connections, &o->key);
}

/* Says that connections know the pod with the address; false if there is no room to. */
static __always_inline bool announce(struct endpoint *endpoint, const union addr *addr)
{
	__u32 one = 1;

	if (!endpoint || endpoint->connected)
		return true;
	if (bpf_map_update_elem(&connected, addr, &one, BPF_ANY))
		return false;
	endpoint->connected = 1;
	return true;
}

static __always_inline bool remains(const union addr *addr, __u32 id)
{
	const struct endpoint *endpoint;

	if (!id)
		return true;
	endpoint = bpf_map_lookup_elem(&endpoints, addr);
	return endpoint && endpoint->id == id;
}

/* Whether a datagram's service has the backends still that one was chosen from. TCP's connections outlive that. */
static __always_inline bool still_served(const struct opening *o)
{
	const struct service *service;

	if (o->from.proto != IPPROTO_UDP || !o->service)
		return true;
	service = service_of(&o->from);
	return service && service->id == o->service && service->revision == o->revision;
}

/*
 * Whether nothing that o was made from went away while it was being stored. This is why nobody waits for the programs
 * who deletes a pod or a service: that one first deletes its row and then looks for connections, and this here first
 * stores the connection and then looks for the row. With a barrier in between on both sides (there: system calls), one of
 * the two finds the other's doing. What is deleted in vain is made anew by the next packet.
 */
static __always_inline bool still_wanted(struct opening *o)
{
	__u64 one = 1;

	/* As with value-returning atomics of the kernel, nothing passes this. */
	asm volatile("%0 = atomic_fetch_add((u64 *)(%1 + 0), %0)" : "+r"(one) : "r"(&o->fence) : "memory");
	return remains(&o->from.saddr, o->client) && remains(&o->to.daddr, o->backend) && still_served(o);
}

/* Stores both directions of o. */
static __always_inline enum metric store_connection(struct opening *o)
{
	enum metric metric = reserve_way_back(o);

	if (metric != METRIC_NEW_CONNECTION && metric != METRIC_PORT_CHANGED)
		return metric;
	o->key = o->from;
	o->row.to = o->to;
	complete_row(o, CONNECTION_FORWARD);
	if (bpf_map_update_elem(&connections, &o->key, &o->row, BPF_ANY)) {
		forget(o);
		return METRIC_DROP_TABLE_FULL;
	}
	if (still_wanted(o))
		return metric;
	forget(o);
	return METRIC_DROP_BACKEND_MISSING;
}

/*
 * Fits o to a client that came in by an uplink. Where the backend is reached past the stack, answers go the same way back:
 * to the device and the MAC that the packet came by. Elsewhere the stack has seen the request, and is to see the answer.
 */
static __always_inline void place_outside(struct opening *o, const struct endpoint *backend,
					  const struct entrance *arrival)
{
	o->flags |= CONNECTION_UPLINK;
	if (!backend)
		return;
	if (backend->entrance.flags & ENDPOINT_EGRESS) {
		o->into_client = *arrival;
	} else if (backend->segment == arrival->ifindex) {
		o->into_client = *arrival;
		o->flags |= CONNECTION_SEGMENT;
	}
}

/* Fits o to where client and backend are. False if there is no room. */
static __always_inline bool place(struct opening *o, const struct entrance *arrival)
{
	struct endpoint *client = bpf_map_lookup_elem(&endpoints, &o->from.saddr);
	struct endpoint *backend = bpf_map_lookup_elem(&endpoints, &o->to.daddr);

	if (addr_equal(&o->from.saddr, &o->to.daddr) || (client && backend && client->id == backend->id)) {
		/* A pod would take a packet from its own address for forged, and answer it over loopback. */
		o->to.saddr = o->from.daddr;
		o->flags |= CONNECTION_HAIRPIN;
	}
	if (client) {
		o->client = client->id;
		o->into_client = client->entrance;
	}
	if (backend) {
		o->backend = backend->id;
		o->into_backend = backend->entrance;
	}
	if (client && backend && client->segment && client->segment == backend->segment)
		o->flags |= CONNECTION_SEGMENT;
	if (arrival)
		place_outside(o, backend, arrival);
	return announce(client, &o->from.saddr) && announce(backend, &o->to.daddr);
}

/* Whether a connection may go on with this service, its SYN being repeated. */
static __always_inline bool still_valid(const struct connection *c, const struct service *service)
{
	return c->revision == service->revision && c->flags & CONNECTION_FORWARD && !(c->flags & CONNECTION_CLOSING);
}

/*
 * The backend is a function of the tuple and the revision. So a connection whose entry was evicted finds its backend
 * again, as long as the backends are the same ones.
 */
static __always_inline enum metric choose_backend(struct opening *o, __u32 count, const struct entrance *arrival)
{
	struct backend_key key = { .revision = o->revision };
	struct backend *backend;

	if (!count)
		return METRIC_DROP_NO_BACKEND;
	key.slot = tuple_hash(&o->from) % count;
	backend = bpf_map_lookup_elem(&backends, &key);
	if (!backend)
		return METRIC_DROP_BACKEND_MISSING;
	o->to = o->from;
	o->to.daddr = backend->addr;
	o->to.dport = backend->port;
	return place(o, arrival) ? METRIC_NONE : METRIC_DROP_TABLE_FULL;
}

/* Makes the connection that a packet to a service opens, or goes on with the one that is there. */
static __always_inline enum metric open_service(struct opening *o, const struct service *service,
						const struct entrance *arrival)
{
	struct connection *old = bpf_map_lookup_elem(&connections, &o->from);
	enum metric metric;

	o->service = service->id;
	o->revision = service->revision;
	if (old && still_valid(old, service)) {
		o->to = old->to;
		if (!place(o, arrival))
			return METRIC_DROP_TABLE_FULL;
		metric = store_connection(o);
		return metric == METRIC_NEW_CONNECTION ? METRIC_KEPT_CONNECTION : metric;
	}
	if (old) {
		o->key = tuple_reverse(&old->to);
		bpf_map_delete_elem(&connections, &o->key);
	}
	metric = choose_backend(o, service->count, arrival);
	return metric == METRIC_NONE ? store_connection(o) : metric;
}

/*
 * A packet straight to a backend, from a port that the same client used or uses through a service: what comes back
 * would be taken for the service's. A connection that has ended is forgotten; otherwise this one gets another port.
 */
static __always_inline enum metric open_direct(struct opening *o)
{
	struct connection *forward = bpf_map_lookup_elem(&connections, &o->from), *taken;
	struct tuple *back = &o->row.to;

	if (forward && forward->flags & CONNECTION_FORWARD && !forward->service)
		return METRIC_KEPT_CONNECTION;
	*back = tuple_reverse(&o->from);
	taken = bpf_map_lookup_elem(&connections, back);
	if (!taken || taken->flags & CONNECTION_FORWARD)
		return METRIC_NONE;
	o->key = tuple_reverse(&taken->to);
	forward = bpf_map_lookup_elem(&connections, &o->key);
	if (!forward || (forward->flags | taken->flags) & CONNECTION_CLOSING) {
		bpf_map_delete_elem(&connections, &o->key);
		bpf_map_delete_elem(&connections, back);
		return METRIC_NONE;
	}
	o->to = o->from;
	return place(o, NULL) ? store_connection(o) : METRIC_DROP_TABLE_FULL;
}

/*
 * Opens the connection of a packet that may be the first of one. METRIC_NONE: there is nothing to translate; a drop's
 * reason; or what was done, and the table has the connection. arrival: where the packet came in, if that is an uplink;
 * then only services are looked at.
 */
__noinline int open_connection(const struct tuple *t, const struct entrance *arrival)
{
	__u32 zero = 0;
	struct opening *o = bpf_map_lookup_elem(&openings, &zero);
	struct service *service;

	if (!t || !o)
		return METRIC_NONE;
	__builtin_memset(o, 0, sizeof(*o));
	o->from = *t;
	service = service_of(t);
	if (service)
		return open_service(o, service, arrival);
	return arrival ? METRIC_NONE : open_direct(o);
}

#endif
