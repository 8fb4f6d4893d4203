/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_REFLECT_H
#define MUSTANG_REFLECT_H

#include "deliver.h"
#include "scratch.h"
#include "seal.h"

/*
 * Answers of services. To an echo request: its reply. To other packets for a service without a backend, and of
 * connections whose backend was removed: a TCP reset
 * (RFC 9293, 3.10.7.1), an SCTP ABORT, or ICMP port unreachable. The packet becomes its answer, from the service's address,
 * and goes back to where it came from. No answer to resets and ABORT, fragments, multicast, and packets with IP options or
 * extension headers.
 */

/* ICMP errors that a CPU sends a second, as Linux limits its own (icmp_msgs_per_sec; RFC 4443, 2.4 f): sources may be forged. */
#define ERRORS_A_SECOND 1000

/* Whether this CPU may send one more ICMP error. */
static __always_inline bool icmp_ratelimit_allows(void)
{
	__u64 second = bpf_ktime_get_coarse_ns() / NS_PER_SECOND;
	struct scratch *scratch = scratch_row();
	struct icmp_ratelimit *sent;

	if (!scratch)
		return false;
	sent = &scratch->icmp_errors;
	if (sent->second != second)
		*sent = (struct icmp_ratelimit){ .second = second };
	return sent->count++ < ERRORS_A_SECOND;
}

/* Sends an answer back to where the packet came from. */
static __always_inline int send_back(struct __sk_buff *skb)
{
	struct ethhdr *eth;
	__u16 mac;

	if (has_ethernet()) {
		eth = header_at(skb, 0, sizeof(*eth));
		if (!eth)
			return ACTION_DROP;
		for (int i = 0; i < ETH_ALEN / 2; i++) {
			mac = ((__u16 *)eth->h_dest)[i];
			((__u16 *)eth->h_dest)[i] = ((__u16 *)eth->h_source)[i];
			((__u16 *)eth->h_source)[i] = mac;
		}
	}
	mark_delivered(skb);
	seal(skb);
	return bpf_redirect(skb->ifindex, config.attach_point == ATTACH_POD ? BPF_F_INGRESS : 0);
}

/* The size of a packet as its IP header has it: a short frame is padded. */
static __always_inline __u32 ip_size(struct __sk_buff *skb, const struct packet *packet)
{
	const struct ipv6hdr *ip6 = header_at(skb, packet->l3, sizeof(*ip6));
	const struct iphdr *ip = header_at(skb, packet->l3, sizeof(*ip));

	if (packet->v6)
		return ip6 ? sizeof(*ip6) + bpf_ntohs(ip6->payload_len) : 0;
	return ip ? bpf_ntohs(ip->tot_len) : 0;
}

/* Writes the IP header of the answer, which has size bytes after it. Returns -1, or the sum over its pseudo header. */
static __always_inline __s64 write_ip(struct __sk_buff *skb, const struct packet *packet, __u8 proto, __u32 size)
{
	__be32 tail[2] = { bpf_htonl(size), bpf_htonl(proto) };

	if (packet->v6) {
		struct ipv6hdr *ip = header_at(skb, packet->l3, sizeof(*ip));

		if (!ip)
			return -1;
		*(__be32 *)ip = bpf_htonl(0x60000000);
		ip->payload_len = bpf_htons(size);
		ip->nexthdr = proto;
		ip->hop_limit = 64;
		for (int i = 0; i < 4; i++) {
			ip->saddr.in6_u.u6_addr32[i] = packet->tuple.daddr.words[i];
			ip->daddr.in6_u.u6_addr32[i] = packet->tuple.saddr.words[i];
		}
	} else {
		struct iphdr *ip = header_at(skb, packet->l3, sizeof(*ip));

		if (!ip)
			return -1;
		((__be32 *)ip)[0] = bpf_htonl(0x45000000 | (sizeof(*ip) + size));
		((__be32 *)ip)[1] = bpf_htonl(0x4000); /* don't fragment */
		((__be32 *)ip)[2] = bpf_htonl(64 << 24 | proto << 16);
		ip->saddr = packet->tuple.daddr.words[3];
		ip->daddr = packet->tuple.saddr.words[3];
		ip->check = checksum_add(0xffff, bpf_csum_diff(NULL, 0, (__be32 *)ip, sizeof(*ip), 0));
		if (proto == IPPROTO_ICMP)
			return 0; /* its checksum covers no pseudo header */
	}
	/* An IPv4 address is ::ffff:a.b.c.d; the ffff adds nothing to a sum. */
	return (__u32)bpf_csum_diff(NULL, 0, tail, sizeof(tail),
				    bpf_csum_diff(NULL, 0, (__be32 *)&packet->tuple.saddr, 32, 0));
}

/* Makes a TCP packet the reset that answers it. */
static __always_inline int make_reset(struct __sk_buff *skb, const struct packet *packet)
{
	struct tcphdr *tcp = header_at(skb, packet->l4, sizeof(*tcp)), reset = {};
	__u32 size = packet->l4 - packet->l3, total = ip_size(skb, packet);
	__s64 sum;

	if (!tcp || total < size + tcp->doff * 4)
		return -1;
	reset.source = tcp->dest;
	reset.dest = tcp->source;
	reset.doff = sizeof(reset) / 4;
	reset.rst = 1;
	if (tcp->ack) {
		reset.seq = tcp->ack_seq;
	} else {
		reset.ack = 1;
		reset.ack_seq = bpf_htonl(bpf_ntohl(tcp->seq) + total - size - tcp->doff * 4 + tcp->syn + tcp->fin);
	}
	if (bpf_skb_change_tail(skb, packet->l4 + sizeof(reset), 0))
		return -1;
	sum = write_ip(skb, packet, IPPROTO_TCP, sizeof(reset));
	if (sum < 0)
		return -1;
	/* The device completes the sum over the pseudo header. */
	if (checksum_state(skb) == CHECKSUM_PARTIAL)
		reset.check = ~checksum_add(0xffff, sum);
	else
		reset.check = checksum_add(0xffff, bpf_csum_diff(NULL, 0, (__be32 *)&reset, sizeof(reset), sum));
	return bpf_skb_store_bytes(skb, packet->l4, &reset, sizeof(reset), 0);
}

/* An SCTP packet with an ABORT chunk alone. */
struct sctp_abort {
	struct sctp_header header;
	__u8 chunk;
	__u8 flags;
	__be16 length;
};

/* In the flags of an ABORT: the tag is the sender's own, since it has none of the receiver. */
#define SCTP_TAG_REFLECTED 1

/* The checksum of an ABORT whose checksum is 0: CRC32c (RFC 9260, appendix A), bit by bit. */
static __noinline __u32 sctp_checksum(const struct sctp_abort *abort)
{
	const __u32 *words = (const __u32 *)abort;
	__u32 crc = ~0;

	for (__u32 i = 0; i < sizeof(*abort) / 4; i++) {
		crc ^= words[i];
#pragma clang loop unroll(disable)
		for (int bit = 0; bit < 32; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	return ~crc;
}

/* Makes an SCTP packet the ABORT that answers it (RFC 9260, 8.4). */
static __always_inline int make_abort(struct __sk_buff *skb, const struct packet *packet)
{
	const struct sctp_header *sctp = header_at(skb, packet->l4, sizeof(*sctp));
	struct sctp_abort abort = { .chunk = SCTP_ABORT, .length = bpf_htons(4) };

	if (!sctp)
		return -1;
	abort.header.source = sctp->dest;
	abort.header.dest = sctp->source;
	abort.header.tag = sctp->tag;
	if (!(packet->traits & TRAIT_SYN))
		abort.flags = SCTP_TAG_REFLECTED;
	else if (bpf_skb_load_bytes(skb, packet->l4 + sizeof(*sctp) + 4, &abort.header.tag, 4))
		return -1;
	if (bpf_skb_change_tail(skb, packet->l4 + sizeof(abort), 0) ||
	    write_ip(skb, packet, IPPROTO_SCTP, sizeof(abort)) < 0)
		return -1;
	if (checksum_state(skb) != CHECKSUM_PARTIAL) /* else the device completes it */
		abort.header.checksum = sctp_checksum(&abort);
	return bpf_skb_store_bytes(skb, packet->l4, &abort, sizeof(abort), 0);
}

/*
 * The sum over the first size bytes of an IP packet, as they arrive. Where the device is to complete the transport's
 * checksum, the bytes that it covers add up to the complement of the pseudo header's sum.
 */
static __noinline int sum_quote(struct __sk_buff *skb, const struct packet *packet, __u32 size)
{
	bool udp = packet->tuple.proto == IPPROTO_UDP;
	__u32 offset = udp ? offsetof(struct udphdr, check) : offsetof(struct tcphdr, check);
	const __sum16 *check = header_at(skb, packet->l4 + offset, sizeof(*check));
	struct scratch *scratch = scratch_row();
	__be32 completed = 0;
	__be32 *bytes;
	__u64 length;

	if (!scratch || !check)
		return 0;
	bytes = scratch->icmp.bytes;
	if (checksum_state(skb) == CHECKSUM_PARTIAL) {
		completed = (__u16) ~*check;
		size = packet->l4 - packet->l3;
	}
	__builtin_memset(bytes, 0, QUOTE_BYTES);
	/*
	 * In 64 bits and apart, so that the compiler compares what it passes: the verifier of Linux 6.12 does not follow the bounds
	 * of a copy.
	 */
	length = size;
	asm volatile("" : "+r"(length));
	if (length > QUOTE_BYTES)
		return 0;
	asm volatile("" : "+r"(length));
	if (!length || bpf_skb_load_bytes(skb, packet->l3, bytes, length))
		return 0;
	return bpf_csum_diff(NULL, 0, bytes, QUOTE_BYTES, completed);
}

/* Makes a packet the ICMP error that answers it. */
static __always_inline int make_error(struct __sk_buff *skb, const struct packet *packet, struct icmp_header *icmp)
{
	__u32 room = packet->l4 - packet->l3 + sizeof(*icmp), size = ip_size(skb, packet), quote;
	__s64 sum;

	if (size < room || packet->l3 + size > skb->len || !icmp_ratelimit_allows())
		return -1;
	if (size > QUOTE_BYTES)
		size = QUOTE_BYTES;
	if (bpf_skb_change_tail(skb, packet->l3 + size, 0))
		return -1;
	quote = sum_quote(skb, packet, size);
	if (bpf_skb_adjust_room(skb, room, BPF_ADJ_ROOM_MAC, 0))
		return -1;
	sum = write_ip(skb, packet, packet->v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP, sizeof(*icmp) + size);
	if (sum < 0)
		return -1;
	icmp->checksum =
		checksum_add(0xffff, bpf_csum_diff(NULL, 0, (__be32 *)icmp, sizeof(*icmp), sum) + (__u64)quote);
	return bpf_skb_store_bytes(skb, packet->l4, icmp, sizeof(*icmp), 0);
}

/* Answers a packet without a receiver, and returns the action. */
__noinline int refuse(struct __sk_buff *skb, const struct packet *packet)
{
	struct icmp_header unreachable = {};
	int err;

	if (!packet || !may_answer(packet))
		return ACTION_DROP;
	unreachable.type = packet->v6 ? 1 : 3;
	unreachable.code = packet->v6 ? 4 : 3;
	if (packet->tuple.proto == IPPROTO_TCP)
		err = make_reset(skb, packet);
	else if (packet->tuple.proto == IPPROTO_SCTP)
		err = make_abort(skb, packet);
	else
		err = make_error(skb, packet, &unreachable);
	return err ? ACTION_DROP : send_back(skb);
}

/* Sends the IP header back: swaps its addresses, and renews its time to live. */
static __always_inline int swap_addresses(struct __sk_buff *skb, const struct packet *packet)
{
	__u8 hops = 64;

	if (packet->v6) {
		struct ipv6hdr *ip = header_at(skb, packet->l3, sizeof(*ip));

		if (!ip)
			return -1;
		for (int i = 0; i < 4; i++) {
			ip->saddr.in6_u.u6_addr32[i] = packet->tuple.daddr.words[i];
			ip->daddr.in6_u.u6_addr32[i] = packet->tuple.saddr.words[i];
		}
		return bpf_skb_store_bytes(skb, packet->l3 + offsetof(struct ipv6hdr, hop_limit), &hops, sizeof(hops),
					   BPF_F_RECOMPUTE_CSUM);
	}
	struct iphdr *ip = header_at(skb, packet->l3, sizeof(*ip));

	if (!ip)
		return -1;
	ip->saddr = packet->tuple.daddr.words[3];
	ip->daddr = packet->tuple.saddr.words[3];
	ip->check = checksum_add(ip->check, (__u64)(__u16)~bpf_htons(ip->ttl << 8) + bpf_htons(hops << 8));
	ip->ttl = hops;
	return 0;
}

/*
 * Makes an echo request of any size its reply, and returns the action. The two differ in the type and in the order of the
 * addresses, so the payload is not read.
 */
__noinline int answer_echo(struct __sk_buff *skb, const struct packet *packet)
{
	struct icmp_header *icmp = packet ? header_at(skb, packet->l4, sizeof(*icmp)) : NULL;
	__u64 diff;

	if (!icmp)
		return ACTION_DROP;
	diff = (__u64)(__u16)~bpf_htons(icmp->type << 8) + bpf_htons(icmp_echo_reply(packet->v6) << 8);
	icmp->type = icmp_echo_reply(packet->v6);
	if (checksum_state(skb) != CHECKSUM_PARTIAL)
		icmp->checksum = checksum_add(icmp->checksum, diff);
	if (!icmp->checksum)
		icmp->checksum = 0xffff; /* which equals 0, but for a message of zeros only */
	return swap_addresses(skb, packet) ? ACTION_DROP : send_back(skb);
}

/* The action for a packet that apply() wants dropped or answered. */
static __always_inline int drop_or_refuse(struct __sk_buff *skb, const struct packet *packet, const struct decision *d)
{
	bool refused = d->reason == DROP_NO_BACKEND || d->reason == DROP_BACKEND_REMOVED;

	if (d->verdict == VERDICT_ANSWER)
		return answer_echo(skb, packet);
	return d->verdict == VERDICT_DROP && refused ? refuse(skb, packet) : ACTION_DROP;
}

#endif
