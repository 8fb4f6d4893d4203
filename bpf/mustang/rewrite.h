/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_REWRITE_H
#define MUSTANG_REWRITE_H

#include <stddef.h>

#include <bpf/bpf_core_read.h>

#include "kernel.h"
#include "maps.h"
#include "parse.h"

/* The states of a packet's transport checksum, as <linux/skbuff.h> of the kernel has them. */
enum checksum_state {
	CHECKSUM_COMPLETE = 2, /* the kernel keeps the sum over the packet from the network card */
	CHECKSUM_PARTIAL = 3,  /* the field covers the pseudo header only; the device completes it */
};

static __always_inline enum checksum_state checksum_state(struct __sk_buff *skb)
{
	const struct sk_buff *kernel = kernel_packet(skb);

	return BPF_CORE_READ_BITFIELD(kernel, ip_summed);
}

/* The checksum after the sum over the data grew by diff, a sum of some 32-bit sums (RFC 1624, equation 3). */
static __always_inline __sum16 checksum_add(__sum16 checksum, __u64 diff)
{
	__u64 sum = (__u16)~checksum + diff;

	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Writes the addresses into the IP header at offset l3, and updates the checksum of an IPv4 header. */
static __always_inline int rewrite_addresses(struct __sk_buff *skb, __u32 l3, bool v6, const struct tuple *to,
					     __u32 diff)
{
	if (unlikely(v6)) {
		struct ipv6hdr *ip = header_at(skb, l3, sizeof(*ip));

		if (!ip)
			return -1;
		for (int i = 0; i < 4; i++) {
			ip->saddr.in6_u.u6_addr32[i] = to->saddr.words[i];
			ip->daddr.in6_u.u6_addr32[i] = to->daddr.words[i];
		}
		/*
		 * Updates the sum over the packet. bpf_l4_csum_replace() subtracts the change of the transport checksum from it. In IPv4 the change of
		 * the header checksum compensates for the addresses; IPv6 has none.
		 */
		if (checksum_state(skb) == CHECKSUM_COMPLETE)
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

/* Updates the transport checksum by the kernel, which knows the state. */
static __always_inline int replace_checksum(struct __sk_buff *skb, __u32 check, const struct ct_entry *ct, bool udp)
{
	__u64 mangled = udp ? BPF_F_MARK_MANGLED_0 : 0;
	__u32 addr_diff = ct->addr_diff, port_diff = ct->port_diff;

	/* Apart from the addresses, which alone are in the pseudo header. */
	if (port_diff && bpf_l4_csum_replace(skb, check, 0, port_diff, mangled))
		return -1;
	return bpf_l4_csum_replace(skb, check, 0, addr_diff, BPF_F_PSEUDO_HDR | mangled);
}

/* Updates the transport checksum at an offset as bpf_l4_csum_replace() does, which takes longer than all else. */
static __always_inline int update_checksum(struct __sk_buff *skb, __u32 offset, const struct ct_entry *ct, bool udp)
{
	enum checksum_state state = checksum_state(skb);
	__sum16 *check;

	if (unlikely(state == CHECKSUM_COMPLETE))
		return replace_checksum(skb, offset, ct, udp);
	check = header_at(skb, offset, sizeof(*check));
	if (!check)
		return -1;
	if (udp && !*check)
		return 0; /* it has none */
	if (state == CHECKSUM_PARTIAL)
		*check = ~checksum_add(~*check, ct->addr_diff);
	else
		*check = checksum_add(*check, (__u64)ct->addr_diff + ct->port_diff);
	if (udp && !*check)
		*check = 0xffff;
	return 0;
}

/* Writes addresses and ports. No size changes, so that a GSO packet stays valid. */
static __always_inline int rewrite(struct __sk_buff *skb, const struct packet *packet, const struct ct_entry *ct)
{
	bool udp = packet->tuple.proto == IPPROTO_UDP;

	if (rewrite_addresses(skb, packet->l3, packet->v6, &ct->to, ct->addr_diff))
		return -1;
	/* The checksum of SCTP covers no address, and its ports stay. */
	if (unlikely(packet->traits & TRAIT_LATER_FRAGMENT || packet->tuple.proto == IPPROTO_SCTP))
		return 0;
	if (ct->port_diff) {
		__be16 *ports = header_at(skb, packet->l4, 4);

		if (!ports)
			return -1;
		ports[0] = ct->to.sport;
		ports[1] = ct->to.dport;
	}
	return update_checksum(
		skb, packet->l4 + (udp ? offsetof(struct udphdr, check) : offsetof(struct tcphdr, check)), ct, udp);
}

/* Lowers the TTL. False: the packet may go no further. */
static __always_inline bool lower_ttl(struct __sk_buff *skb, const struct packet *packet)
{
	if (packet->v6) {
		struct ipv6hdr *ip = header_at(skb, packet->l3, sizeof(*ip));

		if (!ip || ip->hop_limit <= 1)
			return false;
		ip->hop_limit--;
		if (checksum_state(skb) == CHECKSUM_COMPLETE)
			bpf_csum_update(skb, 0xffff - 0x100); /* the limit is the high byte of its word */
		return true;
	}
	struct iphdr *ip = header_at(skb, packet->l3, sizeof(*ip));

	if (!ip || ip->ttl <= 1)
		return false;
	ip->ttl--;
	ip->check = checksum_add(ip->check, 0xffff - 1);
	return true;
}

/* The bytes of a segment of a GSO packet, as an IP packet; 0 if it cannot be told. */
static __always_inline __u32 segment_size(struct __sk_buff *skb, const struct packet *packet)
{
	const struct tcphdr *tcp = header_at(skb, packet->l4, sizeof(*tcp));
	__u32 headers = packet->l4 - packet->l3;

	if (packet->tuple.proto == IPPROTO_UDP)
		return headers + sizeof(struct udphdr) + skb->gso_size;
	return tcp ? headers + tcp->doff * 4 + skb->gso_size : 0;
}

#endif
