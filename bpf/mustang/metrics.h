/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_METRICS_H
#define MUSTANG_METRICS_H

#include "consts.h"

/*
 * What is counted. Go has the same list, in counters.go; a test holds the two together by the names in BTF. New ones go to
 * the end, so that counters which are pinned keep their meaning.
 */
enum metric {
	METRIC_NONE,
	METRIC_FROM_POD,
	METRIC_TO_POD,
	METRIC_FORWARD,
	METRIC_REVERSE,
	METRIC_NEW_CONNECTION,
	METRIC_KEPT_CONNECTION,
	METRIC_PORT_CHANGED,
	METRIC_ICMP_ERROR,
	METRIC_REDIRECT_PEER,
	METRIC_REDIRECT_DEVICE,
	METRIC_L2_DELIVERED,
	METRIC_HAIRPIN,
	METRIC_DELIVERED,
	METRIC_PASSED,
	METRIC_UNKNOWN_FRAGMENT,
	METRIC_DROP_MALFORMED,
	METRIC_DROP_EXTENSIONS,
	METRIC_DROP_NO_BACKEND,
	METRIC_DROP_BACKEND_MISSING,
	METRIC_DROP_PORT_EXHAUSTED,
	METRIC_DROP_TABLE_FULL,
	METRIC_DROP_REWRITE,
	METRIC_SOCK_CONNECT,
	METRIC_SOCK_SENDMSG,
	METRIC_SOCK_RECVMSG,
	METRIC_SOCK_GETPEERNAME,
	METRIC_SOCK_DESTROY,
	METRIC_FROM_UPLINK,
	METRIC_TO_UPLINK,
	METRIC_COUNT,
};

/* Room to add a metric without a new layout. */
#define METRIC_SLOTS 48

struct metrics {
	__u64 count[METRIC_SLOTS];
};

_Static_assert(METRIC_COUNT <= METRIC_SLOTS, "no slot left: a new layout version is due");

/* Counts by enum metric, one row for each CPU. One row rather than one entry for each metric: one lookup serves all. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct metrics);
} metrics SEC(".maps");

/* The row of this CPU. It is always there; the verifier wants the callers to ask. */
static __always_inline struct metrics *metrics_row(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&metrics, &zero);
}

/* Counts a metric that is not known when the program is compiled. */
static __always_inline void count(struct metrics *row, __u32 metric)
{
	/* The compiler knows the bound from the caller, but the verifier only from here. */
	asm volatile("" : "+r"(metric));
	if (metric < METRIC_SLOTS)
		row->count[metric]++;
}

#endif
