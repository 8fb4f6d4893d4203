/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_ORIGIN_H
#define MUSTANG_ORIGIN_H

#include "senders.h"

/*
 * The cookie of the network namespace of the socket that sent a packet, which no pod can change; 0 if none of a process did. The
 * kernel's own sockets serve all namespaces, one after the other. Packets lose their socket when they are forwarded or copied.
 */
static __always_inline __u64 origin_of(struct __sk_buff *skb)
{
	const struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);
	const struct sock *sk = kernel->sk;

	if (!sk || !BPF_CORE_READ_BITFIELD(sk, __sk_common.skc_net_refcnt))
		return 0;
	return sk->__sk_common.skc_net.net->net_cookie;
}

/* The row of the network namespace of another pod, with programs on its own device, whose process sent a packet; NULL: none did. */
static __always_inline const struct sender *sender_of_socket(struct __sk_buff *skb)
{
	struct sender_key key = { .netns = origin_of(skb) };

	if (!key.netns || key.netns == netns_of(skb))
		return NULL;
	return bpf_map_lookup_elem(&senders, &key);
}

/* Whether a process of another pod has sent a packet without a seal past the guard. */
static __always_inline bool is_past_guard(struct __sk_buff *skb)
{
	const struct sender *sender = sender_of_socket(skb);

	return sender && !(sender->flags & SENDER_UNGUARDED);
}

#endif
