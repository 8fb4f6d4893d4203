/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_GUARDED_DEVICES_H
#define MUSTANG_GUARDED_DEVICES_H

#include "consts.h"

/*
 * The devices of the host that have the source guard for packets from pods to the host, with the index of the pods' parent. The
 * loopback device is one while there are pods of ipvlan, which may be in layer 3.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} guarded_devices SEC(".maps");

#define LOOPBACK_IFINDEX 1 /* <net/flow.h> */

static __always_inline bool is_guarded_device(__u32 index)
{
	return bpf_map_lookup_elem(&guarded_devices, &index);
}

#endif
