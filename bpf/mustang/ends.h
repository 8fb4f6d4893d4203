/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_ENDS_H
#define MUSTANG_ENDS_H

#include "deliver.h"
#include "senders.h"

/*
 * Finds for policies more than addresses and ports: the pod that sent a packet from a foreign address, the ICMP request that a
 * message answers, and the contents of frames that parse_packet() skips.
 */

/* The row of the device by which a packet enters its pod; NULL if there is none. */
static __always_inline const struct sender *receiver_of(struct __sk_buff *skb)
{
	struct sender_key key = { .ifindex = skb->ifindex };

	if (config.attach_point != ATTACH_NETKIT)
		return sender_of(skb);
	/* It has changed over to the pod's device. */
	key.netns = netns_of(skb);
	return bpf_map_lookup_elem(&source_guard, &key);
}

/* Whether a packet is between a DHCP client and a server (RFC 2131). */
static __always_inline bool is_dhcp(const struct tuple *t, bool from_pod)
{
	__be16 client = from_pod ? t->sport : t->dport, server = from_pod ? t->dport : t->sport;

	return t->proto == IPPROTO_UDP && client == bpf_htons(68) && server == bpf_htons(67);
}

/*
 * Replaces an address in no row (link-local, allowed, unspecified, a joined group) by the address of the pod whose device it is.
 * The policies of the pod hold for all that passes its device. False: none do, as the pod gets its addresses so.
 */
static __noinline int own_end(struct __sk_buff *skb, struct packet *packet, bool from_pod)
{
	union addr *own = from_pod ? &packet->tuple.saddr : &packet->tuple.daddr;
	bool dhcp = is_dhcp(&packet->tuple, from_pod);
	const struct sender *sender;

	if (is_pod(own) && !dhcp)
		return true;
	sender = from_pod ? sender_of(skb) : receiver_of(skb);
	if (!sender)
		return true;
	if (dhcp && sender->flags & SENDER_DHCP)
		return false;
	if (!is_pod(own) && (sender->pod.halves[0] || sender->pod.halves[1]))
		*own = sender->pod;
	return true;
}

static __always_inline bool is_icmp(const struct packet *packet)
{
	return packet->tuple.proto == (packet->v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP);
}

static __always_inline void swap_ports(struct tuple *t)
{
	__be16 port = t->sport;

	t->sport = t->dport;
	t->dport = port;
}

/*
 * Gives a message of ICMP ports, so that an echo reply answers a request and nothing else does. Later fragments look like fragments
 * of a request.
 */
static __always_inline void name_icmp(struct __sk_buff *skb, struct packet *packet)
{
	const struct icmp_header *icmp = header_at(skb, packet->l4, sizeof(*icmp));
	__u8 request = icmp_echo_request(packet->v6), reply = icmp_echo_reply(packet->v6), type = request;

	if (!(packet->traits & TRAIT_LATER_FRAGMENT) && icmp)
		type = icmp->type;
	packet->tuple.sport = packet->tuple.dport = bpf_htons(type);
	if (type == request)
		packet->tuple.dport = bpf_htons(reply);
	else if (type == reply)
		packet->tuple.dport = bpf_htons(request);
}

/* Reports of multicast listeners (RFC 2710, RFC 3810) belong to the link. */
static __always_inline bool icmpv6_is_report(__u8 type)
{
	return (type >= 130 && type <= 132) || type == 143;
}

/*
 * Whether a message of neighbour discovery stays on the link: no router has forwarded it (RFC 4861), and the host will not. Where pods have neighbours
 * other than the host, another router might.
 */
static __noinline int stays_on_link(struct __sk_buff *skb, const struct packet *packet, bool from_pod)
{
	const struct ipv6hdr *ip6 = header_at(skb, packet->l3, sizeof(*ip6));
	const union addr *to = &packet->tuple.daddr;

	if (!ip6 || ip6->hop_limit != 255)
		return false;
	return !from_pod || to->bytes[0] == 0xff || is_link_local(to) || is_own_node(to) ||
	       config.attach_point == ATTACH_POD || is_port(skb);
}

/* Whether a packet belongs to the link: neighbour discovery, reports of listeners (IGMP: RFC 3376). */
static __always_inline bool is_of_link(struct __sk_buff *skb, const struct packet *packet, enum parse_result parsed,
				       bool from_pod)
{
	const struct icmp_header *icmp = header_at(skb, packet->l4, sizeof(*icmp));

	if (!packet->v6)
		return packet->tuple.proto == IPPROTO_IGMP;
	if (packet->tuple.proto != IPPROTO_ICMPV6 || packet->traits & TRAIT_LATER_FRAGMENT)
		return false;
	if (parsed == PARSE_OTHER)
		return stays_on_link(skb, packet, from_pod);
	return icmp && icmpv6_is_report(icmp->type);
}

/*
 * Looks at a frame that parse_packet() skips: to a group, or not IP. 0: policies do not apply to it; STRAY_JUDGED: they do,
 * and the packet is parsed; otherwise the enum drop_reason for a pod that a policy selects.
 */
#define STRAY_JUDGED (-1)

__noinline int parse_stray(struct __sk_buff *skb, struct packet *packet, bool from_pod)
{
	enum parse_result parsed;

	if (!packet)
		return DROP_MALFORMED;
	__builtin_memset(packet, 0, sizeof(*packet));
	if (skb->vlan_present)
		return DROP_ETHERTYPE;
	if (skb->protocol == bpf_htons(ETH_P_ARP))
		return 0;
	/* The headers of a GSO packet are linear. */
	if (!skb->gso_size && skb->data_end - skb->data < skb->len)
		bpf_skb_pull_data(skb, skb->len < LINEAR_BYTES ? skb->len : LINEAR_BYTES);
	packet->l4 = has_ethernet() ? sizeof(struct ethhdr) : 0;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		parsed = parse_ipv4(skb, packet);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		parsed = parse_ipv6(skb, packet);
	else
		return DROP_ETHERTYPE;
	if (parsed == PARSE_OTHER) /* a routing header, which changes where the packet goes */
		return DROP_EXTENSIONS;
	if (parsed == PARSE_IP)
		parsed = parse_transport(skb, packet);
	if (parsed != PARSE_IP && parsed != PARSE_OTHER)
		return DROP_MALFORMED;
	return is_of_link(skb, packet, parsed, from_pod) ? 0 : STRAY_JUDGED;
}

#endif
