/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_MAPS_H
#define MUSTANG_MAPS_H

#include "tuple.h"

/* The layout of these structs is that of pinned maps. Whoever changes one raises LayoutVersion in layout.go. */

struct service_key {
	union addr addr;
	__be16 port;
	__u8 proto;
	__u8 pad;
};

enum service_flag {
	SERVICE_LOOPBACK = 1, /* its address is a loopback one: for the sockets of hosts, and for no packet */
};

struct service {
	__u32 id;
	/* Names the set of backends; no two sets of any service ever had the same. */
	__u32 revision;
	/* Backends are in slots 0..count-1 of the revision. */
	__u32 count;
	__u32 flags; /* enum service_flag */
};

struct backend_key {
	__u32 revision;
	__u32 slot;
};

struct backend {
	union addr addr;
	__be16 port;
	__u16 pad;
};

enum connection_flag {
	CONNECTION_FORWARD = 1, /* from the client to the backend; otherwise back */
	CONNECTION_HAIRPIN = 2, /* both ends are the same pod */
	CONNECTION_SEGMENT = 4, /* both ends are pods without a host side, and reach each other by MAC */
	CONNECTION_CLOSING = 8, /* a FIN or RST was seen in this direction */
	CONNECTION_UPLINK = 16, /* the client is outside, and came in by an uplink */
};

enum endpoint_flag {
	ENDPOINT_EGRESS = 1, /* what is sent from the host's device, ifindex, goes into the pod */
	ENDPOINT_PEER = 2,   /* bpf_redirect_peer() to that device leads into the pod, and is the shorter way */
	ENDPOINT_L3 = 4,     /* that device takes packets without an Ethernet header */
};

/* How packets get into a pod. No flags: not from the host's side, or this is no pod of this node. */
struct entrance {
	__u32 ifindex;
	__u32 flags;
	__u8 pod_mac[ETH_ALEN];
	__u8 node_mac[ETH_ALEN];
};

struct connection {
	/* What the packet's tuple becomes. */
	struct tuple to;
	/* Sums to add to a checksum that covers the addresses, and the ports (0: they stay). */
	__u32 addr_diff;
	__u32 port_diff;
	__u32 service;
	__u32 revision;
	__u32 flags;
	/* That of the pod that the packet is for then: as it is in endpoints, to save a lookup for each packet. */
	struct entrance entrance;
};

struct endpoint {
	__u32 id;
	/* Pods without a host side reach each other by MAC if this, their parent's index or bridge's, is the same. */
	__u32 segment;
	struct entrance entrance;
	/* Not 0 once the address is in connected; the programs set it. */
	__u32 connected;
	/* The cookie of the pod's network namespace; 0 if it has none. Only user space uses it. */
	__u64 netns;
};

struct fragment_key {
	union addr saddr;
	union addr daddr;
	__u32 id;
	__u8 proto;
	__u8 pad[3];
};

struct ports {
	__be16 sport;
	__be16 dport;
};

/* Numbers that are given out once each. Only user space uses them, with the root's lock held. */
struct state {
	__u32 last_service;
	__u32 last_revision;
	__u32 last_endpoint;
	__u32 pad;
};

_Static_assert(sizeof(struct service_key) == 20, "no hidden padding");
_Static_assert(sizeof(struct service) == 16, "no hidden padding");
_Static_assert(sizeof(struct backend_key) == 8, "no hidden padding");
_Static_assert(sizeof(struct backend) == 20, "no hidden padding");
_Static_assert(sizeof(struct entrance) == 20, "no hidden padding");
_Static_assert(sizeof(struct connection) == 80, "no hidden padding");
_Static_assert(sizeof(struct endpoint) == 40, "no hidden padding");
_Static_assert(sizeof(struct fragment_key) == 40, "no hidden padding");
_Static_assert(sizeof(struct state) == 16, "no hidden padding");

/* Sizes of 1 are placeholders: user space sets them when it creates the maps. */

/* The services by what clients call. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct service_key);
	__type(value, struct service);
} services SEC(".maps");

/* The backends of all services. A revision is complete before a service names it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct backend_key);
	__type(value, struct backend);
} backends SEC(".maps");

/* Connections that are translated: for each of their two directions, what packets are and what they become. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct tuple);
	__type(value, struct connection);
} connections SEC(".maps");

/* The pods of this node by address. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, union addr);
	__type(value, struct endpoint);
} endpoints SEC(".maps");

/*
 * The addresses of pods that connections may know: who deletes a pod that is not here need not look for its connections.
 * The programs write it, before the connection.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, union addr);
	__type(value, __u32);
} connected SEC(".maps");

/* The ports of fragmented packets, which only the first fragment has. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct fragment_key);
	__type(value, struct ports);
} fragments SEC(".maps");

/* Counters for ids; see struct state. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct state);
} state SEC(".maps");

#endif
