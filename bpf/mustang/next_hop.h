/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_NEXT_HOP_H
#define MUSTANG_NEXT_HOP_H

#include "config.h"
#include "maps.h"

/* Where a packet goes from here. */
enum next_hop {
	NEXT_HOP_STACK,   /* the kernel: to another node, to the host, or to a pod that nothing else leads to */
	NEXT_HOP_SELF,    /* back into the pod that sent it: no switch returns a frame to its sender */
	NEXT_HOP_SEGMENT, /* a pod on the same segment, by its MAC address */
	NEXT_HOP_PEER,    /* a pod, by bpf_redirect_peer() */
	NEXT_HOP_DEVICE,  /* a pod, by bpf_redirect() to its device on the host; or a client outside, by the uplink */
	NEXT_HOP_ROUTED,  /* outside by an uplink, by bpf_redirect_neigh() */
};

#define HOP(name) (1 << NEXT_HOP_##name)

/*
 * The next hops that each attach point can use, apart from the stack:
 *
 *              self   segment   peer   device   routed
 *   host                         x       x        x
 * tun x x the kernel needs an Ethernet header to route a packet so
 * netkit x x the kernel refuses bpf_redirect_peer() from netkit programs
 *   pod         x        x                               the host's devices are in another network namespace
 *   uplink               x       x       x        x
 */
static const __u8 next_hops[] = {
	[ATTACH_HOST] = HOP(PEER) | HOP(DEVICE) | HOP(ROUTED),
	[ATTACH_TUN] = HOP(PEER) | HOP(DEVICE),
	[ATTACH_NETKIT] = HOP(DEVICE) | HOP(ROUTED),
	[ATTACH_POD] = HOP(SELF) | HOP(SEGMENT),
	[ATTACH_UPLINK] = HOP(SEGMENT) | HOP(PEER) | HOP(DEVICE) | HOP(ROUTED),
};

/*
 * The first next hop that both the attach point and the receiver have; the stack if there is none. ct is the packet's
 * connection, path the way into the receiving pod; each may be NULL.
 */
static __always_inline enum next_hop next_hop_of(const struct ct_entry *ct, const struct ep_path *path)
{
	__u32 hops = next_hops[config.attach_point];

	/* The verifier knows hops, and removes code for other attach points. */
	if (hops & (HOP(SELF) | HOP(SEGMENT)) && ct) {
		if (hops & HOP(SELF) && ct->flags & CT_HAIRPIN)
			return NEXT_HOP_SELF;
		if (hops & HOP(SEGMENT) && ct->flags & CT_SEGMENT)
			return NEXT_HOP_SEGMENT;
	}
	if (hops & (HOP(PEER) | HOP(DEVICE) | HOP(ROUTED)) && path) {
		if (hops & HOP(PEER) && path->flags & ENDPOINT_PEER)
			return NEXT_HOP_PEER;
		if (hops & HOP(DEVICE) && path->flags & ENDPOINT_EGRESS)
			return NEXT_HOP_DEVICE;
		if (hops & HOP(ROUTED) && path->flags & ENDPOINT_ROUTED)
			return NEXT_HOP_ROUTED;
	}
	return NEXT_HOP_STACK;
}

/* Whether the packets of a row go into a tunnel instead of being translated. */
static __always_inline bool into_tunnel(const struct ct_entry *ct)
{
	return ct->flags & CT_DSR && ct->flags & CT_SNAT && ct->flags & CT_FORWARD;
}

/*
 * Whether to_pod of the client translates a reply. The stack delivers such a reply: its source check would drop a packet
 * from a service's address, and its connection tracking would not know it.
 */
static __always_inline bool translated_at_client(const struct ct_entry *ct)
{
	return !(ct->flags & CT_FORWARD) && next_hop_of(ct, &ct->path) == NEXT_HOP_STACK;
}

#endif
