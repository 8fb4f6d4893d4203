/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_GUARD_H
#define MUSTANG_GUARD_H

#include "deliver.h"
#include "neighbours.h"
#include "senders.h"

/*
 * The source guard: packets that leave a pod have one of its addresses and its MAC address, and announce no others. The row
 * of a source address in endpoints leads to a device; a packet that came by that very device is the pod's. All else is
 * looked at closely: ARP, neighbour discovery, addresses without a row. A device without a row in senders sends nothing.
 */

/* The source of a packet that announces no address: TCP, UDP and SCTP of IPv6, all of IPv4. False: it is to be looked at closely. */
static __always_inline bool plain_source(struct __sk_buff *skb, union addr *from)
{
	const struct ethhdr *eth;
	const struct ipv6hdr *ip6;
	const struct iphdr *ip;
	__be16 proto = skb->protocol;
	__u32 l3 = 0;

	if (skb->vlan_present)
		return false;
	if (has_ethernet()) {
		eth = header_at(skb, 0, sizeof(*eth));
		l3 = sizeof(*eth);
		/* Devices go by either. A packet socket can set both. */
		if (!eth || eth->h_proto != proto)
			return false;
	}
	if (proto == bpf_htons(ETH_P_IP)) {
		ip = header_at(skb, l3, sizeof(*ip));
		if (!ip)
			return false;
		addr_from_v4(from, ip->saddr);
		return true;
	}
	if (proto != bpf_htons(ETH_P_IPV6))
		return false;
	ip6 = header_at(skb, l3, sizeof(*ip6));
	if (!ip6 || !has_ports(ip6->nexthdr))
		return false;
	addr_from_v6(from, &ip6->saddr);
	return true;
}

/* Whether a packet has this MAC address as its source, or none at all. */
static __always_inline bool is_from_mac(struct __sk_buff *skb, const __u8 *mac)
{
	const struct ethhdr *eth;

	if (!has_ethernet())
		return true;
	eth = header_at(skb, 0, sizeof(*eth));
	return eth && mac_equal(eth->h_source, mac);
}

/* Whether a packet from an address is certainly the pod's: the row of the address leads to this device. */
static __always_inline bool is_genuine(struct __sk_buff *skb, const union addr *from)
{
	const struct cached_endpoint *ep = endpoint_lookup(from);

	return ep && ep->id && leads_here(skb, &ep->path, ep->netns) && is_from_mac(skb, ep->path.pod_mac);
}

static __always_inline enum drop_reason guard_ipv4(struct __sk_buff *skb, const struct sender *sender, __u32 l3)
{
	const struct iphdr *ip = header_at(skb, l3, sizeof(*ip));
	const struct udphdr *udp;
	union addr from;

	if (!ip)
		return DROP_MALFORMED;
	addr_from_v4(&from, ip->saddr);
	if (may_send_from(sender, &from))
		return DROP_UNSPECIFIED;
	/* A client without an address asks a DHCP server for one (RFC 2131). */
	if (ip->saddr || !(sender->flags & SENDER_DHCP) || ip->protocol != IPPROTO_UDP || ip->ihl != 5 ||
	    ip->frag_off & bpf_htons(0x3fff))
		return DROP_SOURCE;
	udp = header_at(skb, l3 + sizeof(*ip), sizeof(*udp));
	return udp && udp->source == bpf_htons(68) && udp->dest == bpf_htons(67) ? DROP_UNSPECIFIED : DROP_SOURCE;
}

static __always_inline enum drop_reason guard_ipv6(struct __sk_buff *skb, const struct sender *sender, __u32 l3)
{
	struct packet packet = { .l4 = l3 };
	bool from_none;

	switch (parse_ipv6(skb, &packet)) {
	case PARSE_SHORT:
	case PARSE_MALFORMED:
		return DROP_MALFORMED;
	case PARSE_EXTENSIONS:
		return DROP_EXTENSIONS;
	default:
		break;
	}
	from_none = !packet.tuple.saddr.halves[0] && !packet.tuple.saddr.halves[1];
	if (packet.tuple.proto == IPPROTO_ICMPV6 && !(packet.traits & TRAIT_LATER_FRAGMENT))
		return guard_icmpv6(skb, sender, &packet, from_none);
	return may_send_from(sender, &packet.tuple.saddr) ? DROP_UNSPECIFIED : DROP_SOURCE;
}

/* Bytes that the checks read, apart from options of neighbour discovery. */
#define GUARD_BYTES 128

static __always_inline bool pull_headers(struct __sk_buff *skb)
{
	/* The headers of a GSO packet are linear. The chunks of one of SCTP are neither, nor to be made so. */
	if (skb->gso_size || skb->data_end - skb->data >= GUARD_BYTES || skb->data_end - skb->data >= skb->len)
		return true;
	return !bpf_skb_pull_data(skb, skb->len < GUARD_BYTES ? skb->len : GUARD_BYTES);
}

/* Looks closely at a packet that is not certainly its sender's. Returns why it must be dropped, or DROP_UNSPECIFIED. */
__noinline int guard_closely(struct __sk_buff *skb)
{
	const struct sender *sender = sender_of(skb);
	const struct ethhdr *eth;
	__be16 proto = skb->protocol;
	__u32 l3 = 0;

	if (!sender)
		return DROP_SOURCE;
	if (sender->flags & SENDER_UNGUARDED)
		return DROP_UNSPECIFIED;
	if (skb->vlan_present)
		return DROP_ETHERTYPE;
	if (!pull_headers(skb))
		return DROP_MALFORMED;
	if (has_ethernet()) {
		eth = header_at(skb, 0, sizeof(*eth));
		if (!eth)
			return DROP_MALFORMED;
		if (eth->h_proto != proto)
			return DROP_ETHERTYPE;
		if (!mac_equal(eth->h_source, sender->mac))
			return DROP_SOURCE_MAC;
		l3 = sizeof(*eth);
	}
	if (proto == bpf_htons(ETH_P_IP))
		return guard_ipv4(skb, sender, l3);
	if (proto == bpf_htons(ETH_P_IPV6))
		return guard_ipv6(skb, sender, l3);
	if (proto == bpf_htons(ETH_P_ARP) && has_ethernet())
		return guard_arp(skb, sender, l3);
	return DROP_ETHERTYPE;
}

/* Notes that a packet from an address may pass here. */
static __always_inline void guard_cache_put(struct __sk_buff *skb, struct cached_source *cached, const union addr *from,
					    __u64 netns, const struct validity *now)
{
	const struct ethhdr *eth = header_at(skb, 0, sizeof(*eth));

	/* Without an address a pod may ask a DHCP server, and no more. */
	if (!eth || !from->words[3])
		return;
	begin_copy(&cached->validity, now);
	cached->from = *from;
	cached->netns = netns;
	cached->ifindex = skb->ifindex;
	mac_copy(cached->mac, eth->h_source);
}

/* Whether a packet that leaves an endpoint is certainly from one of its addresses in endpoints. */
static __always_inline bool has_own_source(struct __sk_buff *skb)
{
	union addr from;

	return plain_source(skb, &from) && is_genuine(skb, &from);
}

/* Whether another packet that leaves an endpoint may pass; otherwise it is counted as dropped. */
static __always_inline bool guard_passes(struct __sk_buff *skb, struct metrics *row)
{
	__u32 reason = guard_closely(skb);

	if (!reason)
		return true;
	count_drop(skb, row, reason);
	return false;
}

/* This CPU's row for sources found genuine; NULL cannot occur. Sets now to the validity of a new copy. */
static __always_inline struct cached_source *guard_cache_row(const union addr *from, struct validity *now)
{
	const struct node_state *node = node_state_row();
	__u32 slot = (from->halves[1] ^ from->halves[0]) * HASH_MULTIPLIER >> (64 - CACHE_LOG);
	struct cache *row;

	if (!node)
		return NULL;
	*now = validity_now(&node->rows);
	row = bpf_map_lookup_elem(&cache, &slot);
	return row ? &row->source : NULL;
}

/* guard_passes() for a pod without endpoint: its addresses are in senders alone. */
static __always_inline bool guard_passes_alone(struct __sk_buff *skb, struct metrics *row)
{
	__u64 netns = config.attach_point == ATTACH_POD ? netns_of(skb) : 0;
	struct cached_source *cached = NULL;
	struct validity now;
	union addr from;
	__u32 reason;

	if (plain_source(skb, &from)) {
		cached = guard_cache_row(&from, &now);
		if (cached && is_valid(&cached->validity, &now) && addr_equal(&cached->from, &from) &&
		    cached->ifindex == skb->ifindex && cached->netns == netns && is_from_mac(skb, cached->mac))
			return true;
	}
	reason = guard_closely(skb);
	if (reason) {
		count_drop(skb, row, reason);
		return false;
	}
	if (cached)
		guard_cache_put(skb, cached, &from, netns, &now);
	return true;
}

#endif
