/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_SOCKLB_RETIRE_H
#define MUSTANG_SOCKLB_RETIRE_H

#include "socklb.h"

/* The fields used of the kernel's structs; the loader finds their offsets in the running kernel. */
struct sock_common {
	volatile unsigned char skc_state;
} __attribute__((preserve_access_index));

struct udp_sock {
	struct sock_common common;
};

/* Context of the iterator over UDP sockets. */
struct bpf_iter__udp {
	__u64 meta;
	struct udp_sock *udp_sk;
};

/* Context of the iterator over TCP sockets. */
struct bpf_iter__tcp {
	__u64 meta;
	struct sock_common *sk_common;
};

extern int bpf_sock_destroy(struct sock_common *sk) __ksym;

/* Whether a service has the backend that a connected socket got. */
static __always_inline bool has_backend(const struct service *service, const struct addr_port *backend)
{
	struct backend_search search = { .addr = backend->addr, .port = backend->port, .revision = service->revision };

	bpf_loop(service->total, search_backend, &search, 0);
	return search.found;
}

/* The row of a connected socket that called a service, or NULL. */
static __always_inline struct sk_service *connected_row(struct sock_common *sk)
{
	struct sk_service *row = bpf_sk_storage_get(&sockets, sk, NULL, 0);

	return row && row->service.port ? row : NULL;
}

static __always_inline void destroy(struct sock_common *sk)
{
	if (!bpf_sock_destroy(sk))
		sk_count(METRIC_SOCK_DESTROY);
}

/*
 * Destroys a connected UDP socket whose backend is gone, which its program would not notice otherwise. The program gets
 * ECONNABORTED when it receives or polls, EDESTADDRREQ when it sends, and may connect again.
 */
static __always_inline void retire_datagram(struct sock_common *sk)
{
	const struct sk_service *row = connected_row(sk);
	struct service service;

	if (!row || sk->skc_state != BPF_TCP_ESTABLISHED)
		return;
	if (!service_read(&row->service, IPPROTO_UDP, &service) || !has_backend(&service, &row->backend))
		destroy(sk);
}

/*
 * Destroys a TCP socket whose backend was removed from a service that resets such connections: the program gets
 * ECONNABORTED, the backend a TCP reset. If the service is gone, it does as it did when the socket was connected.
 */
static __always_inline void retire_stream(struct sock_common *sk)
{
	const struct sk_service *row = connected_row(sk);
	struct service service;

	if (!row || sk->skc_state == BPF_TCP_LISTEN || sk->skc_state == BPF_TCP_CLOSE)
		return;
	if (service_read(&row->service, IPPROTO_TCP, &service)
		    ? service.flags & SERVICE_RESET && !has_backend(&service, &row->backend)
		    : row->service.resets)
		destroy(sk);
}

#endif
