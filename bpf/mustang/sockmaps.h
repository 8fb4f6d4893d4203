/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_SOCKMAPS_H
#define MUSTANG_SOCKMAPS_H

#include "maps.h"

/* Like those of maps.h, these structs are the layout of pinned maps. */

/* One end of what a socket sends. The port is in network order. */
struct end {
	union addr addr;
	__be16 port;
	__u16 pad;
};

/* Whom a connected socket called, and whom it reached. Port 0: it called no service. */
struct socket {
	struct end service;
	struct end backend;
};

/* A backend that an unconnected socket has sent to. */
struct talk {
	__u64 cookie; /* the socket's */
	struct end backend;
	__u32 pad;
};

enum namespace_flag {
	NAMESPACE_HOST = 1, /* was added for itself */
	NAMESPACE_POD = 2,  /* has an endpoint, so that what the socket programs leave alone meets those for packets */
	NAMESPACE_SOCKETS = 4, /* a pod without an endpoint that was added */
};

_Static_assert(sizeof(struct end) == 20, "no hidden padding");
_Static_assert(sizeof(struct socket) == 40, "no hidden padding");
_Static_assert(sizeof(struct talk) == 32, "no hidden padding");

/* The network namespaces whose sockets are translated, by cookie, with flags. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, __u32);
} namespaces SEC(".maps");

/* Sockets that have called a service. A socket's row goes when the socket goes, and not before. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct socket);
} sockets SEC(".maps");

/* What services unconnected sockets meant when they sent to a backend, so that answers come from the service. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct talk);
	__type(value, struct end);
} talks SEC(".maps");

#endif
