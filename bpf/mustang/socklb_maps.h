/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_SOCKLB_MAPS_H
#define MUSTANG_SOCKLB_MAPS_H

#include "maps.h"

/* As in maps.h, these structs are the layout of pinned maps. */

/* An address and a port, in network order. */
struct addr_port {
	union addr addr;
	__be16 port;
	__u16 resets; /* of sk_service.service: it had SERVICE_RESET; otherwise 0 */
};

/* The service that a connected socket called, and the backend it got. Port 0: it called no service. */
struct sk_service {
	struct addr_port service;
	struct addr_port backend;
};

/* Backends of an unconnected socket that are kept with the socket. */
#define SK_UDP_BACKENDS 8

/*
 * The backends that an unconnected socket sent to last, and the services that it called. They are the socket's own, so that
 * no other socket can displace them.
 */
struct sk_udp_backends {
	struct bpf_spin_lock lock; /* threads may share a socket */
	__u32 next;                /* the row that a new backend takes, modulo SK_UDP_BACKENDS */
	struct sk_service rows[SK_UDP_BACKENDS];
};

/* An unconnected socket, and a backend that it has sent to. */
struct sk_revnat_key {
	__u64 cookie; /* the socket's */
	struct addr_port backend;
	__u32 pad;
};

enum namespace_flag {
	NAMESPACE_HOST = 1,    /* a host */
	NAMESPACE_POD = 2,     /* has an endpoint: packet programs handle what the socket programs skip */
	NAMESPACE_SOCKETS = 4, /* a pod that has socket translation and no endpoint */
};

/*
 * Why the sockets of a network namespace are translated. Several owners may have registered it, each with one of two
 * flags. A flag stays until its last owner is gone. NAMESPACE_POD is without owner here: it lasts as long as the namespace
 * has rows in endpoints, which have owners.
 */
struct sk_scope {
	__u32 flags;      /* enum namespace_flag */
	__u8 host_owners; /* bits 1 << enum owner, for NAMESPACE_HOST; for user space only, as the next */
	__u8 pod_owners;  /* for NAMESPACE_SOCKETS */
	__u8 reserved[2];
};

_Static_assert(sizeof(struct addr_port) == 20, "hidden padding");
_Static_assert(sizeof(struct sk_scope) == 8, "hidden padding");
_Static_assert(OWNER_LAB < 8, "an owner has a bit in sk_scope");
_Static_assert(sizeof(struct sk_service) == 40, "hidden padding");
_Static_assert(sizeof(struct sk_udp_backends) == 328, "hidden padding");
_Static_assert(sizeof(struct sk_revnat_key) == 32, "hidden padding");

/* Network namespaces with socket translation, by cookie. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, struct sk_scope);
} namespaces SEC(".maps");

/* Sockets that have called a service. The kernel deletes the row with the socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sk_service);
} sockets SEC(".maps");

/* Unconnected sockets that have called a service: answers then come from the service. Deleted as sockets are. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sk_udp_backends);
} udp_backends SEC(".maps");

/* The backends beyond SK_UDP_BACKENDS of a socket. All sockets share it. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct sk_revnat_key);
	__type(value, struct addr_port);
} sk_revnat SEC(".maps");

#endif
