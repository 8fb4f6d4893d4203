/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_NEIGHBOURS_H
#define MUSTANG_NEIGHBOURS_H

#include "deliver.h"
#include "senders.h"

/* A pod may announce only its own addresses by ARP (RFC 826) and neighbour discovery (RFC 4861). */

/* An ARP packet about IPv4 on Ethernet. */
struct arp_packet {
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_size;
	__u8 protocol_size;
	__be16 operation;
	__u8 sender_mac[ETH_ALEN];
	__u8 sender_ip[4];
	__u8 target_mac[ETH_ALEN];
	__u8 target_ip[4];
};

_Static_assert(sizeof(struct arp_packet) == 28, "an ARP packet has 28 bytes");

static __always_inline enum drop_reason guard_arp(struct __sk_buff *skb, const struct sender *sender, __u32 l3)
{
	const struct arp_packet *arp = header_at(skb, l3, sizeof(*arp));
	union addr from;
	__be32 ip;

	if (!arp)
		return DROP_MALFORMED;
	if (arp->hardware != bpf_htons(1) || arp->protocol != bpf_htons(ETH_P_IP) || arp->hardware_size != ETH_ALEN ||
	    arp->protocol_size != 4 || bpf_ntohs(arp->operation) - 1U > 1 || !mac_equal(arp->sender_mac, sender->mac))
		return DROP_NEIGHBOUR;
	ip = *(const __be32 *)arp->sender_ip;
	/* A pod that asks whether an address is free does not have it yet (RFC 5227). */
	if (!ip && arp->operation == bpf_htons(1))
		return DROP_UNSPECIFIED;
	addr_from_v4(&from, ip);
	return may_send_from(sender, &from) ? DROP_UNSPECIFIED : DROP_NEIGHBOUR;
}

/* Types of ICMPv6. */
enum icmpv6_type {
	ICMPV6_MLD_REPORT = 131,
	ICMPV6_MLD_DONE = 132,
	ICMPV6_ROUTER_SOLICITATION = 133,
	ICMPV6_ROUTER_ADVERTISEMENT = 134,
	ICMPV6_NEIGHBOUR_SOLICITATION = 135,
	ICMPV6_NEIGHBOUR_ADVERTISEMENT = 136,
	ICMPV6_REDIRECT = 137,
	ICMPV6_MLD2_REPORT = 143,
};

/* Options of neighbour discovery, whose length counts units of 8 bytes. */
struct discovery_option {
	__u8 type; /* 1: the link-layer address of the source, 2: of the target */
	__u8 length;
	__u8 mac[ETH_ALEN];
};

#define DISCOVERY_OPTIONS 8

/* Where the options of a message begin. */
static __always_inline __u32 discovery_options(__u8 type)
{
	switch (type) {
	case ICMPV6_ROUTER_SOLICITATION:
		return 8;
	case ICMPV6_ROUTER_ADVERTISEMENT:
		return 16;
	case ICMPV6_REDIRECT:
		return 40;
	default:
		return 24;
	}
}

/* Whether all link-layer addresses in the options are the sender's. */
static __always_inline bool announces_own_mac(struct __sk_buff *skb, const struct sender *sender, __u32 offset)
{
	struct discovery_option option;

	for (int i = 0; i < DISCOVERY_OPTIONS; i++) {
		if (offset + sizeof(option) > skb->len)
			return true;
		if (bpf_skb_load_bytes(skb, offset, &option, sizeof(option)) || !option.length)
			return false;
		if ((option.type == 1 || option.type == 2) && __builtin_memcmp(option.mac, sender->mac, ETH_ALEN))
			return false;
		offset += option.length * 8;
	}
	return false;
}

/* Checks the announcements of an ICMPv6 packet; from_none: its source is the unspecified address. */
static __always_inline enum drop_reason guard_icmpv6(struct __sk_buff *skb, const struct sender *sender,
						     const struct packet *packet, bool from_none)
{
	const struct icmp_header *icmp = header_at(skb, packet->l4, sizeof(*icmp));
	union addr target;
	__u8 type;

	if (!icmp)
		return DROP_MALFORMED;
	type = icmp->type;
	if (!from_none && !may_send_from(sender, &packet->tuple.saddr))
		return DROP_SOURCE;
	if (!icmpv6_is_discovery(type)) {
		if (from_none && type != ICMPV6_MLD_REPORT && type != ICMPV6_MLD_DONE && type != ICMPV6_MLD2_REPORT)
			return DROP_SOURCE;
		return DROP_UNSPECIFIED;
	}
	/* A pod without address may ask for routers, and whether an address of its own is free. */
	if (from_none && type != ICMPV6_ROUTER_SOLICITATION && type != ICMPV6_NEIGHBOUR_SOLICITATION)
		return DROP_SOURCE;
	if ((type == ICMPV6_ROUTER_ADVERTISEMENT || type == ICMPV6_REDIRECT) && !(sender->flags & SENDER_ROUTER))
		return DROP_NEIGHBOUR;
	if (type == ICMPV6_NEIGHBOUR_ADVERTISEMENT || (from_none && type == ICMPV6_NEIGHBOUR_SOLICITATION)) {
		if (bpf_skb_load_bytes(skb, packet->l4 + 8, &target, sizeof(target)))
			return DROP_MALFORMED;
		if (!may_send_from(sender, &target))
			return DROP_NEIGHBOUR;
	}
	return announces_own_mac(skb, sender, packet->l4 + discovery_options(type)) ? DROP_UNSPECIFIED : DROP_NEIGHBOUR;
}

#endif
