/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_DELIVER_H
#define MUSTANG_DELIVER_H

#include "metrics.h"
#include "rewrite.h"
#include "translate.h"
#include "way.h"

/*
 * The tc_index of a packet that goes from one pod's program straight to another's, which has nothing left to do then.
 * Nothing on the way changes it. A pod can set it on what it sends, by a program of its own behind ours; that leaves the
 * pod's own packets untranslated, and no others.
 */
#define DELIVERED 0x6d73

/* <linux/if_ether.h> packs its header, of which the compiler would copy each byte alone. */
static __always_inline void mac_copy(__u8 *to, const __u8 *from)
{
	*(__u32 *)to = *(const __u32 *)from;
	*(__u16 *)(to + 4) = *(const __u16 *)(from + 4);
}

static __always_inline bool mac_equal(const __u8 *a, const __u8 *b)
{
	return *(const __u32 *)a == *(const __u32 *)b && *(const __u16 *)(a + 4) == *(const __u16 *)(b + 4);
}

/* Gives a packet an Ethernet header, which is not filled in but for the protocol. */
static __always_inline int add_ethernet(struct __sk_buff *skb)
{
	__be16 proto = skb->protocol;
	struct ethhdr *eth;

	if (bpf_skb_change_head(skb, sizeof(*eth), 0))
		return -1;
	eth = header_at(skb, 0, sizeof(*eth));
	if (!eth)
		return -1;
	eth->h_proto = proto;
	return 0;
}

/* Through the host's device of the pod that it is for, past the host's stack. It may be the pod that it came from. */
static __always_inline int deliver_to_device(struct __sk_buff *skb, const struct entrance *entrance,
					     struct metrics *row)
{
	/* The kernel takes the Ethernet header away where the device has none, but adds none. */
	if (!(entrance->flags & ENDPOINT_L3)) {
		struct ethhdr *eth;

		if (config.l3 && add_ethernet(skb))
			return VERDICT_DROP;
		eth = header_at(skb, 0, sizeof(*eth));
		if (!eth)
			return VERDICT_DROP;
		mac_copy(eth->h_dest, entrance->pod_mac);
		mac_copy(eth->h_source, entrance->node_mac);
	}
	/* The kernel takes no bpf_redirect_peer() from a netkit program. */
	if (config.side != SIDE_NETKIT && entrance->flags & ENDPOINT_PEER) {
		row->count[METRIC_REDIRECT_PEER]++;
		/* A bridge's port takes in what is addressed to other pods. The pod would drop it as another host's. */
		if (skb->pkt_type != PACKET_HOST)
			bpf_skb_change_type(skb, PACKET_HOST);
		return bpf_redirect_peer(entrance->ifindex, 0);
	}
	row->count[METRIC_REDIRECT_DEVICE]++;
	skb->tc_index = DELIVERED;
	return bpf_redirect(entrance->ifindex, 0);
}

/* On the pod's own device, back to itself. */
static __always_inline int deliver_to_self(struct __sk_buff *skb, struct metrics *row)
{
	struct ethhdr *eth = header_at(skb, 0, sizeof(*eth));

	if (!eth)
		return VERDICT_DROP;
	row->count[METRIC_HAIRPIN]++;
	skb->tc_index = DELIVERED;
	mac_copy(eth->h_dest, eth->h_source);
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/*
 * On the pod's own device: to the MAC of a pod on the same segment. The kernel chose the gateway's, for the service.
 * The pods of an ipvlan all have one MAC, and a frame that is sent to it finds its pod by the IP address.
 */
static __always_inline int deliver_to_mac(struct __sk_buff *skb, const struct entrance *entrance, struct metrics *row)
{
	struct ethhdr *eth = header_at(skb, 0, sizeof(*eth));

	if (!eth)
		return VERDICT_DROP;
	row->count[METRIC_L2_DELIVERED]++;
	skb->tc_index = DELIVERED;
	mac_copy(eth->h_dest, entrance->pod_mac);
	return VERDICT_NEXT;
}

/* Whether a frame that is left as it is goes to a pod on the same segment: it is addressed to its MAC. */
static __always_inline bool goes_to(struct __sk_buff *skb, const struct entrance *entrance)
{
	const struct ethhdr *eth = header_at(skb, 0, sizeof(*eth));

	return eth && entrance && mac_equal(eth->h_dest, entrance->pod_mac);
}

/* Leaves a packet to the kernel. */
static __always_inline int deliver_by_stack(struct __sk_buff *skb, const struct decision *d, struct metrics *row)
{
	row->count[METRIC_PASSED]++;
	if (config.side == SIDE_POD && !d->connection && goes_to(skb, d->entrance))
		skb->tc_index = DELIVERED;
	else if (skb->tc_index == DELIVERED)
		skb->tc_index = 0; /* from another pod, which this one is a router for */
	return VERDICT_NEXT;
}

/* Sends what came from a pod on its way. */
static __always_inline int deliver(struct __sk_buff *skb, const struct decision *d, enum way way, struct metrics *row)
{
	switch (way) {
	case WAY_DEVICE:
		return deliver_to_device(skb, d->entrance, row);
	case WAY_SELF:
		return deliver_to_self(skb, row);
	case WAY_MAC:
		return deliver_to_mac(skb, d->entrance, row);
	default:
		return deliver_by_stack(skb, d, row);
	}
}

#endif
