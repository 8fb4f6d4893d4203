/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_CLIENTS_H
#define MUSTANG_CLIENTS_H

#include "maps.h"

/* Source ranges: the only clients that a service serves. As in maps.h, this struct is the layout of a pinned map. */

struct source_range {
	__u32 length; /* bits that count: of the revision, and of the address, which is v4-mapped for IPv4 */
	__u32 revision;
	union addr addr;
};

_Static_assert(sizeof(struct source_range) == 24, "hidden padding");

/* User space completes the ranges of a revision before a service refers to it. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct source_range);
	__type(value, __u8);
} source_ranges SEC(".maps");

/* Whether a revision of a service serves the client. A function of its own: its callers have little stack left. */
static __noinline int in_source_ranges(__u32 revision, const union addr *client)
{
	struct source_range key = { .length = 32 + 128, .revision = revision };

	if (!client)
		return false;
	key.addr = *client;
	return bpf_map_lookup_elem(&source_ranges, &key) != NULL;
}

#endif
