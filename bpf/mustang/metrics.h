/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_METRICS_H
#define MUSTANG_METRICS_H

#include "consts.h"

/*
 * Counters other than drops. Go has the same list in counters.go; a test compares the names. Append new ones, so that
 * pinned counters keep their meaning.
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
	METRIC_SOCK_CONNECT,
	METRIC_SOCK_SENDMSG,
	METRIC_SOCK_RECVMSG,
	METRIC_SOCK_GETPEERNAME,
	METRIC_SOCK_DESTROY,
	METRIC_FROM_UPLINK,
	METRIC_TO_UPLINK,
	METRIC_SLOT_REUSED,
	METRIC_SLOT_EXPIRED,
	METRIC_ICMP_ECHO,
	METRIC_REDIRECT_ROUTED,
	METRIC_ENCAPSULATED,
	METRIC_DECAPSULATED,
	METRIC_TRACKED,
	METRIC_AUDITED,
	METRIC_GUARD,
	METRIC_OUTER_GUARD,
	METRIC_EVENT_LEFT_OUT,
	METRIC_TO_REMOTE,
	METRIC_FROM_REMOTE,
	METRIC_COUNT,
};

/* Why a packet was dropped or a call refused. Append new ones; Go has the same list in counters.go. */
enum drop_reason {
	DROP_UNSPECIFIED,
	DROP_MALFORMED,
	DROP_EXTENSIONS,
	DROP_NO_BACKEND,
	DROP_BACKEND_MISSING,
	DROP_PORT_EXHAUSTED,
	DROP_TABLE_FULL,
	DROP_REWRITE,
	DROP_CLIENT_SHARE,
	DROP_NO_ROUTE,
	DROP_NO_SOURCE,
	DROP_TOO_BIG,
	DROP_TTL,
	DROP_NO_LOCAL_BACKEND,
	DROP_SOURCE_RANGE,
	DROP_BACKEND_REMOVED,
	DROP_SOURCE,
	DROP_SOURCE_MAC,
	DROP_NEIGHBOUR,
	DROP_ETHERTYPE,
	DROP_POLICY_EGRESS,
	DROP_POLICY_INGRESS,
	DROP_TUNNEL_ROUTE,
	DROP_COUNT,
};

/* Room to append without a new layout. */
#define METRIC_SLOTS 64
#define DROP_SLOTS 64

struct metrics {
	__u64 count[METRIC_SLOTS]; /* by enum metric */
	__u64 drops[DROP_SLOTS];   /* by enum drop_reason */
};

_Static_assert(sizeof(struct metrics) == 1024, "hidden padding");
_Static_assert(METRIC_COUNT <= METRIC_SLOTS, "no slot left: raise the layout version");
_Static_assert(DROP_COUNT <= DROP_SLOTS, "no slot left: raise the layout version");

/* One row for each CPU with all counters: one lookup serves the whole packet. */
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

/* Counts a metric that is not a constant. */
static __always_inline void count(struct metrics *row, __u32 metric)
{
	/* The compiler drops the check where it knows the bound; the verifier does not know it. */
	asm volatile("" : "+r"(metric));
	if (metric < METRIC_SLOTS)
		row->count[metric]++;
}

#endif
