/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_HANDLE_H
#define MUSTANG_HANDLE_H

#include "deliver.h"
#include "frag.h"
#include "icmp.h"

static __always_inline int drop(struct metrics *row, __u32 metric)
{
	count(row, metric);
	return VERDICT_DROP;
}

static __always_inline int pass(struct metrics *row)
{
	row->count[METRIC_PASSED]++;
	return VERDICT_NEXT;
}

static __always_inline bool is_drop(__u32 metric)
{
	return metric >= METRIC_DROP_MALFORMED && metric <= METRIC_DROP_REWRITE;
}

/* Reads a packet. PARSED_IP, or something that settles its fate. */
static __always_inline enum parsed understand(struct __sk_buff *skb, struct packet *packet)
{
	enum parsed parsed = parse(skb, packet);

	return parsed == PARSED_SHORT ? (enum parsed)parse_again(skb, packet) : parsed;
}

static __always_inline int refuse(struct metrics *row, enum parsed parsed)
{
	switch (parsed) {
	case PARSED_OTHER:
		return pass(row);
	case PARSED_EXTENSIONS:
		return drop(row, METRIC_DROP_EXTENSIONS);
	default:
		return drop(row, METRIC_DROP_MALFORMED);
	}
}

/* Finds out the ports, if a fragment has to be asked for them. */
static __always_inline void reassemble_ports(struct packet *packet, struct metrics *row)
{
	if (packet->traits & (TRAIT_FIRST_FRAGMENT | TRAIT_LATER_FRAGMENT) && !fragment_ports(packet))
		row->count[METRIC_UNKNOWN_FRAGMENT]++;
}

/* Translates an ICMP error; nonzero if that went wrong. */
static __always_inline int handle_error(struct __sk_buff *skb, struct packet *packet, bool leaving, struct decision *d)
{
	int done = translate_error(skb, packet, leaving);

	if (done <= 0)
		return done;
	d->metric = METRIC_ICMP_ERROR;
	d->connection = bpf_map_lookup_elem(&connections, &packet->tuple);
	if (d->connection)
		d->entrance = &d->connection->entrance;
	return 0;
}

/* Does what was decided to the packet; nonzero if that went wrong. */
static __always_inline int apply(struct __sk_buff *skb, const struct packet *packet, const struct decision *d,
				 struct metrics *row)
{
	if (d->metric)
		count(row, d->metric);
	if (d->metric == METRIC_PORT_CHANGED)
		row->count[METRIC_NEW_CONNECTION]++;
	if (!d->connection || packet->traits & TRAIT_ICMP_ERROR)
		return 0;
	row->count[d->connection->flags & CONNECTION_FORWARD ? METRIC_FORWARD : METRIC_REVERSE]++;
	return rewrite(skb, packet, d->connection);
}

/* What leaves a pod. */
static __always_inline int handle_from_pod(struct __sk_buff *skb, struct metrics *row)
{
	struct packet packet = {};
	struct decision d = {};
	enum parsed parsed = understand(skb, &packet);
	enum way way;

	if (parsed != PARSED_IP)
		return refuse(row, parsed);
	reassemble_ports(&packet, row);
	if (packet.traits & TRAIT_PORTS)
		translate(&packet.tuple, packet.traits, &d);
	else
		d.entrance = entrance_of(&packet.tuple.daddr);
	if (packet.traits & TRAIT_ICMP_ERROR && handle_error(skb, &packet, true, &d))
		return drop(row, METRIC_DROP_REWRITE);
	if (is_drop(d.metric))
		return drop(row, d.metric);
	way = way_of(d.connection, d.entrance);
	if (!left_to_client(d.connection, way) && apply(skb, &packet, &d, row))
		return drop(row, METRIC_DROP_REWRITE);
	return deliver(skb, &d, way, row);
}

/* What goes into a pod and was not delivered by from_pod. */
static __always_inline int handle_to_pod(struct __sk_buff *skb, struct metrics *row)
{
	struct packet packet = {};
	struct decision d = {};
	enum parsed parsed;

	if (skb->tc_index == DELIVERED) {
		skb->tc_index = 0;
		row->count[METRIC_DELIVERED]++;
		return VERDICT_NEXT;
	}
	parsed = understand(skb, &packet);
	if (parsed != PARSED_IP)
		return refuse(row, parsed);
	reassemble_ports(&packet, row);
	if (packet.traits & TRAIT_PORTS)
		translate_answer(&packet.tuple, packet.traits, &d);
	if (packet.traits & TRAIT_ICMP_ERROR && handle_error(skb, &packet, false, &d))
		return drop(row, METRIC_DROP_REWRITE);
	if (apply(skb, &packet, &d, row))
		return drop(row, METRIC_DROP_REWRITE);
	return pass(row);
}

#endif
