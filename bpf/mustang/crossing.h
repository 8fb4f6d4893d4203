/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_CROSSING_H
#define MUSTANG_CROSSING_H

#include "claims.h"

/*
 * The host routes packets of pods in layer 3 (ipvlan-l3 and ipvlan-l3s) as if it had sent them itself. The kernel then forgets that
 * the packet has come by a device, and remembers the socket.
 */

/* Whether the host has routed the packet: it is its own, or the host forwards it. Nothing of a pod in layer 2 is. */
static __always_inline bool is_routed_here(struct __sk_buff *skb)
{
	const struct sk_buff *kernel = kernel_packet(skb);
	unsigned long address = kernel->_skb_refdst & ~1UL;
	const struct dst_entry *dst;

	if (!address)
		return false;
	dst = bpf_rdonly_cast((const void *)address, bpf_core_type_id_kernel(struct dst_entry));
	return dst->dev->nd_net.net->net_cookie == netns_of(skb);
}

/* Whether a packet that the host has routed for a pod in layer 3 has the rest of the seal of the pod with its source address. */
static __always_inline bool has_rest_of_seal(struct __sk_buff *skb, __u64 value)
{
	__u64 netns = origin_of(skb);
	const struct cached_endpoint *ep;
	union addr from;

	asm volatile("" : "+r"(netns)); /* else one load serves for both, which the verifier refuses */
	if (!has_half(skb, value) || skb->ingress_ifindex || !is_routed_here(skb) ||
	    !claimed_source(skb, has_ethernet() ? sizeof(struct ethhdr) : 0, skb->protocol, &from))
		return false;
	ep = endpoint_lookup(&from);
	if (ep && ep->id)
		netns = ep->netns;
	return (skb->cb[SEAL_HIGH] & SEAL_TOKEN) == seal_token(netns);
}

/*
 * Whether a packet has the seal that it ought to have, or the rest of it where the host has routed the packet. The seal depends on
 * the packet's protocol in the kernel, the network on the protocol in the frame.
 */
static __always_inline bool is_sealed_outside(struct __sk_buff *skb, __u64 value)
{
	const struct ethhdr *eth = header_at(skb, 0, sizeof(*eth));

	if (!eth || (has_ethernet() && eth->h_proto != skb->protocol))
		return false;
	return has_seal(skb, value) || has_rest_of_seal(skb, value);
}

/* Whether a packet that the host has routed for a pod had a seal, and the host has given it another source or destination. */
static __always_inline bool is_translated(struct __sk_buff *skb)
{
	__u64 origin = origin_of(skb);
	const struct cached_endpoint *ep;
	union addr from;

	if ((skb->cb[SEAL_HIGH] & SEAL_TOKEN) != seal_token(origin) || !is_routed_here(skb) ||
	    !claimed_source(skb, has_ethernet() ? sizeof(struct ethhdr) : 0, skb->protocol, &from))
		return false;
	ep = endpoint_lookup(&from);
	return ep && (!ep->id || ep->path.flags & ENDPOINT_ON_HOST || ep->netns == origin);
}

/* Whether a packet is a TCP reset: firewalls of the host answer with these in a pod's name. */
static __always_inline bool is_reset(struct __sk_buff *skb, __u32 l3, __be16 proto)
{
	bool v4 = proto == bpf_htons(ETH_P_IP);
	__u32 l4 = l3 + sizeof(struct ipv6hdr);
	struct tcphdr tcp;
	struct iphdr ip;
	__u8 kind;

	if (v4) {
		if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)))
			return false;
		kind = ip.protocol;
		l4 = l3 + ip.ihl * 4;
	} else if (bpf_skb_load_bytes(skb, l3 + offsetof(struct ipv6hdr, nexthdr), &kind, sizeof(kind))) {
		return false;
	}
	return kind == IPPROTO_TCP && !bpf_skb_load_bytes(skb, l4, &tcp, sizeof(tcp)) && tcp.rst;
}

/*
 * Whether a packet without a seal that the host has routed comes from a pod in layer 3 other than the owner of its source address. No
 * ep: the address is the node's.
 */
static __always_inline bool crosses_as(struct __sk_buff *skb, const struct cached_endpoint *ep, __u32 l3, __be16 proto)
{
	const struct sk_buff *kernel = kernel_packet(skb);
	const struct sock *sk = kernel->sk;
	__u64 netns;

	if (skb->ingress_ifindex)
		return false;
	if (!sk)
		return !is_reset(skb, l3, proto);
	netns = sk->__sk_common.skc_net.net->net_cookie;
	return netns != netns_of(skb) && (!ep || netns != ep->netns);
}

/*
 * Whether it may be a pod in layer 3 that a packet without a socket is of. A bridge makes such of the host's own where it floods a frame: one
 * to a group, which the kernel routes for no pod in layer 3, or one to a MAC address that it does not know.
 */
static __always_inline bool may_be_crossing(struct __sk_buff *skb)
{
	const struct ethhdr *eth = has_ethernet() ? header_at(skb, 0, sizeof(*eth)) : NULL;

	return is_guarded_device(LOOPBACK_IFINDEX) && !(eth && eth->h_dest[0] & 1);
}

/* Looks closely at a packet that the host has routed to a pod, and not received by a device. As guard_claims(). */
__noinline int guard_crossing(struct __sk_buff *skb)
{
	__u32 l3 = has_ethernet() ? sizeof(struct ethhdr) : 0;
	const struct cached_endpoint *ep;
	union addr from;

	if (!claimed_source(skb, l3, skb->protocol, &from) || !pull_headers(skb) ||
	    is_sealed_outside(skb, seal_of(skb)))
		return DROP_UNSPECIFIED;
	/* Its own process has sent it past the guard. */
	if (is_past_guard(skb) && !is_translated(skb))
		return DROP_SOURCE;
	ep = endpoint_lookup(&from);
	if (!ep || !ep->id) {
		if (!is_own_node(&from))
			return DROP_UNSPECIFIED;
		ep = NULL;
	}
	return may_be_crossing(skb) && crosses_as(skb, ep, l3, skb->protocol) ? DROP_SOURCE : DROP_UNSPECIFIED;
}

/* Whether a packet may leave the host for a pod by a device of the host; otherwise it is counted as dropped. */
static __always_inline bool may_cross(struct __sk_buff *skb, struct metrics *row)
{
	__u32 reason;

	if (likely(skb->ingress_ifindex) || origin_of(skb) == netns_of(skb) || !is_routed_here(skb))
		return true;
	reason = guard_crossing(skb);
	if (!reason)
		return true;
	count_drop(skb, row, reason);
	return false;
}

#endif
