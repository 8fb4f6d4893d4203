/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_SOCKADDR_H
#define MUSTANG_SOCKADDR_H

#include <asm-generic/errno.h>

#include "sock.h"

/* What brings the hooks of both families together with sock.h: all that knows struct bpf_sock_addr. */

/* What the kernel is to do: as the program did say, or not at all. */
#define SOCK_REFUSE 0
#define SOCK_PROCEED 1

/* Multipath TCP is TCP on its way; <linux/in.h> of some distributions does not know it. */
#define PROTO_MPTCP 262

static __always_inline void read_end(const struct bpf_sock_addr *ctx, bool v6, struct end *end)
{
	if (v6) {
		end->addr.words[0] = ctx->user_ip6[0];
		end->addr.words[1] = ctx->user_ip6[1];
		end->addr.words[2] = ctx->user_ip6[2];
		end->addr.words[3] = ctx->user_ip6[3];
	} else {
		addr_from_v4(&end->addr, ctx->user_ip4);
	}
	end->port = (__be16)ctx->user_port;
	end->pad = 0;
}

static __always_inline void write_end(struct bpf_sock_addr *ctx, bool v6, const struct end *end)
{
	if (v6) {
		ctx->user_ip6[0] = end->addr.words[0];
		ctx->user_ip6[1] = end->addr.words[1];
		ctx->user_ip6[2] = end->addr.words[2];
		ctx->user_ip6[3] = end->addr.words[3];
	} else {
		ctx->user_ip4 = end->addr.words[3];
	}
	ctx->user_port = end->port;
}

static __always_inline __u8 protocol(const struct bpf_sock_addr *ctx)
{
	return ctx->protocol == PROTO_MPTCP ? IPPROTO_TCP : ctx->protocol;
}

/* Reads what a socket wants. False: its namespace has no services. */
static __always_inline bool read_call(struct bpf_sock_addr *ctx, bool v6, struct call *c)
{
	__u64 cookie = bpf_get_netns_cookie(ctx);
	const __u32 *flags = bpf_map_lookup_elem(&namespaces, &cookie);

	read_end(ctx, v6, &c->to);
	if (!flags)
		return false;
	c->flags = *flags;
	c->cookie = bpf_get_socket_cookie(ctx);
	c->proto = protocol(ctx);
	return true;
}

static __always_inline int refuse_call(__u32 metric)
{
	count_call(metric);
	/* As if the service were a host with nobody at the port. */
	bpf_set_retval(metric == METRIC_DROP_TABLE_FULL ? -ENOMEM : -ECONNREFUSED);
	return SOCK_REFUSE;
}

/* The row of a socket, empty if there was none; or NULL. */
static __always_inline struct socket *socket_row(struct bpf_sock_addr *ctx, __u64 flags)
{
	struct bpf_sock *sk = ctx->sk;

	return sk ? bpf_sk_storage_get(&sockets, sk, NULL, flags) : NULL;
}

static __always_inline int do_connect(struct bpf_sock_addr *ctx, bool v6)
{
	struct call c = {};
	struct socket *socket;
	enum metric metric = METRIC_NONE;

	if (read_call(ctx, v6, &c))
		metric = call_connected(&c);
	if (metric == METRIC_NONE) {
		/* A datagram socket may have called a service before. */
		socket = socket_row(ctx, 0);
		if (socket) {
			socket->service.port = 0;
			forget_talk(&c);
		}
		return SOCK_PROCEED;
	}
	if (metric != METRIC_SOCK_CONNECT)
		return refuse_call(metric);
	socket = socket_row(ctx, BPF_SK_STORAGE_GET_F_CREATE);
	if (!socket)
		return refuse_call(METRIC_DROP_TABLE_FULL);
	socket->service = c.to;
	socket->backend = c.backend;
	write_end(ctx, v6, &c.backend);
	count_call(metric);
	return SOCK_PROCEED;
}

static __always_inline int do_sendmsg(struct bpf_sock_addr *ctx, bool v6)
{
	struct call c = {};
	enum metric metric = METRIC_NONE;

	if (read_call(ctx, v6, &c))
		metric = call_datagram(&c);
	if (metric == METRIC_NONE) {
		if (socket_row(ctx, 0))
			forget_talk(&c);
		return SOCK_PROCEED;
	}
	if (metric != METRIC_SOCK_SENDMSG)
		return refuse_call(metric);
	/* The row says that the socket has talked to services, at little cost for those that have not. */
	if (!socket_row(ctx, BPF_SK_STORAGE_GET_F_CREATE))
		return refuse_call(METRIC_DROP_TABLE_FULL);
	write_end(ctx, v6, &c.backend);
	count_call(metric);
	return SOCK_PROCEED;
}

static __always_inline bool is_connected(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	return sk && sk->state == BPF_TCP_ESTABLISHED;
}

/* Gives what came from a backend the service's address, where the socket called one. */
static __always_inline int do_recvmsg(struct bpf_sock_addr *ctx, bool v6)
{
	struct socket *socket = socket_row(ctx, 0);
	const struct end *service = NULL;
	struct end from;

	if (!socket)
		return SOCK_PROCEED;
	read_end(ctx, v6, &from);
	if (is_connected(ctx))
		service = connected_service(socket, &from);
	if (!service)
		service = talked_service(bpf_get_socket_cookie(ctx), &from);
	if (!service)
		return SOCK_PROCEED;
	write_end(ctx, v6, service);
	count_call(METRIC_SOCK_RECVMSG);
	return SOCK_PROCEED;
}

static __always_inline int do_getpeername(struct bpf_sock_addr *ctx, bool v6)
{
	struct socket *socket = socket_row(ctx, 0);
	const struct end *service;
	struct end peer;

	if (!socket)
		return SOCK_PROCEED;
	read_end(ctx, v6, &peer);
	service = connected_service(socket, &peer);
	if (!service)
		return SOCK_PROCEED;
	write_end(ctx, v6, service);
	count_call(METRIC_SOCK_GETPEERNAME);
	return SOCK_PROCEED;
}

#endif
