/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_KERNEL_H
#define MUSTANG_KERNEL_H

#include <bpf/bpf_core_read.h>

#include "consts.h"

/* The fields used of the kernel's structs. Their places are those in the running kernel (CO-RE). */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct net {
	__u64 net_cookie;
};
typedef struct {
	struct net *net;
} possible_net_t;
struct net_device {
	possible_net_t nd_net;
	void *rx_handler; /* what takes the packets of a port of a bridge or switch */
};
struct dst_entry {
	struct net_device *dev;
};
struct sock_common {
	possible_net_t skc_net;
	__u8 skc_net_refcnt : 1; /* whether it holds its namespace: sockets of processes do */
};
struct sock {
	struct sock_common __sk_common;
};
struct sk_buff {
	struct sock *sk;
	struct net_device *dev;
	unsigned long _skb_refdst; /* the address of a dst_entry, and whether it is counted in the lowest bit */
	unsigned char *head, *data;
	union {
		struct {
			__u16 csum_start; /* of CHECKSUM_PARTIAL: where the sum begins, from head */
		};
	};
	__u8 ip_summed : 2; /* enum checksum_state */
};
#pragma clang attribute pop

extern void *bpf_cast_to_kern_ctx(void *skb) __ksym;
extern void *bpf_rdonly_cast(const void *object, __u32 type) __ksym;

/*
 * The kernel's packet, to read. The cast keeps the verifier from a search through the names of all types for each pointer that is read:
 * whether the field is a trusted one. That took 6 % of the time to load the programs.
 */
static __always_inline const struct sk_buff *kernel_packet(struct __sk_buff *skb)
{
	return bpf_rdonly_cast(bpf_cast_to_kern_ctx(skb), bpf_core_type_id_kernel(struct sk_buff));
}

/* The cookie of the network namespace that a packet is in. Before Linux 6.15, no helper tells. */
static __always_inline __u64 netns_of(struct __sk_buff *skb)
{
	const struct sk_buff *kernel = kernel_packet(skb);

	return kernel->dev->nd_net.net->net_cookie;
}

/* Whether a packet is on a port of a bridge or switch. */
static __always_inline bool is_port(struct __sk_buff *skb)
{
	const struct sk_buff *kernel = kernel_packet(skb);

	return kernel->dev->rx_handler;
}

/*
 * The cookie of the network namespace of the socket that sent a packet, which pods cannot change; 0 if no process did. The
 * kernel's own sockets serve all namespaces, one after the other. Packets lose their socket when they are forwarded or copied.
 */
static __always_inline __u64 origin_of(struct __sk_buff *skb)
{
	const struct sk_buff *kernel = kernel_packet(skb);
	const struct sock *sk = kernel->sk;

	if (!sk || !BPF_CORE_READ_BITFIELD(sk, __sk_common.skc_net_refcnt))
		return 0;
	return sk->__sk_common.skc_net.net->net_cookie;
}

#endif
