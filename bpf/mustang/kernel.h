/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_KERNEL_H
#define MUSTANG_KERNEL_H

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
};
struct sk_buff {
	struct net_device *dev;
	__u8 ip_summed : 2; /* enum checksum_state */
};
#pragma clang attribute pop

extern void *bpf_cast_to_kern_ctx(void *skb) __ksym;

#endif
