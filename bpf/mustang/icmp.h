/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_ICMP_H
#define MUSTANG_ICMP_H

#include "rewrite.h"
#include "scratch.h"
#include "senders.h"
#include "translate.h"

/* Writes size bytes and adds the change to the checksum sum *diff. offset - start of the ICMP header is even. */
static __always_inline int patch(struct __sk_buff *skb, __u32 offset, void *bytes, __u32 size, __u32 *diff)
{
	__be32 old[8];

	if (bpf_skb_load_bytes(skb, offset, old, size))
		return -1;
	*diff = bpf_csum_diff(old, size, bytes, size, *diff);
	return bpf_skb_store_bytes(skb, offset, bytes, size, 0);
}

/* Adds diff to the checksum at offset, if the quote reaches that far, and the change to *total. */
static __always_inline int patch_checksum(struct __sk_buff *skb, __u32 offset, __u32 diff, bool udp, __u32 *total)
{
	/* bpf_csum_diff() takes four bytes at a time. */
	__sum16 old[2] = {}, new[2] = {};

	if (bpf_skb_load_bytes(skb, offset, old, 2) || (udp && !old[0]))
		return 0;
	new[0] = checksum_add(old[0], diff);
	if (udp && !new[0])
		new[0] = 0xffff;
	*total = bpf_csum_diff((__be32 *)old, 4, (__be32 *)new, 4, *total);
	return bpf_skb_store_bytes(skb, offset, new, 2, 0);
}

/* Restores the quoted packet as its sender sent it. *diff: the change of the sum over the quote. */
static __noinline int rewrite_quote(struct __sk_buff *skb, const struct packet *quote, const struct tuple *to,
				    __u32 *diff)
{
	__u32 addr_diff = 0, port_diff = 0;
	bool udp = quote->tuple.proto == IPPROTO_UDP;
	__u32 check = udp ? offsetof(struct udphdr, check) : offsetof(struct tcphdr, check);

	if (quote->v6) {
		if (patch(skb, quote->l3 + offsetof(struct ipv6hdr, saddr), (void *)&to->saddr, 32, &addr_diff))
			return -1;
		*diff = addr_diff;
	} else {
		__be32 addresses[2] = { to->saddr.words[3], to->daddr.words[3] };

		if (patch(skb, quote->l3 + offsetof(struct iphdr, saddr), addresses, 8, &addr_diff))
			return -1;
		*diff = addr_diff;
		if (patch_checksum(skb, quote->l3 + offsetof(struct iphdr, check), addr_diff, false, diff))
			return -1;
	}
	if (patch(skb, quote->l4, (void *)&to->sport, 4, &port_diff))
		return -1;
	*diff = bpf_csum_diff(NULL, 0, (__be32 *)&port_diff, 4, *diff);
	if (quote->tuple.proto == IPPROTO_SCTP)
		return 0; /* the checksum covers no address, and the ports are the same */
	return patch_checksum(skb, quote->l4 + check, bpf_csum_diff(NULL, 0, (__be32 *)&port_diff, 4, addr_diff), udp,
			      diff);
}

/* Room for the quoted packet. */
static __always_inline struct packet *quote_row(void)
{
	struct scratch *scratch = scratch_row();

	return scratch ? &scratch->icmp.packet : NULL;
}

/* Parses the packet that an error quotes, up to its ports: 0, or 1 if it has none. -1: it is none that is known. */
static __always_inline int parse_quote(struct __sk_buff *skb, const struct packet *packet, struct packet *quote)
{
	enum parse_result parsed;
	const __be16 *ports;

	__builtin_memset(quote, 0, sizeof(*quote));
	quote->l4 = packet->l4 + sizeof(struct icmp_header);
	parsed = packet->v6 ? parse_ipv6(skb, quote) : parse_ipv4(skb, quote);
	if (parsed != PARSE_IP || quote->traits & TRAIT_LATER_FRAGMENT)
		return -1;
	if (!has_ports(quote->tuple.proto))
		return 1;
	ports = header_at(skb, quote->l4, 8);
	if (!ports)
		return -1;
	quote->tuple.sport = ports[0];
	quote->tuple.dport = ports[1];
	return 0;
}

/* Whether a pod that tells of a packet has received it: it is to one of its addresses. */
static __noinline int is_receiver(struct __sk_buff *skb, const union addr *to)
{
	const struct sender *sender = sender_of(skb);

	return !sender || sender->flags & SENDER_UNGUARDED || may_send_from(sender, to);
}

/* Writes the addresses of the error itself, and updates its checksum by diff, the change of the sum over the quote. */
static __noinline int rewrite_error(struct __sk_buff *skb, const struct packet *packet, const struct tuple *to,
				    __u32 diff)
{
	__u32 outer = bpf_csum_diff((__be32 *)&packet->tuple.saddr, 32, (__be32 *)&to->saddr, 32, 0);
	__u32 check = packet->l4 + offsetof(struct icmp_header, checksum);

	if (rewrite_addresses(skb, packet->l3, packet->v6, to, outer) || bpf_l4_csum_replace(skb, check, 0, diff, 0))
		return -1;
	return packet->v6 ? bpf_l4_csum_replace(skb, check, 0, outer, BPF_F_PSEUDO_HDR) : 0;
}

/*
 * Translates an ICMP error about a packet that was translated. The connection table has the reply to the quoted packet;
 * its translation gives the packet as its sender sent it. The source of the error stays, as it may be any router, unless it
 * is the other end of the connection. from_pod: the error leaves a pod, and to_pod of the client may translate it.
 *
 * An error from outside about an answer of a backend that has the client's packets in a tunnel goes into the tunnel as it is.
 *
 * 1: translated, and the packet's tuple is the reply's; 0: nothing to translate; -1: error.
 */
__noinline int translate_icmp_error(struct __sk_buff *skb, struct packet *packet, bool from_pod)
{
	struct packet *quote = quote_row();
	__u32 diff = 0;
	struct tuple to, sent;
	struct ct_entry *ct;

	if (!packet || !quote || parse_quote(skb, packet, quote) ||
	    !addr_equal(&quote->tuple.saddr, &packet->tuple.daddr))
		return 0;
	/* Under policies, pods tell of their own connections only. */
	if (policies_in_force() && endpoint_path(&packet->tuple.saddr) &&
	    !addr_equal(&quote->tuple.daddr, &packet->tuple.saddr))
		return 0;
	if (from_pod && config.attach_point != ATTACH_UPLINK && policies_in_force() &&
	    !is_receiver(skb, &quote->tuple.daddr))
		return 0;
	quote->tuple = tuple_reverse(&quote->tuple);
	ct = ct_peek(&quote->tuple);
	if (!ct || ct->flags & CT_DIRECT || (config.attach_point == ATTACH_UPLINK && !(ct->flags & CT_UPLINK)))
		return 0;
	if (from_pod && translated_at_client(ct))
		return 0;
	if (into_tunnel(ct)) {
		if (config.attach_point != ATTACH_UPLINK || !from_pod)
			return 0;
		packet->tuple = quote->tuple;
		return 1;
	}
	to = packet->tuple;
	to.daddr = ct->to.daddr;
	if (addr_equal(&to.saddr, &quote->tuple.saddr))
		to.saddr = ct->to.saddr;
	sent = tuple_reverse(&ct->to);
	if (rewrite_quote(skb, quote, &sent, &diff) || rewrite_error(skb, packet, &to, diff))
		return -1;
	packet->tuple = quote->tuple;
	return 1;
}

/*
 * Decides about an echo request. Echo requests set no bit of the bloom filter, which would cost other packets look-ups. Requests
 * in fragments, and with IP options or extension headers, are left to the kernel.
 */
static __always_inline void decide_echo(const struct packet *packet, struct metrics *row, struct decision *d)
{
	const union addr *to = &packet->tuple.daddr;

	if (!may_answer(packet) || !bpf_map_lookup_elem(&service_addrs, to) || bpf_map_lookup_elem(&endpoints, to) ||
	    bpf_map_lookup_elem(&node_addresses, to))
		return;
	row->count[METRIC_ICMP_ECHO]++;
	d->verdict = VERDICT_ANSWER;
}

#endif
