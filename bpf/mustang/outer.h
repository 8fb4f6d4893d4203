/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_OUTER_H
#define MUSTANG_OUTER_H

#include "crossing.h"
#include "egress_seals.h"

/*
 * The source guard once more, on devices of the host: the parent of pods' own devices, for packets to the network, and the
 * devices by which such pods reach the host. A packet from a process of a guarded pod has a seal there, or bypassed the guard.
 * A packet without a known process may come from the network, the host or a pod: it may not pose as a pod.
 */

/*
 * Whether a packet comes via the network from a pod of this host without seals: a pod on a bridge that shares the network. Only the
 * pods on that bridge know the pod's MAC address.
 */
static __always_inline bool is_from_bridge(struct __sk_buff *skb, const struct cached_endpoint *ep)
{
	const struct ethhdr *eth = header_at(skb, 0, sizeof(*eth));
	struct sender_key key = { .netns = ep->netns };
	const __u8 *mac = ep->path.pod_mac;
	const struct sender *sender;

	if (!eth || !mac_equal(eth->h_source, mac) || !(*(const __u32 *)mac | *(const __u16 *)(mac + 4)))
		return false;
	if (ep->path.flags & ENDPOINT_ON_HOST)
		return true;
	sender = bpf_map_lookup_elem(&source_guard, &key);
	return sender && sender->flags & SENDER_SWITCHED;
}

/* Whether a packet without a seal and with a pod's address as source cannot be that pod's. */
static __always_inline bool is_forged(struct __sk_buff *skb, const struct cached_endpoint *ep, __u64 value, __u32 l3,
				      __be16 proto)
{
	if (config.attach_point == ATTACH_PARENT)
		return is_routed_here(skb) ? crosses_as(skb, ep, l3, proto) : !(ep->path.flags & ENDPOINT_ON_HOST);
	return !has_egress_seal(value) && !is_from_bridge(skb, ep);
}

/*
 * Whether a packet comes to the host with the node's own address: IPv6 would route it on to pods, which policies let the node reach. It
 * routes none from link-local addresses, and those come back where two devices of the host are on one network.
 */
static __always_inline bool enters_as_node(const union addr *from)
{
	bool local = from->bytes[0] == 0xfe && (from->bytes[1] & 0xc0) == 0x80;

	return config.attach_point == ATTACH_ENTRANCE && !local && is_own_node(from);
}

/* Why a packet that no process of a guarded pod has sent, or that is sealed, must be dropped, or DROP_UNSPECIFIED. */
static __always_inline enum drop_reason is_spoofed(struct __sk_buff *skb, bool sealed)
{
	const struct cached_endpoint *ep;
	union addr from;
	__be16 proto;
	__u64 value;
	__u32 l3;

	if (bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_proto), &proto, sizeof(proto)))
		return DROP_UNSPECIFIED;
	l3 = network_header(skb, &proto);
	if (announces(skb, l3, proto))
		return DROP_NEIGHBOUR;
	if (!claimed_source(skb, l3, proto, &from))
		return DROP_UNSPECIFIED;
	ep = endpoint_lookup(&from);
	if (!ep || !ep->id)
		return !sealed && enters_as_node(&from) ? DROP_SOURCE : DROP_UNSPECIFIED;
	value = seal_of(skb);
	if (!sealed && is_forged(skb, ep, value, l3, proto))
		return DROP_SOURCE;
	/* What cannot be told from a forgery is not noted: pods could have themselves vouched for. */
	if (config.attach_point == ATTACH_PARENT && (sealed || (skb->ingress_ifindex && is_routed_here(skb))))
		egress_seal_store(value);
	return DROP_UNSPECIFIED;
}

/* Looks closely at a packet whose sender and seal do not prove that it may pass. As guard_claims(). */
__noinline int guard_outer(struct __sk_buff *skb, bool sealed)
{
	const struct sender *sender = sender_of_socket(skb);

	if (sender && sender->flags & SENDER_UNGUARDED)
		return DROP_UNSPECIFIED;
	if (!pull_headers(skb))
		return DROP_MALFORMED;
	/* A packet that comes to the host by another device of the pod may have its socket here. */
	if (!sealed && sender && !(config.attach_point == ATTACH_PARENT && skb->ingress_ifindex) && !is_translated(skb))
		return skb->protocol == bpf_htons(ETH_P_ARP) ? DROP_NEIGHBOUR : DROP_SOURCE;
	return is_spoofed(skb, sealed);
}

/* Whether a packet may go on by a device of the host; otherwise it is counted as dropped. */
static __always_inline bool outer_passes(struct __sk_buff *skb, struct metrics *row)
{
	__u32 reason;
	__u64 value;
	bool sealed;

	if (origin_of(skb) == netns_of(skb))
		return true;
	value = seal_of(skb);
	sealed = is_sealed_outside(skb, value);
	if (likely(sealed && !has_extensions(skb))) {
		if (config.attach_point == ATTACH_PARENT)
			egress_seal_store(value);
		return true;
	}
	reason = guard_outer(skb, sealed);
	if (!reason)
		return true;
	count_drop(skb, row, reason);
	return false;
}

/* Whether the host itself sends a packet: a process of its own, or its kernel. */
static __always_inline bool is_hosts_own(struct __sk_buff *skb)
{
	const struct sk_buff *kernel = kernel_packet(skb);
	const struct sock *sk = kernel->sk;

	if (skb->ingress_ifindex)
		return false;
	/* The kernel sends resets and the last ACKs of IPv6 without a socket. For pods in layer 3 the host sends such packets too; only resets pass. */
	if (!sk)
		return is_routed_here(skb) &&
		       (!is_guarded_device(LOOPBACK_IFINDEX) || is_reset(skb, sizeof(struct ethhdr), skb->protocol));
	return sk->__sk_common.skc_net.net->net_cookie == netns_of(skb);
}

/*
 * Whether the source of a packet that the host sends to a pod is true. The packet is the host's; or the host has given it an address of its own,
 * with which no pod's packet gets here; or the source guard has let it pass, at a guarded device or, from ipvlan in layer 3, by the rest of a
 * seal.
 */
static __always_inline bool has_true_source(struct __sk_buff *skb, const union addr *from)
{
	if (!skb->ingress_ifindex)
		return is_hosts_own(skb) || is_sealed_outside(skb, seal_of(skb));
	return is_guarded_device(skb->ingress_ifindex) || is_own_node(from);
}

/* Seals a packet of the host, or one that it passes on from a pod. */
static __always_inline void seal_again(struct __sk_buff *skb)
{
	const struct cached_endpoint *ep;
	union addr from;

	if (!claimed_source(skb, sizeof(struct ethhdr), skb->protocol, &from) || !has_true_source(skb, &from))
		return;
	ep = endpoint_lookup(&from);
	seal_as(skb, ep && ep->id ? ep->netns : 0);
}

#endif
