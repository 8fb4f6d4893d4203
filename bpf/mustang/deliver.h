/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_DELIVER_H
#define MUSTANG_DELIVER_H

#include "drops.h"
#include "rewrite.h"
#include "service_counts.h"
#include "translate.h"

/*
 * The tc_index of a packet that one pod's program sends straight to another pod, whose program then has nothing to do. The
 * kernel does not change it on the way. A pod can set it on packets that it sends, with a program of its own behind ours;
 * only its own packets then stay untranslated. Policies do not go by it: a program on a pod's own device judges the packet again, and
 * one on the host's device looks for a word in skb->cb that only our programs know.
 */
#define DELIVERED 0x6d73

/* The last word of skb->cb: queueing disciplines write to its beginning. */
#define DELIVERED_WORD 4

/* It has a bit that no tunnel writes there. */
static __always_inline __u32 delivered_word(void)
{
	const struct node_state *node = node_state_row();

	return node ? node->secret[0] >> 32 | 1U << 31 : 0;
}

/* Marks a packet for the program that it goes to. */
static __always_inline void mark_delivered(struct __sk_buff *skb)
{
	skb->tc_index = DELIVERED;
	if (config.attach_point != ATTACH_POD)
		skb->cb[DELIVERED_WORD] = delivered_word();
}

/* Whether this is the host's device of a pod. */
static __always_inline bool is_at_host(void)
{
	return config.attach_point == ATTACH_HOST || config.attach_point == ATTACH_TUN ||
	       config.attach_point == ATTACH_NETKIT;
}

static __always_inline int drop(struct __sk_buff *skb, struct metrics *row, __u32 reason)
{
	count_drop(skb, row, reason);
	return ACTION_DROP;
}

static __always_inline int pass(struct metrics *row)
{
	row->count[METRIC_PASSED]++;
	return ACTION_NEXT;
}

/* The action for a packet that parse_packet() did not parse. */
static __always_inline int handle_unparsed(struct __sk_buff *skb, enum parse_result parsed, struct metrics *row)
{
	switch (parsed) {
	case PARSE_OTHER:
		return pass(row);
	case PARSE_EXTENSIONS:
		return drop(skb, row, DROP_EXTENSIONS);
	default:
		return drop(skb, row, DROP_MALFORMED);
	}
}

/* Whether a program of another pod, or of another device, has finished with the packet. */
static __always_inline bool is_delivered(struct __sk_buff *skb, struct metrics *row)
{
	if (likely(skb->tc_index != DELIVERED))
		return false;
	skb->tc_index = 0;
	if (is_at_host()) {
		if (skb->cb[DELIVERED_WORD] != delivered_word())
			return false;
		skb->cb[DELIVERED_WORD] = 0; /* a pod that forwards the packet could show it again */
	}
	row->count[METRIC_DELIVERED]++;
	return true;
}

/* Carries out the verdict. False: the packet must be dropped, and is counted, or answered. */
static __always_inline bool apply(struct __sk_buff *skb, const struct packet *packet, const struct decision *d,
				  struct metrics *row)
{
	if (unlikely(d->verdict == VERDICT_DROP)) {
		count_drop(skb, row, d->reason);
		return false;
	}
	if (unlikely(d->verdict == VERDICT_ANSWER))
		return false;
	if (d->verdict == VERDICT_PASS || !d->ct)
		return true;
	row->count[d->ct->flags & CT_FORWARD ? METRIC_FORWARD : METRIC_REVERSE]++;
	count_of_service(skb, d->ct);
	if (unlikely(rewrite(skb, packet, d->ct))) {
		count_drop(skb, row, DROP_REWRITE);
		return false;
	}
	return true;
}

/* <linux/if_ether.h> packs struct ethhdr, which the compiler would copy byte by byte. */
static __always_inline void mac_copy(__u8 *to, const __u8 *from)
{
	*(__u32 *)to = *(const __u32 *)from;
	*(__u16 *)(to + 4) = *(const __u16 *)(from + 4);
}

static __always_inline bool mac_equal(const __u8 *a, const __u8 *b)
{
	return *(const __u32 *)a == *(const __u32 *)b && *(const __u16 *)(a + 4) == *(const __u16 *)(b + 4);
}

/* Adds an Ethernet header without addresses. */
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

/* Gives a packet the Ethernet header that the device of the path needs. The kernel removes one that it does not need. */
static __always_inline int write_ethernet(struct __sk_buff *skb, const struct ep_path *path)
{
	struct ethhdr *eth;

	if (path->flags & ENDPOINT_L3)
		return 0;
	if (!has_ethernet() && add_ethernet(skb))
		return -1;
	eth = header_at(skb, 0, sizeof(*eth));
	if (!eth)
		return -1;
	mac_copy(eth->h_dest, path->pod_mac);
	mac_copy(eth->h_source, path->node_mac);
	return 0;
}

/* Into the pod, which may be the sender, from its device on the host. */
static __always_inline int deliver_to_peer(struct __sk_buff *skb, const struct ep_path *path, struct metrics *row)
{
	if (write_ethernet(skb, path))
		return drop(skb, row, DROP_REWRITE);
	row->count[METRIC_REDIRECT_PEER]++;
	/* A port of a bridge receives frames for other pods too. The pod would drop them as another host's. */
	if (unlikely(skb->pkt_type != PACKET_HOST))
		bpf_skb_change_type(skb, PACKET_HOST);
	return bpf_redirect_peer(path->ifindex, 0);
}

/* Out of a device of the host. */
static __always_inline int deliver_to_device(struct __sk_buff *skb, const struct ep_path *path, struct metrics *row)
{
	if (write_ethernet(skb, path))
		return drop(skb, row, DROP_REWRITE);
	row->count[METRIC_REDIRECT_DEVICE]++;
	mark_delivered(skb);
	return bpf_redirect(path->ifindex, 0);
}

/* Out of an uplink, to the next hop that the kernel's routes and neighbour table name. */
static __always_inline int deliver_to_next_hop(struct __sk_buff *skb, const struct ep_path *path, struct metrics *row)
{
	row->count[METRIC_REDIRECT_ROUTED]++;
	skb->tc_index = DELIVERED;
	return bpf_redirect_neigh(path->ifindex, NULL, 0, 0);
}

/* From the pod's own device back to it. */
static __always_inline int deliver_to_self(struct __sk_buff *skb, struct metrics *row)
{
	struct ethhdr *eth = header_at(skb, 0, sizeof(*eth));

	if (!eth)
		return drop(skb, row, DROP_REWRITE);
	row->count[METRIC_HAIRPIN]++;
	skb->tc_index = DELIVERED;
	mac_copy(eth->h_dest, eth->h_source);
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/*
 * To the MAC address of a pod on the same segment; the kernel has set the gateway's. The pods of an ipvlan share one MAC
 * address, and the kernel finds the pod by the IP address.
 */
static __always_inline int deliver_to_segment(struct __sk_buff *skb, const struct ep_path *path, struct metrics *row)
{
	struct ethhdr *eth = header_at(skb, 0, sizeof(*eth));

	if (!eth)
		return drop(skb, row, DROP_REWRITE);
	row->count[METRIC_L2_DELIVERED]++;
	skb->tc_index = DELIVERED;
	mac_copy(eth->h_dest, path->pod_mac);
	return ACTION_NEXT;
}

/* Whether a frame is addressed to the MAC address of a pod on the same segment. */
static __always_inline bool addressed_to(struct __sk_buff *skb, const struct ep_path *path)
{
	const struct ethhdr *eth = header_at(skb, 0, sizeof(*eth));

	return eth && path && mac_equal(eth->h_dest, path->pod_mac);
}

/* By the kernel. */
static __always_inline int deliver_to_stack(struct __sk_buff *skb, const struct decision *d, struct metrics *row)
{
	row->count[METRIC_PASSED]++;
	if (config.attach_point == ATTACH_POD && !d->ct && addressed_to(skb, d->path))
		skb->tc_index = DELIVERED;
	else if (skb->tc_index == DELIVERED)
		skb->tc_index = 0; /* from another pod, for which this one is a router */
	return ACTION_NEXT;
}

/* Sends a packet to its next hop. */
static __always_inline int deliver(struct __sk_buff *skb, const struct decision *d, struct metrics *row)
{
	switch (next_hop_of(d->ct, d->path)) {
	case NEXT_HOP_PEER:
		return deliver_to_peer(skb, d->path, row);
	case NEXT_HOP_DEVICE:
		return deliver_to_device(skb, d->path, row);
	case NEXT_HOP_ROUTED:
		return deliver_to_next_hop(skb, d->path, row);
	case NEXT_HOP_SEGMENT:
		return deliver_to_segment(skb, d->path, row);
	case NEXT_HOP_SELF:
		return deliver_to_self(skb, row);
	default:
		return deliver_to_stack(skb, d, row);
	}
}

#endif
