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

extern int bpf_sock_destroy(struct sock_common *sk) __ksym;

/* Whether the service that a connected UDP socket requested still has the backend that the socket got. */
static __always_inline bool has_backend(const struct sk_service *row)
{
	const struct service *service = service_at(&row->service, IPPROTO_UDP);
	struct backend_search search = { .addr = row->backend.addr, .port = row->backend.port };

	if (!service)
		return false;
	search.revision = service->revision;
	bpf_loop(service->total, search_backend, &search, 0);
	return search.found;
}

/*
 * Destroys a connected UDP socket whose backend is gone, which its program would not notice otherwise. The program gets
 * ECONNABORTED when it receives or polls, EDESTADDRREQ when it sends, and may connect again. TCP connections stay.
 */
static __always_inline void retire(struct sock_common *sk)
{
	struct sk_service *row = bpf_sk_storage_get(&sockets, sk, NULL, 0);

	if (!row || !row->service.port || sk->skc_state != BPF_TCP_ESTABLISHED || has_backend(row))
		return;
	if (!bpf_sock_destroy(sk))
		sk_count(METRIC_SOCK_DESTROY);
}

#endif
