/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_ORIGIN_H
#define MUSTANG_ORIGIN_H

#include "senders.h"

/* The row of the network namespace of another pod, with programs on its own device, whose process sent a packet; NULL: none did. */
static __always_inline const struct sender *sender_of_socket(struct __sk_buff *skb)
{
	struct sender_key key = { .netns = origin_of(skb) };

	if (!key.netns || key.netns == netns_of(skb))
		return NULL;
	return bpf_map_lookup_elem(&source_guard, &key);
}

/* Whether a process of another pod has sent a packet without a seal past the guard. */
static __always_inline bool is_past_guard(struct __sk_buff *skb)
{
	const struct sender *sender = sender_of_socket(skb);

	return sender && !(sender->flags & SENDER_UNGUARDED);
}

#endif
