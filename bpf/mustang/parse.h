/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_PARSE_H
#define MUSTANG_PARSE_H

#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include "config.h"
#include "tuple.h"

enum parse_result {
	PARSE_IP,        /* parsed */
	PARSE_OTHER,     /* not translated: ARP, neighbour discovery, multicast, VLAN */
	PARSE_SHORT,     /* a header is not linear */
	PARSE_MALFORMED, /* a header contradicts itself, or is cut off */
	PARSE_EXTENSIONS /* too many extension headers */
};

enum trait {
	TRAIT_SYN = 1,            /* TCP: SYN without ACK; SCTP: INIT */
	TRAIT_FIN = 2,            /* TCP: FIN or RST; SCTP: the end */
	TRAIT_FIRST_FRAGMENT = 4, /* has the ports; more fragments follow */
	TRAIT_LATER_FRAGMENT = 8, /* without ports */
	TRAIT_ICMP_ERROR = 16,    /* quotes the packet that it is about */
	TRAIT_PORTS = 32,         /* TCP, UDP or SCTP whose ports are known: can be translated */
	TRAIT_RST = 64,           /* TCP: RST; SCTP: the end */
	TRAIT_ECHO = 128,         /* ICMP: an echo request */
	TRAIT_SYN_ACK = 256,      /* TCP: SYN and ACK; SCTP: INIT ACK */
	TRAIT_FOREIGN = 1024,     /* of a pod, from an allowed address: the host may filter or translate it */
	TRAIT_NONE = 512,         /* not of the packet: it is to change no connection's state */
};

/* The high half of traits, of TCP: a hash of the acknowledged sequence number, or of the one that acknowledges a SYN. */
#define TRAIT_NUMBER_SHIFT 16

struct packet {
	struct tuple tuple;
	__u32 l3; /* offset of the IP header */
	__u32 l4; /* offset of the transport header; while parsing, of the next header */
	__u32 fragment_id;
	__u32 traits; /* enum trait, and a hash of a sequence number */
	__u32 v6;
};

/* The size bytes at offset, or NULL if they are not all linear. */
static __always_inline void *header_at(struct __sk_buff *skb, __u32 offset, __u32 size)
{
	void *header = (void *)(long)skb->data;

	/* The verifier needs the mask; without this the compiler may drop it. */
	asm volatile("" : "+r"(offset));
	header += offset & OFFSET_MASK;
	return unlikely(header + size > (void *)(long)skb->data_end) ? NULL : header;
}

/* The first 8 bytes of ICMP and ICMPv6. <linux/icmp.h> includes headers of the C library. */
struct icmp_header {
	__u8 type;
	__u8 code;
	__sum16 checksum;
	__be32 rest;
};

/* Destination unreachable (with "fragmentation needed"), time exceeded, parameter problem (RFC 792). */
static __always_inline bool icmp_is_error(__u8 type)
{
	return type == 3 || type == 11 || type == 12;
}

/* Destination unreachable, packet too big, time exceeded, parameter problem (RFC 4443). */
static __always_inline bool icmpv6_is_error(__u8 type)
{
	return type >= 1 && type <= 4;
}

/* The types of an echo request and of its reply (RFC 792, RFC 4443). */
static __always_inline __u8 icmp_echo_request(bool v6)
{
	return v6 ? 128 : 8;
}

static __always_inline __u8 icmp_echo_reply(bool v6)
{
	return v6 ? 129 : 0;
}

/* Neighbour and router discovery and redirects (RFC 4861) belong to the link. */
static __always_inline bool icmpv6_is_discovery(__u8 type)
{
	return type >= 133 && type <= 137;
}

static __always_inline enum parse_result parse_icmp(struct __sk_buff *skb, struct packet *packet)
{
	const struct icmp_header *icmp = header_at(skb, packet->l4, sizeof(*icmp));

	if (!icmp)
		return PARSE_SHORT;
	if (packet->v6 && icmpv6_is_discovery(icmp->type))
		return PARSE_OTHER;
	if (packet->v6 ? icmpv6_is_error(icmp->type) : icmp_is_error(icmp->type))
		packet->traits |= TRAIT_ICMP_ERROR;
	else if (icmp->type == icmp_echo_request(packet->v6))
		packet->traits |= TRAIT_ECHO;
	return PARSE_IP;
}

static __always_inline enum parse_result parse_tcp(struct __sk_buff *skb, struct packet *packet)
{
	const struct tcphdr *tcp = header_at(skb, packet->l4, sizeof(*tcp));
	__u32 number;

	if (!tcp)
		return PARSE_SHORT;
	packet->tuple.sport = tcp->source;
	packet->tuple.dport = tcp->dest;
	packet->traits |= TRAIT_PORTS;
	if (unlikely(tcp->rst)) {
		packet->traits |= TRAIT_FIN | TRAIT_RST;
	} else if (tcp->fin) {
		if (tcp->syn)
			return PARSE_MALFORMED; /* which systems may take for a SYN, or not */
		packet->traits |= TRAIT_FIN;
	} else if (tcp->syn)
		packet->traits |= tcp->ack ? TRAIT_SYN_ACK : TRAIT_SYN;
	number = tcp->syn ? bpf_ntohl(tcp->seq) + 1 : bpf_ntohl(tcp->ack_seq);
	packet->traits |= (number ^ number >> 16) << TRAIT_NUMBER_SHIFT;
	return PARSE_IP;
}

static __always_inline enum parse_result parse_udp(struct __sk_buff *skb, struct packet *packet)
{
	const struct udphdr *udp = header_at(skb, packet->l4, sizeof(*udp));

	if (!udp)
		return PARSE_SHORT;
	packet->tuple.sport = udp->source;
	packet->tuple.dport = udp->dest;
	packet->traits |= TRAIT_PORTS;
	return PARSE_IP;
}

/* An SCTP packet (RFC 9260) up to its first chunk. <linux/sctp.h> has nothing of it. */
struct sctp_header {
	__be16 source;
	__be16 dest;
	__be32 tag; /* of the association, in this direction */
	__le32 checksum;
};

enum sctp_chunk {
	SCTP_INIT = 1,
	SCTP_INIT_ACK = 2,
	SCTP_ABORT = 6,
	SCTP_SHUTDOWN_COMPLETE = 14,
};

/* Parses an SCTP header. A GSO packet has its chunks elsewhere, which are neither linear nor to be made so. */
static __always_inline enum parse_result parse_sctp(struct __sk_buff *skb, struct packet *packet)
{
	const struct sctp_header *sctp = header_at(skb, packet->l4, sizeof(*sctp));
	__u8 chunk = 0;

	if (!sctp)
		return PARSE_SHORT;
	packet->tuple.sport = sctp->source;
	packet->tuple.dport = sctp->dest;
	packet->traits |= TRAIT_PORTS;
	if (skb->gso_size || bpf_skb_load_bytes(skb, packet->l4 + sizeof(*sctp), &chunk, sizeof(chunk)))
		return PARSE_IP;
	if (chunk == SCTP_INIT)
		packet->traits |= TRAIT_SYN;
	else if (chunk == SCTP_INIT_ACK)
		packet->traits |= TRAIT_SYN_ACK;
	else if (chunk == SCTP_ABORT || chunk == SCTP_SHUTDOWN_COMPLETE)
		packet->traits |= TRAIT_FIN | TRAIT_RST;
	return PARSE_IP;
}

/* Whether packets of a protocol have ports that this project knows. */
static __always_inline bool has_ports(__u8 proto)
{
	return proto == IPPROTO_TCP || proto == IPPROTO_UDP || proto == IPPROTO_SCTP;
}

static __always_inline enum parse_result parse_transport(struct __sk_buff *skb, struct packet *packet)
{
	if (unlikely(packet->traits & TRAIT_LATER_FRAGMENT))
		return PARSE_IP;
	if (likely(packet->tuple.proto == IPPROTO_TCP))
		return parse_tcp(skb, packet);
	switch (packet->tuple.proto) {
	case IPPROTO_UDP:
		return parse_udp(skb, packet);
	case IPPROTO_SCTP:
		return parse_sctp(skb, packet);
	case IPPROTO_ICMP:
		return packet->v6 ? PARSE_IP : parse_icmp(skb, packet);
	case IPPROTO_ICMPV6:
		return packet->v6 ? parse_icmp(skb, packet) : PARSE_IP;
	}
	return PARSE_IP;
}

/* The least bytes of a transport header that identify a packet: in SCTP, up to the first chunk's type. */
static __always_inline __u32 least_transport(__u8 proto)
{
	switch (proto) {
	case IPPROTO_TCP:
		return sizeof(struct tcphdr);
	case IPPROTO_SCTP:
		return sizeof(struct sctp_header) + 1;
	default:
		return sizeof(struct icmp_header); /* as UDP */
	}
}

/*
 * Whether fragments could hide the transport header (RFC 1858, RFC 3128): a first one that ends within it, whatever follows in the
 * frame, or a later one that begins there. size and offset are the fragment's.
 */
static __always_inline bool hides_transport(const struct packet *packet, __u32 size, __u32 offset)
{
	__u32 least = least_transport(packet->tuple.proto);

	return packet->traits & TRAIT_LATER_FRAGMENT ? offset < least : size < least;
}

/* Parses an IPv4 header. */
static __always_inline enum parse_result parse_ipv4(struct __sk_buff *skb, struct packet *packet)
{
	const struct iphdr *ip = header_at(skb, packet->l4, sizeof(*ip));

	if (!ip)
		return PARSE_SHORT;
	if (unlikely(ip->version != 4 || ip->ihl < 5))
		return PARSE_MALFORMED;
	packet->l3 = packet->l4;
	packet->v6 = 0;
	packet->tuple.proto = ip->protocol;
	addr_from_v4(&packet->tuple.saddr, ip->saddr);
	addr_from_v4(&packet->tuple.daddr, ip->daddr);
	if (unlikely(ip->frag_off & bpf_htons(0x3fff))) {
		packet->fragment_id = ip->id;
		packet->traits |= ip->frag_off & bpf_htons(0x1fff) ? TRAIT_LATER_FRAGMENT : TRAIT_FIRST_FRAGMENT;
		if (bpf_ntohs(ip->tot_len) < ip->ihl * 4 ||
		    hides_transport(packet, bpf_ntohs(ip->tot_len) - ip->ihl * 4,
				    (bpf_ntohs(ip->frag_off) & 0x1fff) * 8))
			return PARSE_MALFORMED;
	}
	packet->l4 += ip->ihl * 4;
	return PARSE_IP;
}

/* An IPv6 fragment header, which <linux/ipv6.h> lacks. */
struct ipv6_fragment {
	__u8 nexthdr;
	__u8 reserved;
	__be16 frag_off;
	__be32 id;
};

static __always_inline enum parse_result parse_ipv6_fragment(struct __sk_buff *skb, struct packet *packet)
{
	const struct ipv6_fragment *fragment = header_at(skb, packet->l4, sizeof(*fragment));

	if (!fragment)
		return PARSE_SHORT;
	packet->tuple.proto = fragment->nexthdr;
	packet->fragment_id = fragment->id;
	if (fragment->frag_off & bpf_htons(0xfff8)) {
		packet->traits |= TRAIT_LATER_FRAGMENT;
		if (hides_transport(packet, 0, bpf_ntohs(fragment->frag_off) & 0xfff8))
			return PARSE_MALFORMED;
	} else if (fragment->frag_off & bpf_htons(1))
		packet->traits |= TRAIT_FIRST_FRAGMENT;
	packet->l4 += sizeof(*fragment);
	return PARSE_IP;
}

/* Parses an extension header with a length field, which counts units of 8 bytes after the first 8. */
static __always_inline enum parse_result parse_ipv6_option(struct __sk_buff *skb, struct packet *packet)
{
	const struct ipv6_rt_hdr *option = header_at(skb, packet->l4, sizeof(*option));

	if (!option)
		return PARSE_SHORT;
	/* With segments left, checksums cover the final destination, not the header's. */
	if (packet->tuple.proto == IPPROTO_ROUTING && option->segments_left)
		return PARSE_OTHER;
	packet->tuple.proto = option->nexthdr;
	packet->l4 += (option->hdrlen + 1) * 8;
	return PARSE_IP;
}

static __always_inline bool is_extension(__u8 proto)
{
	return proto == IPPROTO_HOPOPTS || proto == IPPROTO_ROUTING || proto == IPPROTO_DSTOPTS ||
	       proto == IPPROTO_FRAGMENT;
}

/* Whether the first fragment of an IPv6 packet ends within its headers (RFC 7112). */
static __always_inline bool is_cut_short(struct __sk_buff *skb, const struct packet *packet)
{
	const struct ipv6hdr *ip = header_at(skb, packet->l3, sizeof(*ip));
	__u32 end = ip ? packet->l3 + sizeof(*ip) + bpf_ntohs(ip->payload_len) : 0;

	return end < packet->l4 || hides_transport(packet, end - packet->l4, 0);
}

/*
 * Parses all extension headers. No header follows the fragment header of a later fragment. A global function, as all of
 * this project that are not static: the verifier checks it once, not for each path through its callers.
 */
__noinline int parse_ipv6_extensions(struct __sk_buff *skb, struct packet *packet)
{
	enum parse_result parsed;

	if (!packet)
		return PARSE_MALFORMED;
	for (int i = 0; i < EXTENSIONS_MAX; i++) {
		if (!is_extension(packet->tuple.proto)) {
			if (packet->traits & TRAIT_FIRST_FRAGMENT && is_cut_short(skb, packet))
				return PARSE_MALFORMED;
			return PARSE_IP;
		}
		if (packet->tuple.proto == IPPROTO_FRAGMENT)
			parsed = parse_ipv6_fragment(skb, packet);
		else
			parsed = parse_ipv6_option(skb, packet);
		if (parsed != PARSE_IP || packet->traits & TRAIT_LATER_FRAGMENT)
			return parsed;
	}
	return is_extension(packet->tuple.proto) ? PARSE_EXTENSIONS : PARSE_IP;
}

/* Parses an IPv6 header and its extension headers. */
static __always_inline enum parse_result parse_ipv6(struct __sk_buff *skb, struct packet *packet)
{
	const struct ipv6hdr *ip = header_at(skb, packet->l4, sizeof(*ip));

	if (!ip)
		return PARSE_SHORT;
	if (unlikely(ip->version != 6))
		return PARSE_MALFORMED;
	packet->l3 = packet->l4;
	packet->v6 = 1;
	packet->tuple.proto = ip->nexthdr;
	addr_from_v6(&packet->tuple.saddr, &ip->saddr);
	addr_from_v6(&packet->tuple.daddr, &ip->daddr);
	packet->l4 += sizeof(*ip);
	return unlikely(is_extension(packet->tuple.proto)) ? (enum parse_result)parse_ipv6_extensions(skb, packet)
							   : PARSE_IP;
}

/* Parses the Ethernet header, if there is one, and returns the protocol of the next header. */
static __always_inline enum parse_result parse_link(struct __sk_buff *skb, struct packet *packet, __be16 *proto)
{
	const struct ethhdr *eth = header_at(skb, 0, sizeof(*eth));

	*proto = skb->protocol;
	if (!has_ethernet())
		return PARSE_IP;
	if (!eth)
		return PARSE_SHORT;
	if (unlikely(eth->h_dest[0] & 1 || skb->vlan_present))
		return PARSE_OTHER;
	*proto = eth->h_proto;
	packet->l4 = sizeof(*eth);
	return PARSE_IP;
}

/* Parses the linear part of skb into packet, which must be zero. */
static __always_inline enum parse_result parse_linear(struct __sk_buff *skb, struct packet *packet)
{
	__be16 proto;
	enum parse_result parsed = parse_link(skb, packet, &proto);

	if (unlikely(parsed != PARSE_IP))
		return parsed;
	if (likely(proto == bpf_htons(ETH_P_IP)))
		parsed = parse_ipv4(skb, packet);
	else if (proto == bpf_htons(ETH_P_IPV6))
		parsed = parse_ipv6(skb, packet);
	else
		return PARSE_OTHER;
	return likely(parsed == PARSE_IP) ? parse_transport(skb, packet) : parsed;
}

/* Makes the headers linear and parses again. A packet that is still short is cut off. */
__noinline int parse_pulled(struct __sk_buff *skb, struct packet *packet)
{
	enum parse_result parsed = PARSE_SHORT;

	if (!packet)
		return PARSE_MALFORMED;
	__builtin_memset(packet, 0, sizeof(*packet));
	if (skb->data_end - skb->data < skb->len &&
	    !bpf_skb_pull_data(skb, skb->len < LINEAR_BYTES ? skb->len : LINEAR_BYTES))
		parsed = parse_linear(skb, packet);
	return parsed == PARSE_SHORT ? PARSE_MALFORMED : parsed;
}

/* Parses skb into packet, which must be zero. Returns anything but PARSE_SHORT. */
static __always_inline enum parse_result parse_packet(struct __sk_buff *skb, struct packet *packet)
{
	enum parse_result parsed = parse_linear(skb, packet);

	return unlikely(parsed == PARSE_SHORT) ? (enum parse_result)parse_pulled(skb, packet) : parsed;
}

/* Whether the sender of a packet may get an answer. */
static __always_inline bool may_answer(const struct packet *packet)
{
	const union addr *from = &packet->tuple.saddr;

	if (packet->traits & (TRAIT_FIRST_FRAGMENT | TRAIT_LATER_FRAGMENT | TRAIT_RST | TRAIT_ICMP_ERROR))
		return false;
	if (packet->l4 != packet->l3 + (packet->v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)))
		return false;
	if (packet->v6)
		return from->bytes[0] != 0xff && (from->halves[0] || from->halves[1]);
	return from->bytes[12] && from->bytes[12] < 224;
}

#endif
