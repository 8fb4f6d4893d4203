// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

/*
 * Services for sockets: what a socket calls is changed once, when it connects, so that its packets cost nothing more.
 * Datagrams of sockets that are not connected are translated one by one, with their answers. What the program asks of
 * its socket afterwards is answered as if it had reached the service itself.
 */

#include "mustang/sockaddr.h"
#include "mustang/sockretire.h"

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

/* Sees every UDP socket of one network namespace. */
SEC("iter/udp")
int retire_udp(struct bpf_iter__udp *ctx)
{
	struct udp_sock *sk = ctx->udp_sk;

	if (sk)
		retire((struct sock_common *)sk);
	return 0;
}

/* Keeps in the type information, for Go, what no map has. Nothing reads it. */
const volatile enum namespace_flag namespace_flags SEC(".rodata");

char _license[] SEC("license") = "Dual BSD/GPL";
