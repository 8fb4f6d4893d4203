/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_DSR_H
#define MUSTANG_DSR_H

#include "pod.h"

/*
 * Direct server return. The node that a client outside calls sends the client's packets unchanged to the node of the backend,
 * in IPIP (RFC 2003) or IPv6 in IPv6 (RFC 2473). The backend's node answers the client from the service's address. Packets in
 * a tunnel to a pod are taken out only if the pod is a backend of the service that the client called.
 */

/* The bytes of the header in front. */
static __always_inline __u32 tunnel_size(const struct packet *packet)
{
	return packet->v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
}

/* Writes the header in front of an IP packet of some bytes, which are 0 for more than fit into the field. */
static __always_inline int write_tunnel(struct __sk_buff *skb, bool v6, const struct tuple *to, __u32 bytes)
{
	__u32 l3 = sizeof(struct ethhdr);

	if (v6) {
		struct ipv6hdr *ip = header_at(skb, l3, sizeof(*ip));

		if (!ip)
			return -1;
		*(__be32 *)ip = bpf_htonl(0x60000000);
		ip->payload_len = bpf_htons(bytes);
		ip->nexthdr = IPPROTO_IPV6;
		ip->hop_limit = 64;
		for (int i = 0; i < 4; i++) {
			ip->saddr.in6_u.u6_addr32[i] = to->saddr.words[i];
			ip->daddr.in6_u.u6_addr32[i] = to->daddr.words[i];
		}
		return 0;
	}
	struct iphdr *ip = header_at(skb, l3, sizeof(*ip));

	if (!ip)
		return -1;
	((__be32 *)ip)[0] = bpf_htonl(0x45000000 | (bytes ? bytes + sizeof(*ip) : 0));
	((__be32 *)ip)[1] = bpf_htonl(0x4000); /* don't fragment */
	((__be32 *)ip)[2] = bpf_htonl(64 << 24 | IPPROTO_IPIP << 16);
	ip->saddr = to->saddr.words[3];
	ip->daddr = to->daddr.words[3];
	ip->check = checksum_add(0xffff, bpf_csum_diff(NULL, 0, (__be32 *)ip, sizeof(*ip), 0));
	return 0;
}

/* Puts a packet into the tunnel of its connection. */
static __always_inline int encapsulate(struct __sk_buff *skb, const struct packet *packet, const struct ct_entry *ct)
{
	__u64 flags = packet->v6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4;
	__u32 bytes = skb->len - sizeof(struct ethhdr);

	if (bpf_skb_adjust_room(skb, tunnel_size(packet), BPF_ADJ_ROOM_MAC, flags | BPF_F_ADJ_ROOM_FIXED_GSO))
		return -1;
	return write_tunnel(skb, packet->v6, &ct->to, bytes + sizeof(struct iphdr) > 0xffff ? 0 : bytes);
}

/* Carries out the verdict about a packet from outside, as apply() does. */
static __always_inline bool apply_outside(struct __sk_buff *skb, const struct packet *packet, const struct decision *d,
					  struct metrics *row)
{
	if (d->verdict != VERDICT_TRANSLATE || !d->ct || !into_tunnel(d->ct))
		return apply(skb, packet, d, row);
	row->count[METRIC_ENCAPSULATED]++;
	count_of_service(skb, d->ct);
	if (encapsulate(skb, packet, d->ct)) {
		count_drop(skb, row, DROP_REWRITE);
		return false;
	}
	return true;
}

static __always_inline bool is_tunnelled(const struct packet *packet)
{
	return packet->tuple.proto == (packet->v6 ? IPPROTO_IPV6 : IPPROTO_IPIP) &&
	       !(packet->traits & (TRAIT_FIRST_FRAGMENT | TRAIT_LATER_FRAGMENT));
}

/* Parses the packet in a tunnel. False: it is none whose connection could be found. */
static __always_inline bool parse_inner(struct __sk_buff *skb, const struct packet *packet, struct packet *inner)
{
	enum parse_result parsed;

	__builtin_memset(inner, 0, sizeof(*inner));
	inner->l4 = packet->l4;
	parsed = packet->v6 ? parse_ipv6(skb, inner) : parse_ipv4(skb, inner);
	if (parsed != PARSE_IP || parse_transport(skb, inner) != PARSE_IP)
		return false;
	if (inner->traits & (TRAIT_FIRST_FRAGMENT | TRAIT_LATER_FRAGMENT) && !fragment_ports(inner))
		return false;
	return inner->traits & (TRAIT_PORTS | TRAIT_ICMP_ERROR);
}

/* Takes the header in front of the packet that has been parsed as inner, which is then *packet. */
static __always_inline int strip_tunnel(struct __sk_buff *skb, struct packet *packet, const struct packet *inner)
{
	if (bpf_skb_adjust_room(skb, -(__s32)(packet->l4 - packet->l3), BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return -1;
	packet->l4 = inner->l4 - (inner->l3 - packet->l3);
	packet->tuple = inner->tuple;
	packet->fragment_id = inner->fragment_id;
	packet->traits = inner->traits;
	return 0;
}

/*
 * Takes an ICMP error out of its tunnel, if it is about an answer that the pod sent a client whose packets come in tunnels.
 * Returns a packed outcome as find_tunnelled(); the error is still to be translated.
 */
__noinline int decapsulate_error(struct __sk_buff *skb, struct packet *packet)
{
	struct packet *quote = quote_row(), inner;
	const struct ct_entry *ct;

	if (!packet || !quote)
		return outcome_pack(outcome_pass(METRIC_NONE));
	inner = *quote; /* the room is the quote's from here on */
	if (inner.traits != TRAIT_ICMP_ERROR || parse_quote(skb, &inner, quote) ||
	    !addr_equal(&quote->tuple.saddr, &inner.tuple.daddr))
		return outcome_pack(outcome_pass(METRIC_NONE));
	quote->tuple = tuple_reverse(&quote->tuple);
	ct = ct_peek(&quote->tuple);
	if (!ct || !(ct->flags & CT_DSR) || !(ct->flags & CT_FORWARD) || into_tunnel(ct) ||
	    !addr_equal(&ct->to.daddr, &packet->tuple.daddr))
		return outcome_pack(outcome_pass(METRIC_NONE));
	if (strip_tunnel(skb, packet, &inner))
		return outcome_pack(outcome_drop(DROP_REWRITE));
	return outcome_pack(outcome_translate(METRIC_NONE));
}

/*
 * Parses a packet for a backend in its tunnel as the quote, and finds its connection. Returns a packed outcome: VERDICT_PASS leaves
 * the tunnel as it is; VERDICT_STORE: the connection is still to be opened. An ICMP error opens none, and has lost its tunnel.
 */
__noinline int find_tunnelled(struct __sk_buff *skb, struct packet *packet)
{
	struct packet *inner = quote_row();
	struct ct_entry *ct;

	if (!packet || !inner || !bpf_map_lookup_elem(&endpoints, &packet->tuple.daddr))
		return outcome_pack(outcome_pass(METRIC_NONE));
	if (skb->data_end - skb->data < skb->len)
		bpf_skb_pull_data(skb, skb->len < LINEAR_BYTES ? skb->len : LINEAR_BYTES);
	if (!parse_inner(skb, packet, inner))
		return outcome_pack(outcome_pass(METRIC_NONE));
	if (inner->traits & TRAIT_ICMP_ERROR)
		return decapsulate_error(skb, packet);
	ct = inner->traits & TRAIT_SYN ? NULL : conn_lookup(&inner->tuple, inner->traits);
	if (ct && ct->flags & CT_DSR && ct->flags & CT_FORWARD && addr_equal(&ct->to.daddr, &packet->tuple.daddr))
		return outcome_pack(outcome_translate(METRIC_NONE));
	return outcome_pack(outcome_store());
}

/*
 * Takes a packet for a backend out of its tunnel, and finds or opens its connection. *packet is then that packet. VERDICT_PASS leaves
 * the tunnel as it is. After VERDICT_TRANSLATE the connection is in the table.
 */
static __always_inline struct outcome decapsulate(struct __sk_buff *skb, struct packet *packet)
{
	struct outcome outcome = outcome_unpack(find_tunnelled(skb, packet));
	struct packet *inner = quote_row();

	if (!inner)
		return outcome_pass(METRIC_NONE);
	if (outcome.verdict == VERDICT_STORE)
		outcome = ct_stored(ct_open_tunnelled(skb, &inner->tuple, &packet->tuple.daddr, inner->traits));
	if (outcome.verdict != VERDICT_TRANSLATE || packet->traits & TRAIT_ICMP_ERROR)
		return outcome;
	return strip_tunnel(skb, packet, inner) ? outcome_drop(DROP_REWRITE) : outcome;
}

/* Decides about a packet that came in a tunnel. */
static __always_inline void decide_tunnelled(struct __sk_buff *skb, struct packet *packet, struct metrics *row,
					     struct decision *d)
{
	struct outcome outcome = decapsulate(skb, packet);

	if (outcome.verdict == VERDICT_PASS)
		return;
	if (outcome.verdict == VERDICT_DROP) {
		decide_drop(d, outcome.reason);
		return;
	}
	row->count[METRIC_DECAPSULATED]++;
	if (packet->traits & TRAIT_ICMP_ERROR)
		return;
	count(row, outcome.metric);
	d->ct = ct_peek(&packet->tuple);
	if (d->ct)
		use_connection(d, d->ct);
	else
		decide_drop(d, DROP_TABLE_FULL);
}

#endif
