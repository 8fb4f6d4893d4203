/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_CLAIMS_H
#define MUSTANG_CLAIMS_H

#include "guard.h"
#include "origin.h"
#include "policy.h"
#include "seal.h"

/*
 * The source guard once more, where packets enter a pod's own device. A sender can bypass the programs on its device with a
 * packet socket that skips the queue, AF_XDP, or a second device on the same parent. Its packets then lack a seal. Such
 * packets are dropped if they claim to come from the node, or from a pod of this node whose packets are sealed.
 */

/* Whether packets from an address come by a pod's own device, with a seal. Policies know pods by their link-local addresses too. */
static __always_inline bool is_sealed_pod(const union addr *addr)
{
	const struct cached_endpoint *ep = endpoint_lookup(addr);

	if (unlikely(is_link_local(addr)))
		return identity_of(addr) & IDENTITY_ON_LINK;
	return ep && ep->id && !(ep->path.flags & ENDPOINT_ON_HOST);
}

/* Whether packets from an address come with a seal: such a pod's always, the node's while policies are in force. */
static __always_inline bool is_sealed_source(const union addr *addr)
{
	const struct cached_endpoint *ep = endpoint_lookup(addr);

	if (unlikely(is_link_local(addr)))
		return identity_of(addr) & (IDENTITY_ON_LINK | IDENTITY_OWN_NODE);
	return ep && ep->id ? !(ep->path.flags & ENDPOINT_ON_HOST) : is_own_node(addr);
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

/* Whether an IPv6 packet has an extension header in front of its announcement: a seal does not cover that. */
static __always_inline bool has_extensions(struct __sk_buff *skb)
{
	const struct ipv6hdr *ip6 = header_at(skb, sizeof(struct ethhdr), sizeof(*ip6));

	return skb->protocol == bpf_htons(ETH_P_IPV6) &&
	       !(ip6 && (has_ports(ip6->nexthdr) || ip6->nexthdr == IPPROTO_ICMPV6));
}

/* A tag of a VLAN (IEEE 802.1Q), behind the EtherType that tells of it. */
struct vlan_tag {
	__be16 control;
	__be16 proto; /* of what follows */
};

/* More tags than networks use: a stack of two, and two to spare. */
#define TAGS_MAX 4

/* The offset of the network header, behind the tags of VLANs that are in the frame. *proto is the EtherType, and then the header's. */
static __always_inline __u32 network_header(struct __sk_buff *skb, __be16 *proto)
{
	__u32 offset = sizeof(struct ethhdr);
	struct vlan_tag tag;

	for (int i = 0; i < TAGS_MAX && (*proto == bpf_htons(ETH_P_8021Q) || *proto == bpf_htons(ETH_P_8021AD)); i++) {
		if (bpf_skb_load_bytes(skb, offset, &tag, sizeof(tag)))
			break;
		*proto = tag.proto;
		offset += sizeof(tag);
	}
	return offset;
}

/* The source in an IP header, whatever follows it. False: there is none. */
static __always_inline bool claimed_source(struct __sk_buff *skb, __u32 l3, __be16 proto, union addr *from)
{
	__be32 v4;

	if (proto == bpf_htons(ETH_P_IPV6))
		return !bpf_skb_load_bytes(skb, l3 + offsetof(struct ipv6hdr, saddr), from, sizeof(*from));
	if (proto != bpf_htons(ETH_P_IP) ||
	    bpf_skb_load_bytes(skb, l3 + offsetof(struct iphdr, saddr), &v4, sizeof(v4)))
		return false;
	addr_from_v4(from, v4);
	return true;
}

/* Whether a packet announces the address of such a pod, by ARP or neighbour discovery. */
static __always_inline bool announces(struct __sk_buff *skb, __u32 l3, __be16 proto)
{
	struct packet packet = { .l4 = l3 };
	const struct arp_packet *arp;
	union addr from;

	if (proto == bpf_htons(ETH_P_ARP)) {
		arp = header_at(skb, l3, sizeof(*arp));
		if (!arp)
			return false;
		addr_from_v4(&from, *(const __be32 *)arp->sender_ip);
		return is_sealed_pod(&from);
	}
	return proto == bpf_htons(ETH_P_IPV6) && parse_ipv6(skb, &packet) == PARSE_IP &&
	       packet.tuple.proto == IPPROTO_ICMPV6 && !(packet.traits & TRAIT_LATER_FRAGMENT) &&
	       announces_pod(skb, &packet);
}

/* Looks closely at what a packet claims. Returns why it must be dropped, or DROP_UNSPECIFIED. */
__noinline int guard_claims(struct __sk_buff *skb, bool sealed)
{
	const struct sender *receiver = sender_of(skb);
	__be16 proto = skb->protocol;
	union addr from;
	__u32 l3;

	/* Its switch may remake packets, without their seals. */
	if (!receiver || receiver->flags & (SENDER_UNGUARDED | SENDER_SWITCHED))
		return DROP_UNSPECIFIED;
	if (!pull_headers(skb))
		return DROP_MALFORMED;
	if (!sealed && is_past_guard(skb))
		return skb->protocol == bpf_htons(ETH_P_ARP) ? DROP_NEIGHBOUR : DROP_SOURCE;
	l3 = network_header(skb, &proto);
	if (!sealed && claimed_source(skb, l3, proto, &from) && is_sealed_source(&from))
		return DROP_SOURCE;
	return announces(skb, l3, proto) ? DROP_NEIGHBOUR : DROP_UNSPECIFIED;
}

/* Whether a packet may enter a pod's own device; otherwise it is counted as dropped. */
static __always_inline bool may_enter(struct __sk_buff *skb, struct metrics *row)
{
	bool sealed = is_sealed(skb);
	union addr from;
	__u32 reason;

	if (likely(sealed && !has_extensions(skb)))
		return true;
	if (!sealed && plain_source(skb, &from) && !is_sealed_source(&from) && !is_past_guard(skb))
		return true;
	reason = guard_claims(skb, sealed);
	if (!reason)
		return true;
	count_drop(skb, row, reason);
	return false;
}

#endif
