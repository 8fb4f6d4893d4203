/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_FORWARD_H
#define MUSTANG_FORWARD_H

#include "reflect.h"

/*
 * What a router does (RFC 1812, RFC 8200), for packets that this node passes on between other hosts: TTL and MTU. As all of them
 * leave from this node's address, fragments also get another identification.
 */

/* The bytes that this node puts in front of a packet. */
static __always_inline __u32 overhead(const struct packet *packet, const struct ct_entry *ct)
{
	if (!into_tunnel(ct))
		return 0;
	return packet->v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
}

/* Whether a packet fits into the network behind the next hop. Sets d->mtu. */
static __always_inline bool fits(struct __sk_buff *skb, const struct packet *packet, struct decision *d)
{
	__u32 device = 0, more = overhead(packet, d->ct);
	long err = bpf_check_mtu(skb, d->path->ifindex, &device, more, 0);

	d->mtu = device - more;
	if (skb->gso_size && packet->tuple.proto != IPPROTO_SCTP) /* whose segments differ in size */
		return segment_size(skb, packet) <= d->mtu;
	return err <= 0;
}

/*
 * Moves the identification of a fragment by a secret number of its connection. Fragments of several clients leave from one
 * address, and the receiver would join fragments with one identification. All fragments of a datagram get the same one. False if
 * the header is not where it should be: a first fragment of IPv6 may have others behind it.
 */
static __always_inline bool move_fragment_id(struct __sk_buff *skb, const struct packet *packet,
					     const struct ct_entry *ct)
{
	__u32 by = ct->slot * 0x9e3779b1U; /* a random slot; the product spreads it over all bits */

	if (packet->v6) {
		struct ipv6_fragment *fragment = header_at(skb, packet->l4 - sizeof(*fragment), sizeof(*fragment));
		__be32 old = packet->fragment_id, id = old + by;

		if (!fragment || fragment->id != old)
			return false;
		fragment->id = id;
		if (checksum_state(skb) == CHECKSUM_COMPLETE)
			bpf_csum_update(skb, bpf_csum_diff(&old, sizeof(old), &id, sizeof(id), 0));
		return true;
	}
	struct iphdr *ip = header_at(skb, packet->l3, sizeof(*ip));
	__be16 id = packet->fragment_id + (by >> 16);

	if (!ip)
		return false;
	ip->check = checksum_add(ip->check, (__u32)(__u16)~ip->id + id);
	ip->id = id;
	return true;
}

/* Prepares a packet to be passed on, or decides to drop it. One in a tunnel keeps its TTL, as on one hop. */
static __always_inline void forward(struct __sk_buff *skb, const struct packet *packet, struct decision *d)
{
	if (!fits(skb, packet, d))
		decide_drop(d, DROP_TOO_BIG);
	else if (into_tunnel(d->ct))
		return;
	else if (!lower_ttl(skb, packet))
		decide_drop(d, DROP_TTL);
	else if (packet->traits & (TRAIT_FIRST_FRAGMENT | TRAIT_LATER_FRAGMENT) &&
		 !move_fragment_id(skb, packet, d->ct))
		decide_drop(d, DROP_REWRITE);
}

/* Sends the ICMP error about a dropped packet, which is as it came. */
static __noinline int send_error(struct __sk_buff *skb, const struct packet *packet, __u32 mtu)
{
	struct icmp_header icmp = { .type = packet->v6 ? 3 : 11 };
	struct packet whole = *packet;

	/* Its sender makes smaller fragments when it is told. */
	whole.traits &= ~TRAIT_FIRST_FRAGMENT;
	if (packet->v6 && packet->traits & TRAIT_FIRST_FRAGMENT)
		whole.l4 = packet->l3 + sizeof(struct ipv6hdr);
	if (!may_answer(&whole))
		return ACTION_DROP;
	if (mtu) {
		icmp.type = packet->v6 ? 2 : 3;
		icmp.code = packet->v6 ? 0 : 4;
		icmp.rest = bpf_htonl(mtu);
	}
	return make_error(skb, &whole, &icmp) ? ACTION_DROP : send_back(skb);
}

/* The action for a packet from outside that apply() wants dropped. */
static __always_inline int drop_or_answer(struct __sk_buff *skb, const struct packet *packet, const struct decision *d)
{
	if (d->verdict == VERDICT_DROP && d->reason == DROP_TOO_BIG)
		return send_error(skb, packet, d->mtu);
	if (d->verdict == VERDICT_DROP && d->reason == DROP_TTL)
		return send_error(skb, packet, 0);
	return drop_or_refuse(skb, packet, d);
}

#endif
