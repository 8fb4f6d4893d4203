/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_SCRATCH_H
#define MUSTANG_SCRATCH_H

#include "maps.h"
#include "parse.h"

/* Memory of each CPU for what does not fit on the stack. Packet programs do not interrupt each other. */

/* The route to a backend. */
struct snat_route {
	union addr source;
	__u32 ifindex;
	__u16 port_first, port_last;
	__u64 fib[8]; /* struct bpf_fib_lookup, whose unions are unnamed in Go; too large for the stack */
};

_Static_assert(sizeof(struct bpf_fib_lookup) == 64, "room for it");

/* The slots of backends for a new connection: all backends of the service, or its backends on this node. */
struct candidates {
	__u32 first; /* slot */
	__u32 count;
	__u32 table; /* entries of their table; 0: none */
	__u32 block; /* its first one */
};

/* The slots that a CPU takes, one after the other. */
struct slot_cursor {
	__u64 since; /* when it was at the first one; 0: never */
	__u32 first;
	__u32 next;
};

/* A connection under construction. */
struct ct_new {
	/* Zero at first. */
	__u32 service;
	__u32 revision;
	__u32 flags; /* enum ct_flag */
	/* The paths into the pods at both ends, and their endpoints; 0 where there is none. */
	__u32 backend, client;
	struct ep_path backend_path, client_path;
	__u32 rows;    /* node_state.rows before the endpoints were read */
	__u16 replace; /* there was a row of the packet's tuple, of a connection that is not valid */
	__u16 counted; /* that connection had not ended: its slot was of the client's share */
	__u32 adopted; /* another program has stored the connection, in slot */
	__u32 foreign; /* the client's address is in no row; pod has the pod's address */
	/* Set before they are read. */
	__u32 traits;      /* of the first packet */
	struct tuple from; /* the first packet as the client sends it */
	struct tuple to;   /* the first packet as the backend receives it */
	union addr pod;
	__u32 old; /* the slot of the client's previous connection, which is claimed, or SLOT_NONE */
	__u32 slot, use;
	__u32 pad;
	__u64 now;
	struct tuple key;     /* of replies, while a backend for SCTP is searched */
	struct ct_entry row;  /* of the table, before it is stored */
	struct ct_entry back; /* the row of replies */
	__s32 err;            /* of the last try to store the row of replies */
	__u32 port;           /* in host order; the first to try for packets in this node's own name */
	struct snat_route route;
	/* Of the search for a backend for SCTP. */
	struct candidates candidates;
	struct service called;
	__u32 hash;
	__u32 patient;             /* the search for a port skips ports that backends still keep */
	struct slot_cursor cursor; /* kept from one connection to the next */
};

/* A prefix of an address; the other bits are 0. */
struct prefix {
	union addr addr;
	__u32 length;
};

struct verdict_key {
	__u32 set;
	__u32 identity; /* 0: of all peers without a row of their own */
};

/* A prefix of a port; the other bits are 0. */
struct port_key {
	__u32 table;
	__u16 port; /* in host order */
	__u8 proto;
	__u8 length;
};

/* A look-up of the verdict of a policy: its callers have little stack left. */
struct policy_scratch {
	/* The prefix of an address and its identity. */
	union addr peer;
	struct prefix prefix;
	__u32 identity;
	/* A verdict, and the search for another one for the port. */
	struct verdict_key key;
	struct port_key port_key;
	__u32 lengths;
	__u32 port;
	__u32 rule;
	__u32 allow;
	/* The address of a pod that a packet is judged by, and the one that the packet has: events have the latter. */
	union addr pod;
	union addr own;
};

/* Source ports tried in vain: how many pairs of client and backend a CPU remembers. */
#define SNAT_FAILURES 64

/* A search for a source port that found none. */
struct snat_failure {
	__u64 until; /* when it may be repeated */
	__u32 pair;  /* hash of the client and the backend */
	__u32 pad;
};

/* Bytes of a packet that an ICMP error quotes: with its headers it has at most 576 bytes (RFC 1812, 4.3.2.3). */
#define QUOTE_BYTES 512

struct icmp_scratch {
	struct packet packet;          /* the one that an ICMP error quotes */
	__be32 bytes[QUOTE_BYTES / 4]; /* to sum up; bpf_csum_diff() takes four at a time */
};

/* The ICMP errors of a second. */
struct icmp_ratelimit {
	__u64 second;
	__u64 count;
};

/* The events of a window of time. */
struct event_ratelimit {
	__u64 window;
	__u64 count;
};

/* The time that a CPU has read last. */
struct coarse_time {
	__u64 jiffies;
	__u64 now;
};

struct scratch {
	struct coarse_time time;
	struct event_ratelimit events;
	struct icmp_ratelimit icmp_errors;
	struct policy_scratch policy;
	struct ct_new connection;
	struct service service; /* of a connection that is checked */
	__u32 pad;
	struct icmp_scratch icmp;
	struct snat_failure
		snat_fail_cache[SNAT_FAILURES]; /* by pair: a search takes long, and finds nothing soon after */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

/* The row of this CPU. It is always there; the verifier wants the callers to ask. */
static __always_inline struct scratch *scratch_row(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&scratch, &zero);
}

#endif
