/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_DELIVER_H
#define MUSTANG_DELIVER_H

#include "metrics.h"
#include "rewrite.h"
#include "translate.h"

/* Two instances of each program are loaded, over the same maps. */
struct config {
	/* Attached to the host's side of a pod's link; otherwise to the pod's own device. */
	__u8 host_side;
	__u8 pad[7];
};

const volatile struct config config SEC(".rodata");

/* From the host's side of one pod straight into another (or the same), past the host's stack. */
static __always_inline int deliver_to_peer(struct __sk_buff *skb, const struct endpoint *endpoint)
{
	struct ethhdr *eth = header_at(skb, 0, sizeof(*eth));

	if (!eth)
		return VERDICT_DROP;
	__builtin_memcpy(eth->h_dest, endpoint->pod_mac, ETH_ALEN);
	__builtin_memcpy(eth->h_source, endpoint->node_mac, ETH_ALEN);
	/* A bridge's port takes in what is addressed to other pods. The pod would drop it as another host's. */
	if (skb->pkt_type != PACKET_HOST)
		bpf_skb_change_type(skb, PACKET_HOST);
	return bpf_redirect_peer(endpoint->ifindex, 0);
}

/* On the pod's own device, back to itself: no switch returns a frame to its sender. */
static __always_inline int deliver_to_self(struct __sk_buff *skb)
{
	struct ethhdr *eth = header_at(skb, 0, sizeof(*eth));

	if (!eth)
		return VERDICT_DROP;
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* On the pod's own device: to the MAC of a pod on the same segment. The kernel chose the gateway's, for the service. */
static __always_inline int deliver_to_mac(struct __sk_buff *skb, const struct endpoint *endpoint)
{
	struct ethhdr *eth = header_at(skb, 0, sizeof(*eth));

	if (!eth)
		return VERDICT_DROP;
	__builtin_memcpy(eth->h_dest, endpoint->pod_mac, ETH_ALEN);
	return VERDICT_NEXT;
}

/* Sends what came from a pod on its way. */
static __always_inline int deliver(struct __sk_buff *skb, const struct decision *d, struct metrics *row)
{
	__u32 flags = d->connection ? d->connection->flags : 0;

	if (config.host_side && d->endpoint && d->endpoint->flags & ENDPOINT_HOST) {
		row->count[METRIC_REDIRECT_PEER]++;
		return deliver_to_peer(skb, d->endpoint);
	}
	if (!config.host_side && flags & CONNECTION_HAIRPIN) {
		row->count[METRIC_HAIRPIN]++;
		return deliver_to_self(skb);
	}
	if (!config.host_side && flags & CONNECTION_SEGMENT && d->endpoint) {
		row->count[METRIC_L2_DELIVERED]++;
		return deliver_to_mac(skb, d->endpoint);
	}
	row->count[METRIC_PASSED]++;
	return VERDICT_NEXT;
}

#endif
