/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_REWRITE_H
#define MUSTANG_REWRITE_H

#include <stddef.h>

#include "maps.h"
#include "parse.h"

/* A checksum after what it covers grew by diff (RFC 1624, equation 3). */
static __always_inline __sum16 checksum_add(__sum16 checksum, __u32 diff)
{
	__u32 sum = (__u16)~checksum;

	sum += (diff & 0xffff) + (diff >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Writes the addresses into the IP header at offset l3, whose own checksum it keeps. */
static __always_inline int rewrite_addresses(struct __sk_buff *skb, __u32 l3, bool v6, const struct tuple *to,
					     __u32 diff)
{
	if (v6) {
		struct ipv6hdr *ip = header_at(skb, l3, sizeof(*ip));

		if (!ip)
			return -1;
		for (int i = 0; i < 4; i++) {
			ip->saddr.in6_u.u6_addr32[i] = to->saddr.words[i];
			ip->daddr.in6_u.u6_addr32[i] = to->daddr.words[i];
		}
		/*
		 * The card's sum over the packet, if the kernel keeps one. bpf_l4_csum_replace() takes the change of the
		 * transport's checksum out of it, which in IPv4 the header's checksum makes up for, but not in IPv6.
		 */
		bpf_csum_update(skb, diff);
		return 0;
	}
	struct iphdr *ip = header_at(skb, l3, sizeof(*ip));

	if (!ip)
		return -1;
	ip->saddr = to->saddr.words[3];
	ip->daddr = to->daddr.words[3];
	ip->check = checksum_add(ip->check, diff);
	return 0;
}

/* Writes addresses and ports. Sizes never change, so that a GSO packet stays one. */
static __always_inline int rewrite(struct __sk_buff *skb, const struct packet *packet, const struct connection *c)
{
	bool udp = packet->tuple.proto == IPPROTO_UDP;
	__u32 check = packet->l4 + (udp ? offsetof(struct udphdr, check) : offsetof(struct tcphdr, check));
	__u64 mangled = udp ? BPF_F_MARK_MANGLED_0 : 0;
	__u32 addr_diff = c->addr_diff, port_diff = c->port_diff;

	if (rewrite_addresses(skb, packet->l3, packet->v6, &c->to, addr_diff))
		return -1;
	if (packet->traits & TRAIT_LATER_FRAGMENT)
		return 0;
	if (port_diff) {
		__be16 *ports = header_at(skb, packet->l4, 4);

		if (!ports)
			return -1;
		ports[0] = c->to.sport;
		ports[1] = c->to.dport;
		/* Not with the addresses: a checksum that is left to the card covers their part only. */
		if (bpf_l4_csum_replace(skb, check, 0, port_diff, mangled))
			return -1;
	}
	return bpf_l4_csum_replace(skb, check, 0, addr_diff, BPF_F_PSEUDO_HDR | mangled);
}

#endif
