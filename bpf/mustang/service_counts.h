/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_SERVICE_COUNTS_H
#define MUSTANG_SERVICE_COUNTS_H

#include "maps.h"

/* The packets translated for a service: to its backends, and back. */
struct service_counts {
	__u64 packets[2];
	__u64 bytes[2]; /* of frames, as the program sees them */
};

/* By counts_of(). */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTED_SERVICES + 1);
	__type(key, __u32);
	__type(value, struct service_counts);
} service_counts SEC(".maps");

/* Counts a packet of a connection for its service. A GSO packet counts as one. */
static __always_inline void count_of_service(const struct __sk_buff *skb, const struct ct_entry *ct)
{
	__u32 index = ct->flags >> CT_COUNTS_SHIFT, back = !(ct->flags & CT_FORWARD);
	struct service_counts *counts = bpf_map_lookup_elem(&service_counts, &index);

	if (!counts)
		return;
	counts->packets[back]++;
	counts->bytes[back] += skb->len;
}

#endif
