/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_UPLINK_H
#define MUSTANG_UPLINK_H

#include "dsr.h"
#include "forward.h"

/* The path back to the sender of a packet that came in. False without an Ethernet header. */
static __always_inline bool uplink_path(struct __sk_buff *skb, struct ep_path *uplink)
{
	const struct ethhdr *eth = header_at(skb, 0, sizeof(*eth));

	if (!eth)
		return false;
	uplink->ifindex = skb->ifindex;
	uplink->flags = ENDPOINT_EGRESS;
	/* Two bytes at a time: this is on the stack, where the verifier requires aligned access. */
	for (int i = 0; i < ETH_ALEN / 2; i++) {
		((__u16 *)uplink->pod_mac)[i] = ((const __u16 *)eth->h_source)[i];
		((__u16 *)uplink->node_mac)[i] = ((const __u16 *)eth->h_dest)[i];
	}
	return true;
}

/* Sends replies where requests now come from: the client's router may have changed. */
static __noinline void follow_client(const struct ct_entry *ct, const struct ep_path *uplink)
{
	struct tuple key = tuple_reverse(&ct->to);
	struct ct_entry *reply = bpf_map_lookup_elem(&connections, &key);

	if (!reply || !(reply->path.flags & ENDPOINT_EGRESS) || !(reply->flags & CT_UPLINK))
		return;
	if (reply->path.ifindex != uplink->ifindex || !mac_equal(reply->path.pod_mac, uplink->pod_mac)) {
		reply->path = *uplink;
		conn_cache_invalidate(&key);
	}
}

/*
 * Decides about a packet from outside. Translates only packets to a service, and packets of connections that they opened.
 * Replies to pods that called a service are left to the stack, which has seen the requests; replies of backends on other
 * nodes to clients outside are passed on. A packet whose source is a pod of this node does not come from outside.
 */
static __always_inline void translate_request(const struct packet *packet, const struct ep_path *uplink,
					      struct metrics *row, struct decision *d)
{
	const struct tuple *t = &packet->tuple;
	struct ct_entry *ct = NULL;

	if (!bloom_has_destination(t))
		return;
	if (!(packet->traits & TRAIT_SYN))
		ct = conn_lookup(t, packet->traits);
	if (ct) {
		if (!(ct->flags & CT_UPLINK && ct->flags & (CT_FORWARD | CT_SNAT)))
			return;
		/* A tunnel may bring packets to any address: others are translated at the node's own alone. */
		if (ct->flags & CT_DSR && !(ct->flags & CT_SNAT) && !service_lookup(t))
			return;
		if (is_removed(ct, packet->traits)) {
			decide_drop(d, DROP_BACKEND_REMOVED);
			return;
		}
		use_connection(d, ct);
		if (ct->flags & CT_FORWARD)
			follow_client(ct, uplink);
	} else if (service_lookup(t) && !bpf_map_lookup_elem(&endpoints, &t->saddr)) {
		open_connection(d, packet, uplink, row);
	}
}

/* Decides about a packet that comes in. */
static __always_inline void decide_from_uplink(struct __sk_buff *skb, struct packet *packet, struct metrics *row,
					       struct decision *d)
{
	struct ep_path uplink = {};

	if (!uplink_path(skb, &uplink))
		return;
	find_fragment_ports(packet, row);
	if (packet->traits & TRAIT_PORTS)
		translate_request(packet, &uplink, row, d);
	else if (is_tunnelled(packet))
		decide_tunnelled(skb, packet, row, d);
	if (packet->traits & TRAIT_ICMP_ERROR)
		handle_icmp_error(skb, packet, true, row, d);
	if (packet->traits & TRAIT_ECHO)
		decide_echo(packet, row, d);
	if (d->ct && d->ct->flags & CT_SNAT)
		forward(skb, packet, d);
}

/* Decides about a packet that leaves: only replies to clients that came in by an uplink are translated. */
static __always_inline void decide_to_uplink(struct __sk_buff *skb, struct packet *packet, struct metrics *row,
					     struct decision *d)
{
	find_fragment_ports(packet, row);
	if (packet->traits & TRAIT_PORTS)
		translate_reply(&packet->tuple, packet->traits, d);
	if (d->ct && !(d->ct->flags & CT_UPLINK))
		d->verdict = VERDICT_PASS;
	if (packet->traits & TRAIT_ICMP_ERROR)
		handle_icmp_error(skb, packet, false, row, d);
}

#endif
