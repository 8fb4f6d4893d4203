/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_SOCKRETIRE_H
#define MUSTANG_SOCKRETIRE_H

#include "sock.h"

/* What is used of the kernel's own structs; the loader finds out where it lies in the running kernel. */
struct sock_common {
	volatile unsigned char skc_state;
} __attribute__((preserve_access_index));

struct udp_sock {
	struct sock_common common;
};

/* What an iterator over UDP sockets gets. All iterators begin with a pointer to what they have in common. */
struct bpf_iter__udp {
	__u64 meta;
	struct udp_sock *udp_sk;
};

extern int bpf_sock_destroy(struct sock_common *sk) __ksym;

/* A search for a backend among those of a service. */
struct search {
	struct end wanted;
	__u32 revision;
	__u32 found;
};

static long search_slot(__u32 slot, struct search *s)
{
	struct end end = {};

	s->found = backend_at(s->revision, slot, &end) && end_equal(&end, &s->wanted);
	return s->found;
}

/* Whether the service that a connected UDP socket called still has the backend that the socket got. */
static __always_inline bool still_served(const struct socket *socket)
{
	const struct service *service = service_at(&socket->service, IPPROTO_UDP);
	struct search search = { .wanted = socket->backend };

	if (!service)
		return false;
	search.revision = service->revision;
	bpf_loop(service->count, search_slot, &search, 0);
	return search.found;
}

/*
 * Ends a connected UDP socket whose backend is gone: nothing else would ever tell its program. That gets ECONNABORTED when
 * it receives or polls, EDESTADDRREQ when it sends, and may connect again. TCP's connections are left to go on.
 */
static __always_inline void retire(struct sock_common *sk)
{
	struct socket *socket = bpf_sk_storage_get(&sockets, sk, NULL, 0);

	if (!socket || !socket->service.port || sk->skc_state != BPF_TCP_ESTABLISHED || still_served(socket))
		return;
	if (!bpf_sock_destroy(sk))
		count_call(METRIC_SOCK_DESTROY);
}

#endif
