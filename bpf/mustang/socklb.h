/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_SOCKLB_H
#define MUSTANG_SOCKLB_H

#include "affinity.h"
#include "udp_backends.h"
#include "clients.h"
#include "events.h"

/* Backends tried for a datagram, if the socket already sends to the first one for another service. */
#define BACKEND_TRIES 4

/* Socket programs can interrupt each other, and packet programs them: counting must be atomic. */
static __always_inline void sk_count(__u32 metric)
{
	struct metrics *row = metrics_row();

	asm volatile("" : "+r"(metric));
	if (row && metric < METRIC_SLOTS)
		__sync_fetch_and_add(&row->count[metric], 1);
}

static __always_inline void sk_count_drop(__u32 reason)
{
	struct metrics *row = metrics_row();

	asm volatile("" : "+r"(reason));
	if (row && reason < DROP_SLOTS)
		__sync_fetch_and_add(&row->drops[reason], 1);
}

/* Emits an event of a call that was refused, or of a socket that has got its backend. */
static __noinline void sk_emit(const struct sk_request *r, enum event_kind kind, __u32 reason)
{
	struct event *event = event_begin(kind, EVENT_AT_SOCKET);

	if (!event)
		return;
	event->tuple.saddr = r->source;
	event->tuple.daddr = r->dst.addr;
	event->tuple.dport = r->dst.port;
	event->tuple.proto = r->proto;
	event->backend = r->backend.addr;
	event->backend_port = r->backend.port;
	event->netns = r->client.halves[1];
	event->reason = reason;
	event_end(event);
}

/* Copies the service of a frontend; false if there is none. */
__noinline int service_read(const struct addr_port *dst, __u32 proto, struct service *copy)
{
	if (!dst || !copy)
		return false;
#pragma clang loop unroll(disable)
	for (int i = 0; i < SERVICE_TRIES; i++) {
		struct service_key key = { .addr = dst->addr, .port = dst->port, .proto = proto };
		const struct service *row = service_find(&key);

		if (!row)
			return false;
		if (service_copy(row, &key, copy))
			return true;
	}
	return false;
}

/* Copies the requested service. Services at loopback addresses are for hosts: a pod has its own loopback. */
static __always_inline bool requested_service(const struct sk_request *r, struct service *service)
{
	return service_read(&r->dst, r->proto, service) &&
	       !(service->flags & SERVICE_LOOPBACK && r->netns_flags != NAMESPACE_HOST);
}

/* Whether the policy of the service for sockets, whose owners are in the cluster, is local. */
static __always_inline bool is_local(const struct service *service)
{
	return service->flags & SERVICE_INTERNAL_LOCAL;
}

/*
 * Whether the service serves the client. Packets of endpoints are left to the packet programs, which know its address: that
 * depends on the route. A pod without endpoint must have bound the socket. The host is served.
 */
static __always_inline struct outcome admit(const struct sk_request *r, const struct service *service)
{
	if (!(service->flags & SERVICE_SOURCE_RANGES) || r->netns_flags == NAMESPACE_HOST)
		return outcome_translate(METRIC_NONE);
	if (r->netns_flags & NAMESPACE_POD)
		return outcome_pass(METRIC_NONE);
	if ((r->source.words[3] || r->source.halves[0]) && in_source_ranges(service->revision, &r->source))
		return outcome_translate(METRIC_NONE);
	return outcome_drop(DROP_SOURCE_RANGE);
}

/*
 * What happens to a request that gets no backend. Without one on this node, the packet programs of a pod drop its
 * packets, so that it goes on trying as long as TCP does; other clients get an error.
 */
static __always_inline struct outcome without_backend(const struct sk_request *r, const struct service *service)
{
	enum drop_reason reason = missing_backend(service);

	if (reason == DROP_NO_LOCAL_BACKEND && r->netns_flags & NAMESPACE_POD)
		return outcome_pass(METRIC_NONE);
	return outcome_drop(reason);
}

/* Reads the backend in a slot; false if it is missing. */
static __always_inline bool read_backend(const struct service *service, __u32 slot, struct addr_port *backend)
{
	backend->resets = 0;
	return backend_read(service, slot, &backend->addr, &backend->port);
}

/* Chooses a backend for a connection at random. VERDICT_PASS: no service is requested. */
static __always_inline struct outcome choose_backend_connect(struct sk_request *r)
{
	struct service called, *service = &called;
	struct outcome admitted;
	__u32 revision;
	bool local;

	if (!requested_service(r, service))
		return outcome_pass(METRIC_NONE);
	admitted = admit(r, service);
	if (admitted.verdict != VERDICT_TRANSLATE)
		return admitted;
	local = is_local(service);
	if (!(local ? service->local : service->count))
		return without_backend(r, service);
	revision = service->revision;
	if (!read_backend(service, client_slot(service, revision, &r->client, bpf_get_prandom_u32(), local),
			  &r->backend))
		return outcome_drop(DROP_BACKEND_MISSING);
	r->resets = service->flags & SERVICE_RESET;
	return outcome_translate(METRIC_SOCK_CONNECT);
}

/* A hash of the socket and the service. */
static __always_inline __u32 request_hash(const struct sk_request *r)
{
	struct tuple t = { .daddr = r->dst.addr, .dport = r->dst.port, .proto = r->proto };

	t.saddr.words[0] = (__u32)r->cookie;
	t.saddr.words[1] = (__u32)(r->cookie >> 32);
	return tuple_hash(&t);
}

/*
 * Whether a datagram of the host to a service is for a socket of the host that has the port as its own and is connected to the sender. A
 * sender that is bound to no address has the one that it sends to.
 */
static __noinline int is_for_host(struct bpf_sock_addr *ctx, const struct sk_request *r)
{
	struct tuple t = { .saddr = r->source, .daddr = r->dst.addr, .dport = r->dst.port };
	struct bpf_sock_tuple key = {};
	struct bpf_sock *sk;
	__u32 size;
	bool own;

	if (!r->sk)
		return false;
	if (!t.saddr.words[3] && !t.saddr.halves[0])
		t.saddr = t.daddr;
	t.sport = bpf_htons(r->sk->src_port);
	size = tuple_socket(&t, &key);
	sk = bpf_sk_lookup_udp(ctx, &key, size, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return false;
	own = sk->state == BPF_TCP_ESTABLISHED;
	bpf_sk_release(sk);
	return own;
}

/*
 * Chooses a backend for a datagram of an unconnected socket, by a hash of socket and service. If the socket sends to that
 * backend for another service, replies would be ambiguous, and the next backend is tried. If all tried ones are taken, the
 * packet programs translate, which can change the port. A client with session affinity has one backend to try. Where there are none, replies count as the later service's.
 * VERDICT_PASS: no service is requested, or the packet programs translate.
 */
static __always_inline struct outcome choose_backend_datagram(struct bpf_sock_addr *ctx, struct sk_request *r)
{
	struct service called, *service = &called;
	__u32 count, revision, hash;
	struct outcome admitted;
	bool local;

	if (!requested_service(r, service))
		return outcome_pass(METRIC_NONE);
	if (r->netns_flags & NAMESPACE_HOST && is_for_host(ctx, r))
		return outcome_pass(METRIC_NONE);
	admitted = admit(r, service);
	if (admitted.verdict != VERDICT_TRANSLATE)
		return admitted;
	local = is_local(service);
	count = local ? service->local : service->count;
	revision = service->revision;
	if (!count)
		return without_backend(r, service);
	if (service->flags & SERVICE_AFFINITY)
		count = 1;
	hash = request_hash(r);
	for (__u32 i = 0; i < BACKEND_TRIES && i < count; i++) {
		if (!read_backend(service, client_slot(service, revision, &r->client, hash + i, local), &r->backend))
			return outcome_drop(DROP_BACKEND_MISSING);
		if (udp_backends_free(r))
			return udp_backends_store(r);
	}
	if (r->netns_flags & NAMESPACE_POD)
		return outcome_pass(METRIC_NONE);
	if (!read_backend(service, client_slot(service, revision, &r->client, hash, local), &r->backend))
		return outcome_drop(DROP_BACKEND_MISSING);
	return udp_backends_store(r);
}

/* The service that a connected socket requested, if peer is the backend that it got; otherwise NULL. */
static __always_inline const struct addr_port *connected_service(const struct sk_service *row,
								 const struct addr_port *peer)
{
	return row->service.port && addr_port_equal(&row->backend, peer) ? &row->service : NULL;
}

#endif
