/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_CT_H
#define MUSTANG_CT_H

#include <asm-generic/errno-base.h>

#include "filter.h"
#include "verdict.h"

/* A connection under construction. */
struct ct_new {
	struct tuple from; /* the first packet as the client sends it */
	struct tuple to;   /* the first packet as the backend receives it */
	__u32 service;
	__u32 revision;
	__u32 flags; /* enum ct_flag */
	/* The paths into the pods at both ends, and their endpoints; 0 where there is none. */
	struct ep_path backend_path, client_path;
	__u32 backend, client;
	__u64 fence; /* target of the atomic operation that serves as a barrier */
	/* A row of the table, before it is stored. */
	struct tuple key;
	struct ct_entry row;
};

/* Room for one new connection on each CPU: it does not fit on the stack. Packet programs do not interrupt each other. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ct_new);
} ct_scratch SEC(".maps");

/* The service that a packet is sent to, or NULL. Services at loopback addresses are for sockets only. */
static __always_inline struct service *service_lookup(const struct tuple *t)
{
	struct service_key key = { .addr = t->daddr, .port = t->dport, .proto = t->proto };
	struct service *service = bpf_map_lookup_elem(&services, &key);

	return service && !(service->flags & SERVICE_LOOPBACK) ? service : NULL;
}

/* The sum to add to a checksum when words change, as bpf_csum_diff() returns it, which is a call. */
static __always_inline __u32 words_diff(const __be32 *from, const __be32 *to, int count)
{
	__u64 sum = 0;

	for (int i = 0; i < count; i++)
		sum += (__u64)(__u32)~from[i] + to[i];
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (__u32)sum + (__u32)(sum >> 32);
}

/* Completes n->row, which translates n->key to n->row.to. The checksum sums are computed once, not for each packet. */
static __always_inline void ct_fill_row(struct ct_new *n, __u32 direction)
{
	struct tuple *from = &n->key, *to = &n->row.to;

	n->row.addr_diff = words_diff((__be32 *)&from->saddr, (__be32 *)&to->saddr, 8);
	n->row.port_diff = 0;
	if (from->sport != to->sport || from->dport != to->dport)
		n->row.port_diff = words_diff((__be32 *)&from->sport, (__be32 *)&to->sport, 1);
	n->row.service = n->service;
	n->row.revision = n->revision;
	n->row.flags = n->flags | direction;
	n->row.path = direction & CT_FORWARD ? n->backend_path : n->client_path;
}

/*
 * Stores the reply direction. If another connection has the same one, the source port is changed until it is free: two
 * connections collide if a client uses one port for two services that share a backend.
 */
static __always_inline struct outcome ct_store_reply(struct ct_new *n)
{
	enum metric metric = METRIC_NEW_CONNECTION;

	n->row.to = tuple_reverse(&n->from);
	for (int i = 0; i < PORT_TRIES; i++) {
		struct ct_entry *taken;
		long err;

		n->key = tuple_reverse(&n->to);
		ct_fill_row(n, 0);
		err = bpf_map_update_elem(&connections, &n->key, &n->row, BPF_NOEXIST);
		if (err == -EEXIST) {
			taken = bpf_map_lookup_elem(&connections, &n->key);
			if (!taken)
				continue; /* another CPU deleted it just now */
			if (tuple_equal(&taken->to, &n->row.to))
				err = bpf_map_update_elem(&connections, &n->key, &n->row, BPF_ANY);
		}
		if (!err)
			return outcome_translate(metric);
		if (err != -EEXIST)
			return outcome_drop(DROP_TABLE_FULL);
		metric = METRIC_PORT_CHANGED;
		n->to.sport = bpf_htons(PORT_FIRST + bpf_get_prandom_u32() % (0x10000 - PORT_FIRST));
	}
	return outcome_drop(DROP_PORT_EXHAUSTED);
}

/* Deletes both directions of n. */
static __always_inline void ct_delete(struct ct_new *n)
{
	bpf_map_delete_elem(&connections, &n->from);
	n->key = tuple_reverse(&n->to);
	bpf_map_delete_elem(&connections, &n->key);
	filter_change();
}

/* Stores in the map connected that connections refer to the address; false if the map is full. */
static __always_inline bool ep_mark_connected(struct endpoint *endpoint, const union addr *addr)
{
	__u32 one = 1;

	if (!endpoint || endpoint->connected)
		return true;
	if (bpf_map_update_elem(&connected, addr, &one, BPF_ANY))
		return false;
	endpoint->connected = 1;
	return true;
}

/* Whether the endpoint with the id, if there is one, still has the address. */
static __always_inline bool ep_alive(const union addr *addr, __u32 id)
{
	const struct endpoint *endpoint;

	if (!id)
		return true;
	endpoint = bpf_map_lookup_elem(&endpoints, addr);
	return endpoint && endpoint->id == id;
}

/* Whether the service of a UDP connection still has the same backends. TCP connections outlive a change. */
static __always_inline bool ct_service_unchanged(const struct ct_new *n)
{
	const struct service *service;

	if (n->from.proto != IPPROTO_UDP || !n->service)
		return true;
	service = service_lookup(&n->from);
	return service && service->id == n->service && service->revision == n->revision;
}

/*
 * Whether the pods and the service of n, which is stored, still exist. User space deletes the row of a pod or a service
 * first and its connections second, and need not wait for programs that are running: a program stores the connection
 * first and looks for the row second. With a barrier between the two steps on both sides (system calls, in user space),
 * one side sees the other's change. The next packet makes a connection anew that was deleted without need.
 */
static __always_inline bool ct_still_valid(struct ct_new *n)
{
	full_barrier(&n->fence);
	return ep_alive(&n->from.saddr, n->client) && ep_alive(&n->to.daddr, n->backend) && ct_service_unchanged(n);
}

/* Stores both directions of n. */
static __always_inline struct outcome ct_store(struct ct_new *n)
{
	struct outcome outcome;

	filter_add(&n->from.daddr, n->from.dport, n->from.proto);
	filter_add(&n->to.daddr, n->to.dport, n->to.proto);
	outcome = ct_store_reply(n);
	if (outcome.verdict == VERDICT_DROP) {
		filter_change(); /* each try may have evicted a row */
		return outcome;
	}
	n->key = n->from;
	n->row.to = n->to;
	ct_fill_row(n, CT_FORWARD);
	if (bpf_map_update_elem(&connections, &n->key, &n->row, BPF_ANY)) {
		ct_delete(n);
		return outcome_drop(DROP_TABLE_FULL);
	}
	filter_change();
	if (ct_still_valid(n))
		return outcome;
	ct_delete(n);
	return outcome_drop(DROP_BACKEND_MISSING);
}

/*
 * Completes n for a client that came in by an uplink. If the request bypasses the stack, so does the reply: to the device
 * and MAC address that the request came from. Otherwise the stack has seen the request, and must see the reply.
 */
static __always_inline void ct_locate_uplink(struct ct_new *n, const struct endpoint *backend,
					     const struct ep_path *uplink)
{
	n->flags |= CT_UPLINK;
	if (!backend)
		return;
	if (backend->path.flags & ENDPOINT_EGRESS) {
		n->client_path = *uplink;
	} else if (backend->segment == uplink->ifindex) {
		n->client_path = *uplink;
		n->flags |= CT_SEGMENT;
	}
}

/* Finds the pods at both ends of n. False if the map connected is full. */
static __always_inline bool ct_locate(struct ct_new *n, const struct ep_path *uplink)
{
	struct endpoint *client = bpf_map_lookup_elem(&endpoints, &n->from.saddr);
	struct endpoint *backend = bpf_map_lookup_elem(&endpoints, &n->to.daddr);

	if (addr_equal(&n->from.saddr, &n->to.daddr) || (client && backend && client->id == backend->id)) {
		/* A pod drops a packet from its own address as forged, and would reply over loopback. */
		n->to.saddr = n->from.daddr;
		n->flags |= CT_HAIRPIN;
	}
	if (client) {
		n->client = client->id;
		n->client_path = client->path;
	}
	if (backend) {
		n->backend = backend->id;
		n->backend_path = backend->path;
	}
	if (client && backend && client->segment && client->segment == backend->segment)
		n->flags |= CT_SEGMENT;
	if (uplink)
		ct_locate_uplink(n, backend, uplink);
	return ep_mark_connected(client, &n->from.saddr) && ep_mark_connected(backend, &n->to.daddr);
}

/* Whether a repeated SYN may use the connection. */
static __always_inline bool ct_reusable(const struct ct_entry *ct, const struct service *service)
{
	return ct->revision == service->revision && ct->flags & CT_FORWARD && !(ct->flags & CT_CLOSING);
}

/*
 * Chooses a backend by a hash of the tuple: a connection whose row was evicted gets the same one again, as long as the
 * revision is the same.
 */
static __always_inline struct outcome ct_choose_backend(struct ct_new *n, __u32 count, const struct ep_path *uplink)
{
	struct backend_key key = { .revision = n->revision };
	struct backend *backend;

	if (!count)
		return outcome_drop(DROP_NO_BACKEND);
	key.slot = tuple_hash(&n->from) % count;
	backend = bpf_map_lookup_elem(&backends, &key);
	if (!backend)
		return outcome_drop(DROP_BACKEND_MISSING);
	n->to = n->from;
	n->to.daddr = backend->addr;
	n->to.dport = backend->port;
	return ct_locate(n, uplink) ? outcome_translate(METRIC_NONE) : outcome_drop(DROP_TABLE_FULL);
}

/* Opens a connection to a service, or keeps the existing one if the SYN is repeated. */
static __always_inline struct outcome ct_open_service(struct ct_new *n, const struct service *service,
						      const struct ep_path *uplink)
{
	struct ct_entry *old = bpf_map_lookup_elem(&connections, &n->from);
	struct outcome outcome;

	n->service = service->id;
	n->revision = service->revision;
	if (old && ct_reusable(old, service)) {
		n->to = old->to;
		if (!ct_locate(n, uplink))
			return outcome_drop(DROP_TABLE_FULL);
		outcome = ct_store(n);
		if (outcome.verdict == VERDICT_TRANSLATE && outcome.metric == METRIC_NEW_CONNECTION)
			outcome.metric = METRIC_KEPT_CONNECTION;
		return outcome;
	}
	if (old) {
		n->key = tuple_reverse(&old->to);
		bpf_map_delete_elem(&connections, &n->key);
		filter_change();
	}
	outcome = ct_choose_backend(n, service->count, uplink);
	return outcome.verdict == VERDICT_DROP ? outcome : ct_store(n);
}

/*
 * A packet sent to a backend itself, from a port that the client uses or used through a service: the reply would be taken
 * for that of the service. A connection that has ended is deleted; otherwise the packet gets another source port.
 */
static __always_inline struct outcome ct_open_direct(struct ct_new *n)
{
	struct ct_entry *forward = bpf_map_lookup_elem(&connections, &n->from), *taken;
	struct tuple *reply = &n->row.to;

	if (forward && forward->flags & CT_FORWARD && !forward->service) {
		n->row = *forward;
		return outcome_translate(METRIC_KEPT_CONNECTION);
	}
	*reply = tuple_reverse(&n->from);
	taken = bpf_map_lookup_elem(&connections, reply);
	if (!taken || taken->flags & CT_FORWARD)
		return outcome_pass(METRIC_NONE);
	n->key = tuple_reverse(&taken->to);
	forward = bpf_map_lookup_elem(&connections, &n->key);
	if (!forward || (forward->flags | taken->flags) & CT_CLOSING) {
		bpf_map_delete_elem(&connections, &n->key);
		bpf_map_delete_elem(&connections, reply);
		filter_change();
		return outcome_pass(METRIC_NONE);
	}
	n->to = n->from;
	return ct_locate(n, NULL) ? ct_store(n) : outcome_drop(DROP_TABLE_FULL);
}

/*
 * Opens the connection of a packet that may be its first. uplink is where a packet from outside came in, otherwise NULL;
 * packets from outside open connections to services only. Returns a packed outcome; after VERDICT_TRANSLATE both
 * directions are in the table, and ct_opened() returns that of the packet.
 */
__noinline int ct_open(const struct tuple *t, const struct ep_path *uplink)
{
	__u32 zero = 0;
	struct ct_new *n = bpf_map_lookup_elem(&ct_scratch, &zero);
	struct service *service;

	if (!t || !n)
		return outcome_pack(outcome_pass(METRIC_NONE));
	__builtin_memset(n, 0, sizeof(*n));
	n->from = *t;
	service = service_lookup(t);
	if (service)
		return outcome_pack(ct_open_service(n, service, uplink));
	return outcome_pack(uplink ? outcome_pass(METRIC_NONE) : ct_open_direct(n));
}

/* The row of the connection that ct_open() has just opened on this CPU. */
static __always_inline struct ct_entry *ct_opened(void)
{
	__u32 zero = 0;
	struct ct_new *n = bpf_map_lookup_elem(&ct_scratch, &zero);

	return n ? &n->row : NULL;
}

#endif
