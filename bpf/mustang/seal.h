/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_SEAL_H
#define MUSTANG_SEAL_H

#include "neighbours.h"

/*
 * The seal of a packet that the guard on a pod's own device has let pass. It is in skb->cb, which the drivers of macvlan and
 * ipvlan leave as it is between two pods. It depends on a secret and on the addresses of the packet: a pod that bypasses its
 * programs, or changes a packet behind them, cannot make a seal.
 */

/*
 * The end of skb->cb: queueing disciplines write to its beginning. Where the host routes a pod's packets (ipvlan in layer 3), the
 * kernel clears all but the last word. Half of that word is the pod's token: a hash of its network namespace, which stays the same
 * if the host translates an address. So the rest of a seal serves for addresses of that pod alone.
 */
#define SEAL_LOW 3
#define SEAL_HIGH 4
#define SEAL_TOKEN 0xffff

#define SEAL_MULTIPLIER 0xff51afd7ed558ccd /* of MurmurHash3 */

static __always_inline __u64 seal_mix(__u64 hash, __u64 value)
{
	hash = (hash ^ value) * SEAL_MULTIPLIER;
	return hash ^ hash >> 32;
}

/* The part of ICMPv6 that a seal covers: the addresses in neighbour discovery. The checksum may not be there yet. */
struct discovery_words {
	__be16 type;
	__be16 checksum;
	__be32 flags;
	union addr target;
};

static __always_inline __u64 seal_discovery(__u64 hash, struct __sk_buff *skb, __u32 l4)
{
	const struct discovery_words *words = header_at(skb, l4, sizeof(*words));

	if (!words)
		return hash;
	hash = seal_mix(hash, words->type);
	hash = seal_mix(hash, words->target.halves[0]);
	return seal_mix(hash, words->target.halves[1]);
}

/* The token of the pod in a network namespace. */
static __always_inline __u16 seal_token(__u64 netns)
{
	const struct node_state *node = node_state_row();

	return node ? seal_mix(node->secret[1], netns) >> 16 : 0;
}

/* The seal that a packet ought to have, without the token; 0: packets of its kind have none. */
static __always_inline __u64 seal_of(struct __sk_buff *skb)
{
	const struct node_state *node = node_state_row();
	__u32 l3 = has_ethernet() ? sizeof(struct ethhdr) : 0;
	const struct arp_packet *arp;
	const struct ipv6hdr *ip6;
	const struct iphdr *ip;
	const union addr *addr;
	__u64 hash;

	if (unlikely(!node))
		return 0;
	hash = node->secret[0];
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		ip = header_at(skb, l3, sizeof(*ip));
		if (!ip)
			return 0;
		hash = seal_mix(hash, (__u64)ip->saddr << 32 | ip->daddr);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		ip6 = header_at(skb, l3, sizeof(*ip6));
		if (!ip6)
			return 0;
		addr = (const union addr *)&ip6->saddr;
		for (int i = 0; i < 2; i++, addr++) {
			hash = seal_mix(hash, addr->halves[0]);
			hash = seal_mix(hash, addr->halves[1]);
		}
		if (ip6->nexthdr == IPPROTO_ICMPV6)
			hash = seal_discovery(hash, skb, l3 + sizeof(*ip6));
	} else {
		arp = header_at(skb, l3, sizeof(*arp));
		if (skb->protocol != bpf_htons(ETH_P_ARP) || !arp)
			return 0;
		hash = seal_mix(hash, (__u64) * (const __be32 *)arp->sender_ip << 32 | *(const __be32 *)arp->target_ip);
	}
	hash = seal_mix(hash, node->secret[1]);
	return hash & ~((__u64)SEAL_TOKEN << 32);
}

/* Seals a packet from a pod in a network namespace. */
static __always_inline void seal_as(struct __sk_buff *skb, __u64 netns)
{
	__u64 value = seal_of(skb);

	skb->cb[SEAL_LOW] = value;
	skb->cb[SEAL_HIGH] = value >> 32 | seal_token(netns);
}

/* Seals a packet that leaves a pod by its own device. */
static __always_inline void seal(struct __sk_buff *skb)
{
	if (config.attach_point == ATTACH_POD)
		seal_as(skb, netns_of(skb));
}

/* Whether a packet has the half of the seal that is a hash of the packet, in the word that outlives routing. */
static __always_inline bool has_half(struct __sk_buff *skb, __u64 value)
{
	return value && (skb->cb[SEAL_HIGH] & ~SEAL_TOKEN) == value >> 32;
}

/* Whether a packet has its whole seal. */
static __always_inline bool has_seal(struct __sk_buff *skb, __u64 value)
{
	return has_half(skb, value) && skb->cb[SEAL_LOW] == (__u32)value;
}

static __always_inline bool is_sealed(struct __sk_buff *skb)
{
	return has_seal(skb, seal_of(skb));
}

#endif
