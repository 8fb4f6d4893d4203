/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_SOCK_H
#define MUSTANG_SOCK_H

#include "metrics.h"
#include "sockmaps.h"

/* Backends that are tried for a datagram, if the socket sends to the first one for another service too. */
#define BACKEND_TRIES 4

/* What a socket is about to do; plain data, whatever hook it comes from. */
struct call {
	struct end to;      /* as the program says */
	struct end backend; /* whom it is to reach instead, when a function has found that out */
	__u64 cookie;       /* the socket's */
	__u32 flags;        /* the namespace's */
	__u8 proto;
};

/* Unlike packets' programs, these can be interrupted, by one another and by those. */
static __always_inline void count_call(__u32 metric)
{
	struct metrics *row = metrics_row();

	asm volatile("" : "+r"(metric));
	if (row && metric < METRIC_SLOTS)
		__sync_fetch_and_add(&row->count[metric], 1);
}

static __always_inline bool end_equal(const struct end *a, const struct end *b)
{
	return a->port == b->port && addr_equal(&a->addr, &b->addr);
}

static __always_inline const struct service *service_at(const struct end *to, __u8 proto)
{
	struct service_key key = { .addr = to->addr, .port = to->port, .proto = proto };

	return bpf_map_lookup_elem(&services, &key);
}

/* The service that is called, or NULL. The loopback addresses of a pod are its own, whatever hosts have at theirs. */
static __always_inline const struct service *service_called(const struct call *c)
{
	const struct service *service = service_at(&c->to, c->proto);

	if (service && service->flags & SERVICE_LOOPBACK && c->flags != NAMESPACE_HOST)
		return NULL;
	return service;
}

/* Reads one backend of a revision; false if it is not there. */
static __always_inline bool backend_at(__u32 revision, __u32 slot, struct end *end)
{
	struct backend_key key = { .revision = revision, .slot = slot };
	const struct backend *backend = bpf_map_lookup_elem(&backends, &key);

	if (!backend)
		return false;
	end->addr = backend->addr;
	end->port = backend->port;
	end->pad = 0;
	return true;
}

/* Chooses a backend for a connection, by chance. METRIC_NONE: no service is called. */
static __always_inline enum metric call_connected(struct call *c)
{
	const struct service *service = service_called(c);
	__u32 count;

	if (!service)
		return METRIC_NONE;
	count = service->count;
	if (!count)
		return METRIC_DROP_NO_BACKEND;
	if (!backend_at(service->revision, bpf_get_prandom_u32() % count, &c->backend))
		return METRIC_DROP_BACKEND_MISSING;
	return METRIC_SOCK_CONNECT;
}

/* A number that is the same for all that one socket sends to one service. */
static __always_inline __u32 call_hash(const struct call *c)
{
	struct tuple t = { .daddr = c->to.addr, .dport = c->to.port, .proto = c->proto };

	t.saddr.words[0] = (__u32)c->cookie;
	t.saddr.words[1] = (__u32)(c->cookie >> 32);
	return tuple_hash(&t);
}

/* Whether answers of c->backend can be told from others: the socket sends to it for no other service. */
static __always_inline bool unambiguous(const struct call *c)
{
	struct talk key = { .cookie = c->cookie, .backend = c->backend };
	const struct end *meant = bpf_map_lookup_elem(&talks, &key);

	return !meant || end_equal(meant, &c->to);
}

/* Remembers what service c->backend stands for. What is known is not written again. */
static __always_inline enum metric remember_talk(const struct call *c)
{
	struct talk key = { .cookie = c->cookie, .backend = c->backend };
	const struct end *meant = bpf_map_lookup_elem(&talks, &key);

	if (meant && end_equal(meant, &c->to))
		return METRIC_SOCK_SENDMSG;
	return bpf_map_update_elem(&talks, &key, &c->to, BPF_ANY) ? METRIC_DROP_TABLE_FULL : METRIC_SOCK_SENDMSG;
}

/*
 * Chooses a backend for a datagram of an unconnected socket: a function of socket and service, as long as the backends
 * are the same. If the socket sends to that backend for another service too, answers would be ambiguous; so the next one
 * is taken. If there is no other, the programs for packets, which can change the port, get to do it where there are any.
 * Elsewhere answers are taken to be the later service's. METRIC_NONE: no service is called, or it is left to those.
 */
static __always_inline enum metric call_datagram(struct call *c)
{
	const struct service *service = service_called(c);
	__u32 count, revision, first;

	if (!service)
		return METRIC_NONE;
	count = service->count;
	revision = service->revision;
	if (!count)
		return METRIC_DROP_NO_BACKEND;
	first = call_hash(c) % count;
	for (__u32 i = 0; i < BACKEND_TRIES && i < count; i++) {
		if (!backend_at(revision, (first + i) % count, &c->backend))
			return METRIC_DROP_BACKEND_MISSING;
		if (unambiguous(c))
			return remember_talk(c);
	}
	if (c->flags & NAMESPACE_POD)
		return METRIC_NONE;
	if (!backend_at(revision, first, &c->backend))
		return METRIC_DROP_BACKEND_MISSING;
	return remember_talk(c);
}

/* A datagram goes to c->to itself: what comes from there is no service's any more. */
static __always_inline void forget_talk(const struct call *c)
{
	struct talk key = { .cookie = c->cookie, .backend = c->to };

	if (bpf_map_lookup_elem(&talks, &key))
		bpf_map_delete_elem(&talks, &key);
}

/* The service that a connected socket called, if from is the backend that it got; otherwise NULL. */
static __always_inline const struct end *connected_service(const struct socket *socket, const struct end *from)
{
	return socket->service.port && end_equal(&socket->backend, from) ? &socket->service : NULL;
}

/* The service that an unconnected socket means when it sends to from, or NULL. */
static __always_inline const struct end *talked_service(__u64 cookie, const struct end *from)
{
	struct talk key = { .cookie = cookie, .backend = *from };

	return bpf_map_lookup_elem(&talks, &key);
}

#endif
