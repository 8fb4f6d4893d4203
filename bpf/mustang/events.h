/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_EVENTS_H
#define MUSTANG_EVENTS_H

#include "bloom.h"
#include "metrics.h"
#include "scratch.h"

/*
 * Events that programs emit while someone reads them: a connection is made, a packet or call is dropped, policies deny a connection.
 * Without a reader node_state.watched is 0, and an event costs only the look at it.
 */

/* The kinds of events; node_state.watched_kinds has a bit for each. */
enum event_kind {
	EVENT_DENIED,  /* policies deny a connection, or would if they were not audited */
	EVENT_DROPPED, /* a packet was dropped, or a call refused */
	EVENT_MADE,    /* a connection has got its rows, or a socket its backend */
};

/* In event.place, where others have enum attach_point. */
#define EVENT_AT_SOCKET 0xff

struct event {
	struct tuple
		tuple; /* as the sender has it; if policies deny it, with the backend for a service. ICMP: its type, twice */
	union addr backend; /* zero: not known, or none */
	__u64 time;         /* ns of CLOCK_MONOTONIC */
	__u64 netns;        /* cookie of the network namespace of the pod's device or socket; 0: not known */
	__u32 ifindex;      /* of the device; 0: not known */
	__u32 service;      /* its id; 0: not known, or none */
	__u32 rule;         /* of EVENT_DENIED */
	__u32 length;       /* bytes of the packet; 0: not known */
	__be16 backend_port;
	__be16 ethertype;
	__u8 mac[ETH_ALEN]; /* the sender's, in the frame */
	__u8 kind;          /* enum event_kind */
	__u8 reason;        /* enum drop_reason */
	__u8 place;         /* enum attach_point */
	__u8 audited;       /* of EVENT_DENIED: it passes all the same */
	__u8 tcp_flags;
	__u8 reserved;
};

_Static_assert(sizeof(struct event) == 104, "hidden padding");

/* */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 19);
} events SEC(".maps");

/* Events that a CPU emits in a window of time, about 2,000 a second; it counts the others (METRIC_EVENT_LEFT_OUT). */
#define EVENTS_A_WINDOW 2048
#define EVENT_WINDOW_LOG 30 /* ns: 1.07 s */

/* Whether someone reads events of a kind. The time is looked at once that is so: a reader may have been killed. */
static __always_inline bool is_watched(enum event_kind kind)
{
	struct node_state *node = node_state_row();

	return node && unlikely(*(volatile __u64 *)&node->watched) && node->watched_kinds >> kind & 1;
}

/* Begins an event at a place, all zero but for kind, place and time; NULL without a reader, or if it is left out. The caller submits it. */
static __always_inline struct event *event_begin(enum event_kind kind, __u8 place)
{
	struct node_state *node = node_state_row();
	struct metrics *counters = metrics_row();
	__u64 now = bpf_ktime_get_ns(), watched;
	struct event *event = NULL;
	struct scratch *scratch = scratch_row();
	struct event_ratelimit *limit;

	if (!node || !counters || !scratch)
		return NULL;
	watched = *(volatile __u64 *)&node->watched;
	if (watched < now) {
		__sync_val_compare_and_swap(&node->watched, watched, 0);
		return NULL;
	}
	limit = &scratch->events;
	if (limit->window != now >> EVENT_WINDOW_LOG) {
		limit->window = now >> EVENT_WINDOW_LOG;
		limit->count = 0;
	}
	if (limit->count++ < EVENTS_A_WINDOW)
		event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		ordered_add(&counters->count[METRIC_EVENT_LEFT_OUT], 1);
		return NULL;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->kind = kind;
	event->place = place;
	event->time = now;
	return event;
}

/* Ends an event. The reader polls: to wake it would cost the packet more than all else. */
static __always_inline void event_end(struct event *event)
{
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

#endif
