// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

/*
 * Services for sockets. A socket that connects to a service connects to a backend instead, so that its packets need no
 * translation. Datagrams of unconnected sockets, and the replies, are translated one by one. recvfrom() and getpeername()
 * return the address of the service.
 */

#include "mustang/socklb_hooks.h"
#include "mustang/socklb_retire.h"

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	return do_connect(ctx, false);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	return do_connect(ctx, true);
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	return do_sendmsg(ctx, false);
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	return do_sendmsg(ctx, true);
}

SEC("cgroup/recvmsg4")
int recvmsg4(struct bpf_sock_addr *ctx)
{
	return do_recvmsg(ctx, false);
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *ctx)
{
	return do_recvmsg(ctx, true);
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	return do_getpeername(ctx, false);
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	return do_getpeername(ctx, true);
}

/* Visits every UDP socket of one network namespace. */
SEC("iter/udp")
int retire_udp(struct bpf_iter__udp *ctx)
{
	struct udp_sock *sk = ctx->udp_sk;

	if (sk)
		retire_datagram((struct sock_common *)sk);
	return 0;
}

/* Visits every TCP socket of one network namespace. */
SEC("iter/tcp")
int retire_tcp(struct bpf_iter__tcp *ctx)
{
	struct sock_common *sk = ctx->sk_common;

	if (sk)
		retire_stream(sk);
	return 0;
}

/* An enum that no map refers to, so that the type information has it for Go. No program reads this. */
const volatile enum namespace_flag namespace_flags SEC(".rodata");

char _license[] SEC("license") = "Dual BSD/GPL";
