/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_UPLINK_H
#define MUSTANG_UPLINK_H

#include "handle.h"

/* Where a packet came in, and whom the answer is to go to. False if it has no Ethernet header. */
static __always_inline bool arrived(struct __sk_buff *skb, struct entrance *arrival)
{
	const struct ethhdr *eth = header_at(skb, 0, sizeof(*eth));

	if (!eth)
		return false;
	arrival->ifindex = skb->ifindex;
	arrival->flags = ENDPOINT_EGRESS;
	/* On the stack, in twos: there the verifier wants what it calls aligned. */
	for (int i = 0; i < ETH_ALEN / 2; i++) {
		((__u16 *)arrival->pod_mac)[i] = ((const __u16 *)eth->h_source)[i];
		((__u16 *)arrival->node_mac)[i] = ((const __u16 *)eth->h_dest)[i];
	}
	return true;
}

/* Has answers go where requests come from now: another router may have taken the place of the first. */
static __always_inline void follow_client(const struct connection *c, const struct entrance *arrival)
{
	struct tuple key = tuple_reverse(&c->to);
	struct connection *back = bpf_map_lookup_elem(&connections, &key);

	if (!back || !(back->entrance.flags & ENDPOINT_EGRESS) || !(back->flags & CONNECTION_UPLINK))
		return;
	if (back->entrance.ifindex != arrival->ifindex || !mac_equal(back->entrance.pod_mac, arrival->pod_mac))
		back->entrance = *arrival;
}

/*
 * translate() for what comes from outside: only what calls a service, and what belongs to a connection that was made so.
 * Answers to pods that called a service are the stack's, which has seen the requests. A source that is a pod of this node
 * is none that comes from outside.
 */
static __always_inline void translate_request(const struct tuple *t, __u32 traits, const struct entrance *arrival,
					      struct decision *d)
{
	struct connection *c = NULL;

	if (!(traits & TRAIT_OPENING)) {
		c = bpf_map_lookup_elem(&connections, t);
		if (c && !(c->flags & CONNECTION_FORWARD && c->flags & CONNECTION_UPLINK))
			return;
		if (c && traits & TRAIT_CLOSING)
			c->flags |= CONNECTION_CLOSING;
	}
	if (!c) {
		if (!service_of(t) || entrance_of(&t->saddr))
			return;
		d->metric = open_connection(t, arrival);
		if (d->metric != METRIC_NONE)
			c = bpf_map_lookup_elem(&connections, t);
	} else {
		follow_client(c, arrival);
	}
	d->connection = c;
	if (c)
		d->entrance = &c->entrance;
}

/* What comes in. What is of no service passes as it is, sound or not. */
static __always_inline int handle_from_uplink(struct __sk_buff *skb, struct metrics *row)
{
	struct packet packet = {};
	struct entrance arrival = {};
	struct decision d = {};

	if (skb->pkt_type != PACKET_HOST || understand(skb, &packet) != PARSED_IP || !arrived(skb, &arrival))
		return pass(row);
	reassemble_ports(&packet, row);
	if (packet.traits & TRAIT_PORTS)
		translate_request(&packet.tuple, packet.traits, &arrival, &d);
	if (packet.traits & TRAIT_ICMP_ERROR && handle_error(skb, &packet, true, &d))
		return drop(row, METRIC_DROP_REWRITE);
	if (is_drop(d.metric))
		return drop(row, d.metric);
	if (!d.connection)
		return pass(row);
	if (apply(skb, &packet, &d, row))
		return drop(row, METRIC_DROP_REWRITE);
	return deliver(skb, &d, way_of(d.connection, d.entrance), row);
}

/* What goes out, but for what a pod's program has sent here: answers that the stack has brought. */
static __always_inline int handle_to_uplink(struct __sk_buff *skb, struct metrics *row)
{
	struct packet packet = {};
	struct decision d = {};

	if (skb->tc_index == DELIVERED) {
		skb->tc_index = 0;
		row->count[METRIC_DELIVERED]++;
		return VERDICT_NEXT;
	}
	if (understand(skb, &packet) != PARSED_IP)
		return pass(row);
	reassemble_ports(&packet, row);
	if (packet.traits & TRAIT_PORTS)
		translate_answer(&packet.tuple, packet.traits, &d);
	if (d.connection && !(d.connection->flags & CONNECTION_UPLINK))
		return pass(row);
	if (packet.traits & TRAIT_ICMP_ERROR && handle_error(skb, &packet, false, &d))
		return drop(row, METRIC_DROP_REWRITE);
	if (apply(skb, &packet, &d, row))
		return drop(row, METRIC_DROP_REWRITE);
	return pass(row);
}

#endif
