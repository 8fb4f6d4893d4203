/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_SOCKLB_HOOKS_H
#define MUSTANG_SOCKLB_HOOKS_H

#include <asm-generic/errno.h>

#include <bpf/bpf_core_read.h>

#include "socklb.h"

/* The cgroup hooks of both families. Only this file knows struct bpf_sock_addr. */

/* Return values of the programs. */
#define SOCK_REFUSE 0
#define SOCK_PROCEED 1

/* Multipath TCP, which on the wire is TCP; <linux/in.h> of some distributions lacks it. */
#define PROTO_MPTCP 262

static __always_inline void read_addr(const struct bpf_sock_addr *ctx, bool v6, struct addr_port *addr)
{
	if (v6) {
		addr->addr.words[0] = ctx->user_ip6[0];
		addr->addr.words[1] = ctx->user_ip6[1];
		addr->addr.words[2] = ctx->user_ip6[2];
		addr->addr.words[3] = ctx->user_ip6[3];
	} else {
		addr_from_v4(&addr->addr, ctx->user_ip4);
	}
	addr->port = (__be16)ctx->user_port;
	addr->resets = 0;
}

static __always_inline void write_addr(struct bpf_sock_addr *ctx, bool v6, const struct addr_port *addr)
{
	if (v6) {
		ctx->user_ip6[0] = addr->addr.words[0];
		ctx->user_ip6[1] = addr->addr.words[1];
		ctx->user_ip6[2] = addr->addr.words[2];
		ctx->user_ip6[3] = addr->addr.words[3];
	} else {
		ctx->user_ip4 = addr->addr.words[3];
	}
	ctx->user_port = addr->port;
}

/* Reads the address that a socket is bound to. */
static __always_inline void read_source(const struct bpf_sock *sk, bool v6, union addr *source)
{
	if (v6) {
		source->words[0] = sk->src_ip6[0];
		source->words[1] = sk->src_ip6[1];
		source->words[2] = sk->src_ip6[2];
		source->words[3] = sk->src_ip6[3];
	} else {
		addr_from_v4(source, sk->src_ip4);
	}
}

/* Reads a request. False: its network namespace lacks socket translation; then only r->dst is set. */
static __always_inline bool read_request(struct bpf_sock_addr *ctx, bool v6, struct sk_request *r)
{
	__u64 cookie = bpf_get_netns_cookie(ctx);
	const struct sk_scope *scope = bpf_map_lookup_elem(&namespaces, &cookie);

	read_addr(ctx, v6, &r->dst);
	r->sk = ctx->sk;
	if (!scope)
		return false;
	r->netns_flags = scope->flags;
	r->client.halves[1] = cookie;
	if (scope->flags & (NAMESPACE_SOCKETS | NAMESPACE_HOST) && r->sk)
		read_source(r->sk, v6, &r->source);
	r->cookie = bpf_get_socket_cookie(ctx);
	r->proto = ctx->protocol == PROTO_MPTCP ? IPPROTO_TCP : ctx->protocol;
	return true;
}

/* The error that a program gets; for a service without a backend, as from a host without a listener. */
static __always_inline int errno_of(__u32 reason)
{
	switch (reason) {
	case DROP_TABLE_FULL:
		return -ENOMEM;
	case DROP_SOURCE_RANGE:
		return -EPERM;
	case DROP_NO_LOCAL_BACKEND:
		return -EHOSTUNREACH;
	default:
		return -ECONNREFUSED;
	}
}

static __always_inline int refuse(const struct sk_request *r, __u32 reason)
{
	sk_count_drop(reason);
	if (is_watched(EVENT_DROPPED))
		sk_emit(r, EVENT_DROPPED, reason);
	bpf_set_retval(errno_of(reason));
	return SOCK_REFUSE;
}

/* The row of the socket; NULL if there is none and flags do not create one. */
static __always_inline struct sk_service *sk_service_row(struct bpf_sock_addr *ctx, __u64 flags)
{
	struct bpf_sock *sk = ctx->sk;

	return sk ? bpf_sk_storage_get(&sockets, sk, NULL, flags) : NULL;
}

struct mptcp_sock {
} __attribute__((preserve_access_index));

/*
 * The row of the socket of Multipath TCP that a socket is a part of; NULL if there is none, and flags do not create one. The kernel calls
 * connect programs with the part, and getpeername programs with the whole.
 */
static __always_inline struct sk_service *sk_whole_row(struct bpf_sock_addr *ctx, __u64 flags)
{
	struct bpf_sock *sk = ctx->sk;
	struct mptcp_sock *whole = NULL;

	if (sk && bpf_core_type_exists(struct mptcp_sock)) /* else the verifier does not know what the helper returns */
		whole = bpf_skc_to_mptcp_sock(sk);
	return whole ? bpf_sk_storage_get(&sockets, whole, NULL, flags) : NULL;
}

static __always_inline int do_connect(struct bpf_sock_addr *ctx, bool v6)
{
	struct outcome outcome = outcome_pass(METRIC_NONE);
	struct sk_service *row, *whole;
	struct sk_request r = {};

	if (read_request(ctx, v6, &r))
		outcome = choose_backend_connect(&r);
	if (outcome.verdict == VERDICT_DROP)
		return refuse(&r, outcome.reason);
	if (outcome.verdict == VERDICT_PASS) {
		/* A datagram socket may have been connected to a service before. */
		row = sk_service_row(ctx, 0);
		if (row) {
			row->service.port = 0;
			udp_backends_delete(&r);
		}
		whole = row ? sk_whole_row(ctx, 0) : NULL;
		if (whole)
			whole->service.port = 0;
		return SOCK_PROCEED;
	}
	row = sk_service_row(ctx, BPF_SK_STORAGE_GET_F_CREATE);
	if (!row)
		return refuse(&r, DROP_TABLE_FULL);
	row->service = r.dst;
	row->service.resets = r.resets;
	row->backend = r.backend;
	whole = sk_whole_row(ctx, BPF_SK_STORAGE_GET_F_CREATE);
	if (whole)
		*whole = *row;
	write_addr(ctx, v6, &r.backend);
	sk_count(outcome.metric);
	if (is_watched(EVENT_MADE))
		sk_emit(&r, EVENT_MADE, 0);
	return SOCK_PROCEED;
}

static __always_inline int do_sendmsg(struct bpf_sock_addr *ctx, bool v6)
{
	struct outcome outcome = outcome_pass(METRIC_NONE);
	struct sk_request r = {};
	bool first;

	if (read_request(ctx, v6, &r))
		outcome = choose_backend_datagram(ctx, &r);
	if (outcome.verdict == VERDICT_DROP)
		return refuse(&r, outcome.reason);
	if (outcome.verdict == VERDICT_PASS) {
		if (sk_service_row(ctx, 0))
			udp_backends_delete(&r);
		return SOCK_PROCEED;
	}
	/* The row marks sockets that have used a service, so that the others cost little in recvmsg. */
	first = !sk_service_row(ctx, 0);
	if (first && !sk_service_row(ctx, BPF_SK_STORAGE_GET_F_CREATE))
		return refuse(&r, DROP_TABLE_FULL);
	if (first && is_watched(EVENT_MADE))
		sk_emit(&r, EVENT_MADE, 0);
	write_addr(ctx, v6, &r.backend);
	sk_count(outcome.metric);
	return SOCK_PROCEED;
}

static __always_inline bool is_connected(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	return sk && sk->state == BPF_TCP_ESTABLISHED;
}

/* Gives a datagram from a backend the address of the service that the socket requested. */
static __always_inline int do_recvmsg(struct bpf_sock_addr *ctx, bool v6)
{
	struct sk_service *row = sk_service_row(ctx, 0);
	const struct addr_port *service = NULL;
	struct addr_port from, called;

	if (!row)
		return SOCK_PROCEED;
	read_addr(ctx, v6, &from);
	if (is_connected(ctx))
		service = connected_service(row, &from);
	if (!service && udp_backends_find(ctx->sk, bpf_get_socket_cookie(ctx), &from, &called))
		service = &called;
	if (!service)
		return SOCK_PROCEED;
	write_addr(ctx, v6, service);
	sk_count(METRIC_SOCK_RECVMSG);
	return SOCK_PROCEED;
}

/* Gives the peer of a connected socket the address of the service that it requested. */
static __always_inline int do_getpeername(struct bpf_sock_addr *ctx, bool v6)
{
	struct sk_service *row = sk_service_row(ctx, 0);
	const struct addr_port *service;
	struct addr_port peer;

	if (!row)
		return SOCK_PROCEED;
	read_addr(ctx, v6, &peer);
	service = connected_service(row, &peer);
	if (!service)
		return SOCK_PROCEED;
	write_addr(ctx, v6, service);
	sk_count(METRIC_SOCK_GETPEERNAME);
	return SOCK_PROCEED;
}

#endif
