/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_MAPS_H
#define MUSTANG_MAPS_H

#include "tuple.h"

/*
 * The layout of pinned maps. Raise LayoutVersion in layout.go with every change. Reserved fields are 0. Fields and flags
 * that no program reads yet are marked "not enforced": user space must refuse a service or endpoint that needs them.
 */

/* Who wrote a row. Each owner changes and deletes its own rows only. */
enum owner {
	OWNER_NONE, /* no row has it */
	OWNER_CNI,
	OWNER_CLI,
	OWNER_AGENT,
	OWNER_LAB,
};

#define HASH_MULTIPLIER 0x9e3779b97f4a7c15 /* 2^64 / golden ratio */

struct service_key {
	union addr addr;
	__be16 port;
	__u8 proto; /* 0: any protocol without a row of its own */
	__u8 pad;
};

enum service_flag {
	SERVICE_LOOPBACK = 1,        /* a loopback address: translated for the sockets of hosts, never in packets */
	SERVICE_REJECT = 2,          /* without backends: answer with TCP reset or ICMP unreachable; not enforced */
	SERVICE_AFFINITY = 4,        /* a client keeps its backend for affinity_timeout */
	SERVICE_NODE_PORT = 8,       /* an address of the node and a node port; the unspecified address: all of them */
	SERVICE_EXTERNAL = 16,       /* an external or load-balancer address */
	SERVICE_INTERNAL_LOCAL = 32, /* clients in the cluster get local backends only */
	SERVICE_EXTERNAL_LOCAL = 64, /* clients that come in by an uplink get local backends only */
	SERVICE_SOURCE_RANGES = 128, /* only clients in the service's source ranges are served */
	SERVICE_DSR_IPIP = 256, /* backends on other nodes get packets of clients outside in IPIP, and answer these */
	SERVICE_RESET = 512,    /* open TCP connections end when their backend is removed */
};

/* Backends whose addresses a service's row has. */
#define FIRST_BACKENDS 4

/* One frontend. The fields that each new connection reads come first: the rows of many services are not in the caches. */
struct service {
	__u32 id;
	__u32 revision; /* the set of backends; never reused */
	__u32 flags;    /* enum service_flag */
	__u32 tag;      /* service_tag() of its key */
	__u32 table;    /* entries of its table in backend_lut, a power of two; 0: none, a hash chooses the slot */
	/* The backends in the first slots that have IPv4 addresses, so that these need no look-up. Port 0: it needs one. */
	__be32 first_addr[FIRST_BACKENDS];
	__be16 first_port[FIRST_BACKENDS];
	__u32 affinity_timeout; /* in seconds */
	__u32 local_table;      /* entries of the table of backends on this node, which comes behind the other one */
	__u16 count;            /* backends for new connections, in slots 0..count-1; 0: they are dropped */
	__u16 total;            /* all backends: those in slots count..total-1 keep the connections that they have */
	__u16 local;            /* backends on this node for new connections, where a policy is local */
	__u16 local_first; /* their first slot: not 0 if they are terminating, and active ones are on other nodes */
	__u8 owner;        /* enum owner */
	/* For user space only. */
	__u8 choice;
	__u8 on_remove;
	__u8 pad;
	__u16 health_check_port;
	__u16 ranges; /* source ranges, as rows of backends behind the backends */
};

struct backend_key {
	__u32 revision;
	__u32 slot;
};

enum backend_state {
	BACKEND_ACTIVE,
	BACKEND_TERMINATING, /* serves its connections, and new ones if no backend is active */
	BACKEND_DRAINING,    /* serves its connections */
	BACKEND_QUARANTINED, /* failed its health check; gets no new connections */
};

enum backend_flag {
	BACKEND_LOCAL = 1, /* on this node */
	/* None: a row of source_ranges, whose keys cannot be listed. Its address, and in weight its length. For user space only. */
	BACKEND_SOURCE_RANGE = 2,
};

struct backend {
	union addr addr;
	__be16 port;
	__u16 weight; /* relative to the service's other backends; 0 counts as 1; the service's table heeds it */
	__u8 state;   /* enum backend_state; slots decide who gets connections, not this */
	__u8 flags;   /* enum backend_flag */
	__u8 reserved[10];
};

enum ct_flag {
	CT_FORWARD = 1, /* from the client to the backend; otherwise the reply direction */
	CT_HAIRPIN = 2, /* client and backend are the same pod */
	CT_SEGMENT = 4, /* client and backend, without a host side, reach each other by MAC address */
	CT_UPLINK = 16, /* the client is outside and came in by an uplink */
	CT_ABSENT = 32, /* in copies only: the row does not exist */
	CT_SNAT = 64,   /* the client is outside, and the backend on another node, which sees this node as the client */
	CT_DSR = 128,   /* the client's packets are in a tunnel: into it if CT_SNAT is set, otherwise out of it */
	CT_RESETS = 256,    /* of a slot: the service had SERVICE_RESET when it was last seen */
	CT_REMOVED = 512,   /* the backend was removed: packets of the ends are answered with a TCP reset */
	CT_OPENING = 1024,  /* in copies only: the next packet may change the state, and has to look at the slot */
	CT_UNJUDGED = 4096, /* in copies only: policies may have changed since the connection was judged */
	CT_DIRECT = 2048,   /* not translated: the row is there because a policy selects one of the ends */
};

/* Where flags are in the flags of a row; above them is the row of service_counts. Rows of earlier builds have none until they are used. */
#define CT_FLAGS 0xffff
#define CT_COUNTS_SHIFT 16

/* The state of a connection. Each has a time-out in ct_config. */
enum ct_state {
	CT_FREE,    /* the slot is empty */
	CT_CLAIMED, /* a program is about to use or to empty the slot */
	CT_SYN,     /* the ends have not shown yet that they hear each other */
	CT_OPEN,
	CT_CLOSED, /* both ends have sent a FIN, or one an RST and nothing since: a new connection may take the slot over */
	CT_UDP, /* the backend has not answered yet */
	CT_UDP_REPLIED,
	CT_STATES,
};

enum endpoint_flag {
	ENDPOINT_EGRESS = 1,   /* a packet sent on ifindex, a device of the host, enters the pod */
	ENDPOINT_PEER = 2,     /* bpf_redirect_peer() to ifindex enters the pod, and is faster */
	ENDPOINT_L3 = 4,       /* ifindex takes packets without an Ethernet header */
	ENDPOINT_ROUTED = 8,   /* no pod: ifindex is an uplink, and the kernel knows the next hop */
	ENDPOINT_ON_HOST = 16, /* ifindex is a device of the host; otherwise of the pod */
};

/* How packets enter a pod. Flags 0: not through the host, or no pod of this node. */
struct ep_path {
	__u32 ifindex;
	__u32 flags; /* enum endpoint_flag */
	__u8 pod_mac[ETH_ALEN];
	__u8 node_mac[ETH_ALEN];
};

/* One direction of a translated connection. */
struct ct_entry {
	struct tuple to; /* the packet's tuple after translation */
	/* Sums to add to a checksum that covers the addresses, and the ports (0: they stay). */
	__u32 addr_diff;
	__u32 port_diff;
	__u32 slot;    /* of the connection */
	__u32 use;     /* of the slot by the connection: the row is void if the slot has another one */
	__u32 flags;   /* enum ct_flag */
	__u32 checked; /* node_state.rows when pods and service were last seen to be unchanged */
	/* A copy of the receiver's path in endpoints: saves a lookup for each packet. */
	struct ep_path path;
	__u32 denied; /* enum drop_reason of the policy that denies the connection by now; 0: none */
};

/* A connection: what its two rows share. */
struct ct_slot {
	/* The tuples of the packets that the client and the backend send: the keys of the two rows. */
	struct tuple from;
	struct tuple reply;
	__u64 seen; /* when a packet was last seen, within a second: ns of CLOCK_MONOTONIC */
	__u64 opened;
	__u32 state; /* enum ct_state in the low byte, then SLOT_FIN flags, then bits of use; of a claim, a random number */
	__u32 use; /* raised by each connection */
	__u32 service;
	__u32 revision;
	/* The endpoints at both ends; 0 where there is none. */
	__u32 client;
	__u32 backend;
	__u32 flags;   /* enum ct_flag */
	__u32 opening; /* of CT_SYN: OPENING_KNOWN and the hash of the sequence number that the client must acknowledge */
};

/* Set in ct_slot.opening when the backend's SYN has been seen. */
#define OPENING_KNOWN 0x10000

/* Set in ct_slot.state when an end has sent a FIN. */
#define SLOT_FIN_CLIENT 0x100
#define SLOT_FIN_BACKEND 0x200
/* Set when the backend closed first: its socket keeps the ports for a while (TIME_WAIT). */
#define SLOT_TIME_WAIT 0x400
#define SLOT_STATE(state) ((state) & 0xff)
/* Where the bits of use begin: with them a compare-and-swap fails if the slot has another connection by now. */
#define SLOT_USE_SHIFT 11

struct endpoint {
	__u32 id;
	/* Pods without a host side reach each other by MAC address if this, the index of their parent or bridge, is equal. */
	__u32 segment;
	struct ep_path path;
	__u32 reserved0;
	__u64 netns; /* cookie of the pod's network namespace, 0 if it has none; for user space only */
	/* The rule sets of the pod's network policies, keys of verdicts; 0: none. */
	__u32 egress;
	__u32 ingress;
	__u8 owner; /* enum owner */
	__u8 reserved[7];
};

enum device_role {
	DEVICE_UPLINK,  /* leads outside */
	DEVICE_GUARDED, /* has the source guard for what pods send to the host */
};

/* A device of the host. One with two roles has two rows. */
struct device_key {
	__u32 ifindex;
	__u32 role; /* enum device_role */
};

struct device {
	/* Of an uplink, what connections need that this node passes on by it in its own name: its addresses there; all zero: none of the family. */
	union addr v4;
	union addr v6;
	/* The range of source ports, disjoint from the ports of the node's own sockets. */
	__u16 port_first;
	__u16 port_last;
	__u32 parent; /* of a guarded device: index of the device that the pods are on */
};

enum remote_flag {
	REMOTE_TUNNEL = 1, /* in VXLAN, from local to node; otherwise as it is */
	REMOTE_V6 = 2,     /* the next hop, and the tunnel, are IPv6 */
};

/* A range of addresses; the other bits are 0. */
struct remote_key {
	__u32 length;
	union addr addr;
};

/* The way to the pods of another node. */
struct remote {
	union addr next_hop; /* on the network of ifindex: the node, or a router */
	union addr node;     /* the ends of the tunnel */
	union addr local;
	__u8 node_mac[ETH_ALEN]; /* of the tunnel's devices */
	__u8 local_mac[ETH_ALEN];
	__u32 ifindex; /* the device of the host that leads there; 0: no row */
	__u32 mtu;     /* of an IP packet of a pod */
	__u32 flags;   /* enum remote_flag */
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

/* A client's row is the low bits of its endpoint's id; row 0 counts clients that are not pods of this node. */
#define CLIENT_ROWS 65536
/* Behind them: all connections that have not ended, and whether a command is about to end some. */
#define CLIENTS_TOTAL CLIENT_ROWS
#define CLIENTS_MARK (CLIENT_ROWS + 1)

/* The limits of the connection table. */
struct ct_config {
	__u64 timeout[8]; /* by enum ct_state, in ns: a connection has ended that long after its last packet */
	__u32 slots;      /* rows of the map slots */
	__u32 shared;     /* slots that all clients compete for */
	__u32 least;      /* connections that a client may have open even if the shared slots are in use */
	__u32 reserved[13];
};

/* The last ids given out; none is reused. For user space only, which holds the node's lock. */
struct id_alloc {
	__u32 last_service;
	__u32 last_revision;
	__u32 last_endpoint;
	/* Not 0 from when a set of backends is replaced until its last traces are deleted: the value of last_revision then. */
	__u32 retiring;
	/* Cookie of the network namespace of the host: indexes of its devices are in endpoints and in links. 0: none yet. */
	__u64 host;
	__u64 reserved[5];
};

/* log2 of the bits of the bloom filter, of the rows of the caches of a CPU, and of the egress seals. */
#define BLOOM_LOG 20
#define CACHE_LOG 8
#define EGRESS_SEALS_LOG 15

#define GENERATIONS 64

/*
 * What all programs of a node share, and user space maps into memory. Parts that are written often have cache lines of their own.
 */
struct node_state {
	/* Raised by user space with each change of services and endpoints. */
	__u64 rows;
	__u64 policies;      /* 1 + the row of policy_settings in force; 0: no pod has a rule set */
	__u64 watched;       /* until when someone reads events: ns of CLOCK_MONOTONIC; 0: without a reader */
	__u64 secret[2];     /* of seals */
	__u64 watched_kinds; /* of events that are read: a bit for each enum event_kind */
	__u32 remotes;       /* rows of remotes */
	__be32 tunnel_vni;   /* of the tunnel between nodes, as in the header */
	__be16 tunnel_port;  /* 0: no tunnel */
	__u16 reserved[3];
	struct ct_config ct_config;
	struct id_alloc id_alloc;
	/* Raised with each change of connections, the one of their hash, and all of them with rows: copies are void then. */
	__u64 generations[GENERATIONS];
	/*
	 * The bloom filter. Where a bit is clear, no service has the address and port, and no row of connections has it as the
	 * destination of a client's packets or the source of replies: most traffic needs no look-up. User space sets the bit of a
	 * service, and programs set the bits of a connection, before they store the row. Bits are never cleared: a stale bit costs a
	 * look-up.
	 */
	__u64 bloom[1 << (BLOOM_LOG - 6)];
	/* The connections that have not ended, by client. */
	__u64 client_conns[CLIENT_ROWS + 8];
	/* Seals with the time in place of the token, which all have. The one that is written last has the slot. */
	__u64 egress_seals[1 << EGRESS_SEALS_LOG];
};

/* The number of Services whose packets are counted. User space assigns ids so that Services share a row only if there are more. */
#define COUNTED_SERVICES 16384
/* The row of service_counts of a service. Without a service it is row 0, which user space ignores. */
static __always_inline __u32 counts_of(__u32 service)
{
	return service ? 1 + (service - 1) % COUNTED_SERVICES : 0;
}

_Static_assert(sizeof(struct service_key) == 20, "hidden padding");
_Static_assert(sizeof(struct service) == 68, "hidden padding");
_Static_assert(sizeof(struct backend_key) == 8, "hidden padding");
_Static_assert(sizeof(struct backend) == 32, "hidden padding");
_Static_assert(sizeof(struct ep_path) == 20, "hidden padding");
_Static_assert(sizeof(struct ct_entry) == 88, "hidden padding");
_Static_assert(sizeof(struct ct_slot) == 128, "hidden padding");
_Static_assert(sizeof(struct endpoint) == 56, "hidden padding");
_Static_assert(sizeof(struct ct_config) == 128, "hidden padding");
_Static_assert(sizeof(struct id_alloc) == 64, "hidden padding");
_Static_assert(sizeof(struct node_state) ==
		       768 + (1 << (BLOOM_LOG - 3)) + 8 * (CLIENT_ROWS + 8) + (8 << EGRESS_SEALS_LOG),
	       "hidden padding");
_Static_assert(sizeof(struct device_key) == 8, "hidden padding");
_Static_assert(sizeof(struct device) == 40, "hidden padding");
_Static_assert(sizeof(struct remote_key) == 20, "hidden padding");
_Static_assert(sizeof(struct remote) == 72, "hidden padding");
_Static_assert(sizeof(struct fragment_key) == 40, "hidden padding");
_Static_assert(sizeof(struct ports) == 4, "hidden padding");

/* max_entries of 1 is a placeholder: user space sets the size when it creates the map. */

/* Services by the address, port and protocol that clients call. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct service_key);
	__type(value, struct service);
} services SEC(".maps");

/* The addresses of the node, at which services with the unspecified address are served. The value is reserved. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, union addr);
	__type(value, __u32);
} node_addresses SEC(".maps");

/* Devices of the host. The loopback device is guarded while there are pods of ipvlan, which may be in layer 3. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct device_key);
	__type(value, struct device);
} devices SEC(".maps");

#define LOOPBACK_IFINDEX 1 /* <net/flow.h> */

static __always_inline const struct device *device_of(__u32 ifindex, enum device_role role)
{
	struct device_key key = { .ifindex = ifindex, .role = role };

	return bpf_map_lookup_elem(&devices, &key);
}

static __always_inline bool is_guarded_device(__u32 ifindex)
{
	return device_of(ifindex, DEVICE_GUARDED);
}

/* The service of a row. One of protocol "any" has a row of protocol 0. */
static __always_inline struct service *service_at_row(struct service_key *key)
{
	struct service *service = bpf_map_lookup_elem(&services, key);
	__u8 proto = key->proto;

	if (service || (proto != IPPROTO_TCP && proto != IPPROTO_UDP))
		return service;
	key->proto = 0;
	service = bpf_map_lookup_elem(&services, key);
	key->proto = proto;
	return service;
}

/* A hash of the frontend of a row. User space computes the same (node_state.go). */
static __always_inline __u32 service_tag(const struct service_key *key)
{
	return (key->addr.halves[0] * HASH_MULTIPLIER ^ key->addr.halves[1] ^ key->port) * HASH_MULTIPLIER >> 32;
}

/* More than the rows that are replaced while a program reads one. */
#define SERVICE_TRIES 4

/*
 * Copies the row found for a key; false if the row has another key by now: look it up again. The kernel reuses the memory of
 * a replaced row for the next row that is written, while programs may still read it.
 */
static __always_inline bool service_copy(const struct service *row, const struct service_key *key, struct service *copy)
{
	*copy = *row;
	asm volatile("" ::: "memory");
	return copy->tag == service_tag(key) && *(volatile const __u32 *)&row->id == copy->id &&
	       *(volatile const __u32 *)&row->revision == copy->revision;
}

static __always_inline struct service *service_at_all(struct service_key *key)
{
	if (addr_is_v4(&key->addr))
		key->addr.words[3] = 0;
	else
		key->addr.halves[0] = key->addr.halves[1] = 0;
	return service_at_row(key);
}

/* The service of a frontend, or else the one at its port of all addresses of the node. Changes key. */
static __always_inline struct service *service_find(struct service_key *key)
{
	struct service *service = service_at_row(key);

	if (service || !bpf_map_lookup_elem(&node_addresses, &key->addr))
		return service;
	return service_at_all(key);
}

/*
 * The addresses of services, each with their number: the programs answer echo requests to them. The kernel does so at those
 * of nodes: services at node ports and at loopback addresses do not count.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, union addr);
	__type(value, __u32);
} service_addrs SEC(".maps");

/* Backends of all services. User space completes a revision before a service refers to it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct backend_key);
	__type(value, struct backend);
} backends SEC(".maps");

/* Translated connections: one row for each direction, by the tuple before translation. There is room for all slots. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct tuple);
	__type(value, struct ct_entry);
} connections SEC(".maps");

/* The connections themselves. User space reads them, and ends some, by mapping them into memory. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ct_slot);
} slots SEC(".maps");

/* Pods of this node by address. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, union addr);
	__type(value, struct endpoint);
} endpoints SEC(".maps");

/* Ranges of pods of other nodes. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct remote_key);
	__type(value, struct remote);
} remotes SEC(".maps");

/* Ports of fragmented packets: only the first fragment carries them. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct fragment_key);
	__type(value, struct ports);
} fragments SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct node_state);
} node_state SEC(".maps");

/* The row of node_state. It is always there; the verifier wants the callers to ask. */
static __always_inline struct node_state *node_state_row(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&node_state, &zero);
}

#endif
