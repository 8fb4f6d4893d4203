/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_REWRITE_H
#define MUSTANG_REWRITE_H

#include <stddef.h>

#include "maps.h"
#include "parse.h"

/* The checksum after the sum over the data grew by diff (RFC 1624, equation 3). */
static __always_inline __sum16 checksum_add(__sum16 checksum, __u32 diff)
{
	__u32 sum = (__u16)~checksum;

	sum += (diff & 0xffff) + (diff >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Writes the addresses into the IP header at offset l3, and updates the checksum of an IPv4 header. */
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
		 * Updates the sum over the packet from the network card, if the kernel keeps one (CHECKSUM_COMPLETE).
		 * bpf_l4_csum_replace() subtracts the change of the transport checksum from it. In IPv4 the change of
		 * the header checksum compensates for the addresses; IPv6 has none.
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

/* Writes addresses and ports. No size changes, so that a GSO packet stays valid. */
static __always_inline int rewrite(struct __sk_buff *skb, const struct packet *packet, const struct ct_entry *ct)
{
	bool udp = packet->tuple.proto == IPPROTO_UDP;
	__u32 check = packet->l4 + (udp ? offsetof(struct udphdr, check) : offsetof(struct tcphdr, check));
	__u64 mangled = udp ? BPF_F_MARK_MANGLED_0 : 0;
	__u32 addr_diff = ct->addr_diff, port_diff = ct->port_diff;

	if (rewrite_addresses(skb, packet->l3, packet->v6, &ct->to, addr_diff))
		return -1;
	if (packet->traits & TRAIT_LATER_FRAGMENT)
		return 0;
	if (port_diff) {
		__be16 *ports = header_at(skb, packet->l4, 4);

		if (!ports)
			return -1;
		ports[0] = ct->to.sport;
		ports[1] = ct->to.dport;
		/* Apart from the addresses: with checksum offload the field covers the pseudo header only. */
		if (bpf_l4_csum_replace(skb, check, 0, port_diff, mangled))
			return -1;
	}
	return bpf_l4_csum_replace(skb, check, 0, addr_diff, BPF_F_PSEUDO_HDR | mangled);
}

#endif
