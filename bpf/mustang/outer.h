/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_OUTER_H
#define MUSTANG_OUTER_H

#include "claims.h"

/*
 * The source guard once more, on devices of the host: the parent of pods' own devices, where packets go out to the network, and
 * those by which such pods reach the host. What a process of a guarded pod sent has a seal there, or the pod sent it past the
 * guard. What no process sent is the network's or the host's: it may not pose as a pod.
 */

/* Whether the host has routed the packet: it is its own, or the host forwards it. Nothing of a pod in layer 2 is. */
static __always_inline bool is_routed_here(struct __sk_buff *skb)
{
	const struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);
	unsigned long address = kernel->_skb_refdst & ~1UL;
	const struct dst_entry *dst;

	if (!address)
		return false;
	dst = bpf_rdonly_cast((const void *)address, bpf_core_type_id_kernel(struct dst_entry));
	return dst->dev->nd_net.net->net_cookie == netns_of(skb);
}

/* Whether a packet that the host has routed for a pod had a seal, and the host has given it another source. */
static __always_inline bool is_translated(struct __sk_buff *skb)
{
	const struct filter *row = filter_row();
	union addr from;

	return row && (skb->cb[SEAL_HIGH] & SEAL_TOKEN) == (row->secret[1] & SEAL_TOKEN) && is_routed_here(skb) &&
	       claimed_source(skb, sizeof(struct ethhdr), skb->protocol, &from) && !is_sealed_pod(&from);
}

/*
 * Whether a packet has a seal, or what is left of it where the host has routed the packet. The seal goes by the
 * protocol that the packet has in the kernel, the network by that in the frame.
 */
static __always_inline bool is_sealed_outside(struct __sk_buff *skb)
{
	const struct ethhdr *eth = header_at(skb, 0, sizeof(*eth));
	__u64 value = seal_of(skb);

	return value && eth && eth->h_proto == skb->protocol && skb->cb[SEAL_HIGH] == value >> 32 &&
	       (skb->cb[SEAL_LOW] == (__u32)value || !skb->cb[SEAL_LOW]);
}

/* Why a packet without a seal that no process of a guarded pod has sent must be dropped, or DROP_UNSPECIFIED. */
static __always_inline enum drop_reason poses_as_pod(struct __sk_buff *skb, bool sealed)
{
	union addr from;
	__be16 proto;
	__u32 l3;

	if (bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_proto), &proto, sizeof(proto)))
		return DROP_UNSPECIFIED;
	l3 = network_header(skb, &proto);
	if (announces(skb, l3, proto))
		return DROP_NEIGHBOUR;
	/* Routers on the network may bring back a pod's packet to the host. */
	if (sealed || config.attach_point != ATTACH_PARENT || !claimed_source(skb, l3, proto, &from) ||
	    !is_sealed_pod(&from))
		return DROP_UNSPECIFIED;
	return is_routed_here(skb) ? DROP_UNSPECIFIED : DROP_SOURCE;
}

/* Looks closely at a packet of which neither the sender nor the seal tells that it may pass. As guard_claims(). */
__noinline int guard_outer(struct __sk_buff *skb, bool sealed)
{
	const struct sender *sender = sender_of_socket(skb);

	if (sender && sender->flags & SENDER_UNGUARDED)
		return DROP_UNSPECIFIED;
	if (!pull_headers(skb))
		return DROP_MALFORMED;
	/* What comes to the host by another device of the pod may have its socket here. */
	if (!sealed && sender && !(config.attach_point == ATTACH_PARENT && skb->ingress_ifindex) && !is_translated(skb))
		return skb->protocol == bpf_htons(ETH_P_ARP) ? DROP_NEIGHBOUR : DROP_SOURCE;
	return poses_as_pod(skb, sealed);
}

/* Whether a packet may go on by a device of the host; otherwise it is counted as dropped. */
static __always_inline bool outer_passes(struct __sk_buff *skb, struct metrics *row)
{
	bool sealed;
	__u32 reason;

	if (origin_of(skb) == netns_of(skb))
		return true;
	sealed = is_sealed_outside(skb);
	if (likely(sealed && !has_extensions(skb)))
		return true;
	reason = guard_outer(skb, sealed);
	if (!reason)
		return true;
	count_drop(row, reason);
	return false;
}

#endif
