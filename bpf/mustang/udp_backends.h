/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_UDP_BACKENDS_H
#define MUSTANG_UDP_BACKENDS_H

#include "socklb_maps.h"
#include "verdict.h"

/* Which services the answers that an unconnected socket gets are from. */

/* A connect() or sendmsg() of a socket, whichever hook saw it. */
struct sk_request {
	struct addr_port dst;     /* from the program */
	struct addr_port backend; /* to use instead; set by choose_backend_...() */
	struct bpf_sock *sk;
	__u64 cookie;      /* of the socket */
	union addr client; /* for session affinity: the cookie of the network namespace */
	union addr source; /* that the socket of a host or of a pod without endpoint is bound to; 0 if it is not */
	__u32 netns_flags; /* enum namespace_flag */
	__u8 proto;
	bool resets; /* the service has SERVICE_RESET; set by choose_backend_connect() */
};

static __always_inline bool addr_port_equal(const struct addr_port *a, const struct addr_port *b)
{
	return a->port == b->port && addr_equal(&a->addr, &b->addr);
}

/* The row of a backend; SK_UDP_BACKENDS if there is none. The caller has the lock. */
static __always_inline __u32 udp_backends_row(const struct sk_udp_backends *a, const struct addr_port *backend)
{
	for (__u32 i = 0; i < SK_UDP_BACKENDS; i++)
		if (a->rows[i].service.port && addr_port_equal(&a->rows[i].backend, backend))
			return i;
	return SK_UDP_BACKENDS;
}

/* Sets *service to the one that the socket called when it got the backend; false if it called none. */
static __always_inline bool udp_backends_find(struct bpf_sock *sk, __u64 cookie, const struct addr_port *backend,
					      struct addr_port *service)
{
	struct sk_udp_backends *a = sk ? bpf_sk_storage_get(&udp_backends, sk, NULL, 0) : NULL;
	struct sk_revnat_key key = { .cookie = cookie, .backend = *backend };
	const struct addr_port *shared;
	__u32 i;

	if (!a)
		return false;
	bpf_spin_lock(&a->lock);
	i = udp_backends_row(a, backend);
	if (i < SK_UDP_BACKENDS)
		*service = a->rows[i].service;
	bpf_spin_unlock(&a->lock);
	if (i < SK_UDP_BACKENDS)
		return true;
	shared = bpf_map_lookup_elem(&sk_revnat, &key);
	if (shared)
		*service = *shared;
	return shared;
}

/* Whether the socket sends to r->backend for no other service, so that replies are unambiguous. */
static __always_inline bool udp_backends_free(const struct sk_request *r)
{
	struct addr_port service;

	return !udp_backends_find(r->sk, r->cookie, &r->backend, &service) || addr_port_equal(&service, &r->dst);
}

/* Notes that answers of r->backend are from r->dst. */
static __always_inline struct outcome udp_backends_store(const struct sk_request *r)
{
	struct sk_udp_backends *a = r->sk ? bpf_sk_storage_get(&udp_backends, r->sk, NULL, BPF_SK_STORAGE_GET_F_CREATE)
					  : NULL;
	struct sk_service displaced = {};
	__u32 i;

	if (!a)
		return outcome_drop(DROP_TABLE_FULL);
	bpf_spin_lock(&a->lock);
	i = udp_backends_row(a, &r->backend);
	if (i == SK_UDP_BACKENDS) {
		i = a->next++ % SK_UDP_BACKENDS;
		displaced = a->rows[i];
	}
	a->rows[i].service = r->dst;
	a->rows[i].backend = r->backend;
	bpf_spin_unlock(&a->lock);
	if (displaced.service.port) {
		struct sk_revnat_key key = { .cookie = r->cookie, .backend = displaced.backend };

		bpf_map_update_elem(&sk_revnat, &key, &displaced.service, BPF_ANY);
	}
	return outcome_translate(METRIC_SOCK_SENDMSG);
}

/* The socket sends to r->dst itself: replies from there belong to no service any more. */
static __always_inline void udp_backends_delete(const struct sk_request *r)
{
	struct sk_udp_backends *a = r->sk ? bpf_sk_storage_get(&udp_backends, r->sk, NULL, 0) : NULL;
	struct sk_revnat_key key = { .cookie = r->cookie, .backend = r->dst };
	__u32 i;

	if (!a)
		return;
	bpf_spin_lock(&a->lock);
	i = udp_backends_row(a, &r->dst);
	if (i < SK_UDP_BACKENDS)
		a->rows[i].service.port = 0;
	bpf_spin_unlock(&a->lock);
	if (bpf_map_lookup_elem(&sk_revnat, &key))
		bpf_map_delete_elem(&sk_revnat, &key);
}

#endif
