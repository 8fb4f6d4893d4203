/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_CLAIMS_H
#define MUSTANG_CLAIMS_H

#include "guard.h"
#include "seal.h"

/*
 * The source guard once more, where packets enter a pod's own device. The sender can get past the programs on its device: by a
 * packet socket that skips the queue, by AF_XDP, by a second device on the same parent. Then its packets have no seal, and may
 * not claim to come from a pod of this node whose packets have one.
 */

/* Whether packets from an address come by a pod's own device, with a seal. */
static __always_inline bool is_sealed_pod(const union addr *addr)
{
	const struct way *way = way_find(addr);

	return way && way->endpoint && !(way->path.flags & ENDPOINT_ON_HOST);
}

/* Whether an ICMPv6 message announces the address of such a pod. */
static __always_inline bool announces_pod(struct __sk_buff *skb, const struct packet *packet)
{
	const struct icmp_header *icmp = header_at(skb, packet->l4, sizeof(*icmp));
	union addr target;

	if (!icmp || (icmp->type != ICMPV6_NEIGHBOUR_ADVERTISEMENT && icmp->type != ICMPV6_NEIGHBOUR_SOLICITATION))
		return false;
	/* A solicitation is about the address that it asks for; of an unspecified source, about its own. */
	if (icmp->type == ICMPV6_NEIGHBOUR_SOLICITATION &&
	    (packet->tuple.saddr.halves[0] || packet->tuple.saddr.halves[1]))
		return false;
	return !bpf_skb_load_bytes(skb, packet->l4 + sizeof(*icmp), &target, sizeof(target)) && is_sealed_pod(&target);
}

/* Whether an IPv6 packet has an extension header in front of what it announces: a seal does not cover that. */
static __always_inline bool has_extensions(struct __sk_buff *skb)
{
	const struct ipv6hdr *ip6 = header_at(skb, sizeof(struct ethhdr), sizeof(*ip6));

	return skb->protocol == bpf_htons(ETH_P_IPV6) &&
	       !(ip6 && (has_ports(ip6->nexthdr) || ip6->nexthdr == IPPROTO_ICMPV6));
}

/* Looks closely at what a packet claims. Returns why it must be dropped, or DROP_UNSPECIFIED. */
__noinline int guard_claims(struct __sk_buff *skb, bool sealed)
{
	struct packet packet = { .l4 = sizeof(struct ethhdr) };
	const struct sender *receiver = sender_of(skb);
	const struct arp_packet *arp;
	const struct iphdr *ip;
	union addr from;

	/* Its switch may remake packets, without their seals. */
	if (!receiver || receiver->flags & (SENDER_UNGUARDED | SENDER_SWITCHED))
		return DROP_UNSPECIFIED;
	if (!pull_headers(skb))
		return DROP_MALFORMED;
	if (skb->protocol == bpf_htons(ETH_P_ARP)) {
		arp = header_at(skb, sizeof(struct ethhdr), sizeof(*arp));
		if (!arp)
			return DROP_UNSPECIFIED;
		addr_from_v4(&from, *(const __be32 *)arp->sender_ip);
		return is_sealed_pod(&from) ? DROP_NEIGHBOUR : DROP_UNSPECIFIED;
	}
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		ip = header_at(skb, sizeof(struct ethhdr), sizeof(*ip));
		if (!ip)
			return DROP_UNSPECIFIED;
		addr_from_v4(&from, ip->saddr);
		return is_sealed_pod(&from) ? DROP_SOURCE : DROP_UNSPECIFIED;
	}
	if (skb->protocol != bpf_htons(ETH_P_IPV6) || parse_ipv6(skb, &packet) != PARSE_IP)
		return DROP_UNSPECIFIED;
	if (!sealed && is_sealed_pod(&packet.tuple.saddr))
		return DROP_SOURCE;
	if (packet.tuple.proto != IPPROTO_ICMPV6 || packet.traits & TRAIT_LATER_FRAGMENT)
		return DROP_UNSPECIFIED;
	return announces_pod(skb, &packet) ? DROP_NEIGHBOUR : DROP_UNSPECIFIED;
}

/* Whether a packet may enter a pod's own device; otherwise it is counted as dropped. */
static __always_inline bool may_enter(struct __sk_buff *skb, struct metrics *row)
{
	bool sealed = is_sealed(skb);
	union addr from;
	__u32 reason;

	if (likely(sealed && !has_extensions(skb)))
		return true;
	if (!sealed && plain_source(skb, &from) && !is_sealed_pod(&from))
		return true;
	reason = guard_claims(skb, sealed);
	if (!reason)
		return true;
	count_drop(row, reason);
	return false;
}

#endif
