/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_TRANSLATE_H
#define MUSTANG_TRANSLATE_H

#include "connect.h"
#include "parse.h"

/* What is to be done with a packet. */
struct decision {
	struct connection *connection;   /* rewrite the packet by it; NULL: leave it */
	const struct entrance *entrance; /* of the pod that it is for then; NULL: none of this node, or nobody asked */
	__u32 metric;                    /* a drop's reason, or something to count, or METRIC_NONE */
};

/* The way into the pod that has an address; NULL if no pod of this node has it. */
static __always_inline const struct entrance *entrance_of(const union addr *addr)
{
	struct endpoint *endpoint = bpf_map_lookup_elem(&endpoints, addr);

	return endpoint ? &endpoint->entrance : NULL;
}

/*
 * Whether a packet that has no connection goes past all services for certain. TCP that is under way is not looked at
 * further; UDP may be in the way of another connection (see open_direct).
 */
static __always_inline bool goes_straight(const struct tuple *t, const struct entrance *entrance)
{
	struct tuple back;

	/* The address of a pod of this node is no service's. */
	if (!entrance && service_of(t))
		return false;
	if (t->proto == IPPROTO_TCP)
		return true;
	back = tuple_reverse(t);
	return !bpf_map_lookup_elem(&connections, &back);
}

/*
 * Translates services, whichever program meets the packet first; it sees plain structs only. One lookup finds a
 * connection in either direction. A SYN asks the service first, so that no new connection follows an old entry to a
 * backend that is gone. TCP in the middle of a connection to a service, whose entry was evicted, and UDP choose a
 * backend.
 */
static __always_inline void translate(const struct tuple *t, __u32 traits, struct decision *d)
{
	if (!(traits & TRAIT_OPENING)) {
		d->connection = bpf_map_lookup_elem(&connections, t);
		if (d->connection) {
			if (traits & TRAIT_CLOSING)
				d->connection->flags |= CONNECTION_CLOSING;
			d->entrance = &d->connection->entrance;
			return;
		}
	}
	d->entrance = entrance_of(&t->daddr);
	if (!(traits & TRAIT_OPENING) && goes_straight(t, d->entrance))
		return;
	d->metric = open_connection(t, NULL);
	if (d->metric == METRIC_NONE)
		return;
	d->connection = bpf_map_lookup_elem(&connections, t);
	if (d->connection)
		d->entrance = &d->connection->entrance;
}

/* The same for what goes into a pod, which can only be an answer. */
static __always_inline void translate_answer(const struct tuple *t, __u32 traits, struct decision *d)
{
	struct connection *c = bpf_map_lookup_elem(&connections, t);

	if (!c || c->flags & CONNECTION_FORWARD)
		return;
	if (traits & TRAIT_CLOSING)
		c->flags |= CONNECTION_CLOSING;
	d->connection = c;
}

#endif
