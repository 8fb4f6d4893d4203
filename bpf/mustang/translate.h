/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_TRANSLATE_H
#define MUSTANG_TRANSLATE_H

#include "conn_cache.h"
#include "ct_open.h"
#include "next_hop.h"
#include "parse.h"

/* The decision about a packet. */
struct decision {
	struct __sk_buff *skb;
	enum verdict verdict;
	enum drop_reason reason;    /* of VERDICT_DROP */
	struct ct_entry *ct;        /* the packet's connection; NULL if it has none */
	const struct ep_path *path; /* into the pod that receives it; NULL if that is not on this node, or not known */
	__u32 mtu;                  /* of DROP_TOO_BIG: bytes of an IP packet */
};

static __always_inline void decide_drop(struct decision *d, enum drop_reason reason)
{
	d->verdict = VERDICT_DROP;
	d->reason = reason;
}

/* Whether a packet is of a connection whose backend was removed. Its sender is to learn that; a TCP reset goes through. */
static __always_inline bool is_removed(const struct ct_entry *ct, __u32 traits)
{
	return unlikely(ct->flags & CT_REMOVED) && !(traits & TRAIT_RST);
}

/* Decides to translate by a connection, unless a policy has come to deny it. */
static __always_inline void use_connection(struct decision *d, struct ct_entry *ct)
{
	d->verdict = VERDICT_TRANSLATE;
	d->ct = ct;
	d->path = &ct->path;
	if (unlikely(ct->denied))
		decide_drop(d, ct->denied);
}

/* Opens a connection if the packet needs one, and decides to translate by it. */
static __always_inline void open_connection(struct decision *d, const struct packet *packet,
					    const struct ep_path *uplink, struct metrics *row)
{
	struct outcome outcome = ct_stored(ct_open(d->skb, &packet->tuple, uplink, packet->traits));

	if (outcome.verdict == VERDICT_PASS)
		return;
	if (outcome.verdict == VERDICT_DROP) {
		decide_drop(d, outcome.reason);
		return;
	}
	count(row, outcome.metric);
	if (outcome.metric == METRIC_PORT_CHANGED)
		row->count[METRIC_NEW_CONNECTION]++;
	d->ct = ct_opened();
	if (d->ct)
		use_connection(d, d->ct);
}

/*
 * Whether a packet without a connection needs none for certain. For TCP in the middle of a connection it is enough that
 * no service is called. A UDP packet may collide with another connection (ct_open_direct).
 */
static __always_inline bool is_direct(const struct tuple *t, const struct ep_path *path)
{
	struct tuple reply = tuple_reverse(t);

	/* If a pod of this node has the address, no service has it. */
	if (!path && service_lookup(t))
		return false;
	return t->proto != IPPROTO_UDP || !conn_lookup(&reply, 0);
}

/*
 * Decides about a packet that leaves a pod. One lookup finds its connection, in either direction. A SYN asks the service
 * first: it must not follow an old row to a backend that is gone. UDP, and TCP whose row was evicted, choose a backend.
 */
static __always_inline void translate(const struct packet *packet, struct metrics *row, struct decision *d)
{
	const struct tuple *t = &packet->tuple;
	__u32 traits = packet->traits;
	bool called = bloom_has_destination(t), known = called || bloom_has_source(t);
	struct ct_entry *ct;

	if (known && !(traits & TRAIT_SYN)) {
		ct = conn_lookup(t, traits);
		if (ct && ct->flags & CT_DIRECT) {
			d->path = endpoint_path(&t->daddr);
			return;
		}
		if (ct && is_removed(ct, traits)) {
			decide_drop(d, DROP_BACKEND_REMOVED);
			return;
		}
		if (ct) {
			use_connection(d, ct);
			if (translated_at_client(ct) && d->verdict != VERDICT_DROP)
				d->verdict = VERDICT_PASS;
			return;
		}
	}
	/* On the pod's own device the path saves the look-ups of to_pod, if it has any (deliver_to_stack). */
	if (known || config.attach_point != ATTACH_POD)
		d->path = endpoint_path(&t->daddr);
	if (called && (traits & TRAIT_SYN || !is_direct(t, d->path)))
		open_connection(d, packet, NULL, row);
}

/*
 * Decides about a packet that enters a pod, or leaves by an uplink: only replies are translated there. One of a backend on
 * another node, which was removed, stays as it is: the client knows no such connection, and resets it.
 */
static __always_inline void translate_reply(const struct tuple *t, __u32 traits, struct decision *d)
{
	struct ct_entry *ct = bloom_has_source(t) ? conn_lookup(t, traits) : NULL;

	if (ct && !(ct->flags & (CT_FORWARD | CT_DIRECT)) && !is_removed(ct, traits))
		use_connection(d, ct);
}

#endif
