/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_DROPS_H
#define MUSTANG_DROPS_H

#include "events.h"
#include "kernel.h"
#include "parse.h"

/* Every packet that is dropped is counted here, and emitted while someone reads events. */

/* The ports of an IP packet, or the type of a message of ICMP. */
static __always_inline void emit_ports(struct __sk_buff *skb, __u32 l4, struct event *event)
{
	__u8 proto = event->tuple.proto, type;

	if (has_ports(proto)) {
		bpf_skb_load_bytes(skb, l4, &event->tuple.sport, 2 * sizeof(event->tuple.sport));
		if (proto == IPPROTO_TCP)
			bpf_skb_load_bytes(skb, l4 + 13, &event->tcp_flags, sizeof(event->tcp_flags));
	} else if (proto == IPPROTO_ICMP || proto == IPPROTO_ICMPV6) {
		if (!bpf_skb_load_bytes(skb, l4, &type, sizeof(type)))
			event->tuple.sport = event->tuple.dport = bpf_htons(type);
	}
}

static __always_inline void emit_ipv4(struct __sk_buff *skb, __u32 l3, struct event *event)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)))
		return;
	addr_from_v4(&event->tuple.saddr, ip.saddr);
	addr_from_v4(&event->tuple.daddr, ip.daddr);
	event->tuple.proto = ip.protocol;
	if (!(ip.frag_off & bpf_htons(0x1fff)))
		emit_ports(skb, l3 + ip.ihl * 4, event);
}

/* Extension headers stay the protocol: a packet that has any in the way is rare. */
static __always_inline void emit_ipv6(struct __sk_buff *skb, __u32 l3, struct event *event)
{
	if (bpf_skb_load_bytes(skb, l3 + offsetof(struct ipv6hdr, nexthdr), &event->tuple.proto, sizeof(__u8)) ||
	    bpf_skb_load_bytes(skb, l3 + offsetof(struct ipv6hdr, saddr), &event->tuple.saddr, 2 * sizeof(union addr)))
		return;
	emit_ports(skb, l3 + sizeof(struct ipv6hdr), event);
}

/* The addresses that an ARP packet for IPv4 has of sender and target. */
static __always_inline void emit_arp(struct __sk_buff *skb, __u32 l3, struct event *event)
{
	__be32 from = 0, to = 0;

	if (bpf_skb_load_bytes(skb, l3 + 14, &from, sizeof(from)) || bpf_skb_load_bytes(skb, l3 + 24, &to, sizeof(to)))
		return;
	addr_from_v4(&event->tuple.saddr, from);
	addr_from_v4(&event->tuple.daddr, to);
}

/* The namespace of a packet's socket, on a device of the host below pods' own devices, or of the pod's own device. */
static __always_inline __u64 pod_netns(struct __sk_buff *skb)
{
	switch (config.attach_point) {
	case ATTACH_POD:
		return netns_of(skb);
	case ATTACH_PARENT:
	case ATTACH_ENTRANCE:
		return origin_of(skb);
	}
	return 0;
}

static __noinline int emit_drop(struct __sk_buff *skb, __u32 reason)
{
	struct event *event = event_begin(EVENT_DROPPED, config.attach_point);
	__u32 l3 = has_ethernet() ? sizeof(struct ethhdr) : 0;

	if (!event)
		return 0;
	event->reason = reason;
	event->length = skb->len;
	event->ifindex = skb->ifindex;
	event->netns = pod_netns(skb);
	event->ethertype = skb->protocol;
	if (l3) {
		bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_source), event->mac, ETH_ALEN);
		bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_proto), &event->ethertype, sizeof(event->ethertype));
	}
	if (skb->vlan_present)
		event->ethertype = skb->vlan_proto;
	else if (event->ethertype == bpf_htons(ETH_P_IP))
		emit_ipv4(skb, l3, event);
	else if (event->ethertype == bpf_htons(ETH_P_IPV6))
		emit_ipv6(skb, l3, event);
	else if (event->ethertype == bpf_htons(ETH_P_ARP))
		emit_arp(skb, l3, event);
	event_end(event);
	return 0;
}

/* Counts a dropped packet, and emits an event. */
static __always_inline void count_drop(struct __sk_buff *skb, struct metrics *row, __u32 reason)
{
	asm volatile("" : "+r"(reason));
	if (reason >= DROP_SLOTS)
		return;
	row->drops[reason]++;
	if (is_watched(EVENT_DROPPED))
		emit_drop(skb, reason);
}

#endif
