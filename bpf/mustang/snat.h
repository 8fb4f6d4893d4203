/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_SNAT_H
#define MUSTANG_SNAT_H

#include "maps.h"
#include "verdict.h"

/*
 * Connections of clients outside to backends on other nodes. A backend would answer the client itself, from an address that
 * the client does not know. So this node passes the packets on in its own name: from its address on the uplink to the
 * backend, and a source port of its own. Where the stack delivers, the backend sees the client.
 */

#define FAMILY_IPV4 2
#define FAMILY_IPV6 10

/* Asks the kernel for the device that leads to an address. Returns an enum drop_reason, or 0. */
static __always_inline __u32 snat_device(struct __sk_buff *skb, const union addr *to, struct snat_route *r)
{
	struct bpf_fib_lookup *fib = (struct bpf_fib_lookup *)r->fib;
	long err;

	fib->ifindex = skb->ifindex;
	if (addr_is_v4(to)) {
		fib->family = FAMILY_IPV4;
		fib->ipv4_dst = to->words[3];
	} else {
		fib->family = FAMILY_IPV6;
		for (int i = 0; i < 4; i++)
			fib->ipv6_dst[i] = to->words[i];
	}
	err = bpf_fib_lookup(skb, fib, sizeof(*fib), BPF_FIB_LOOKUP_SKIP_NEIGH);
	r->ifindex = fib->ifindex;
	if (err == BPF_FIB_LKUP_RET_SUCCESS || err == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return 0;
	return err == BPF_FIB_LKUP_RET_UNSUPP_LWT ? DROP_TUNNEL_ROUTE : DROP_NO_ROUTE;
}

/*
 * Finds the way to a backend outside this node's pods. VERDICT_PASS: left to the stack, as the address is the node's or
 * the device not an uplink.
 */
static __noinline int snat_find(struct __sk_buff *skb, const union addr *to, struct snat_route *r)
{
	const struct device *uplink;
	__u32 reason;

	__builtin_memset(r, 0, sizeof(*r));
	if (bpf_map_lookup_elem(&node_addresses, to))
		return outcome_pack(outcome_pass(METRIC_NONE));
	reason = snat_device(skb, to, r);
	if (reason)
		return outcome_pack(outcome_drop(reason));
	uplink = device_of(r->ifindex, DEVICE_UPLINK);
	if (!uplink)
		return outcome_pack(outcome_pass(METRIC_NONE));
	r->source = addr_is_v4(to) ? uplink->v4 : uplink->v6;
	r->port_first = uplink->port_first;
	r->port_last = uplink->port_last;
	if (!r->source.halves[0] && !r->source.halves[1])
		return outcome_pack(outcome_drop(DROP_NO_SOURCE));
	return outcome_pack(outcome_translate(METRIC_NONE));
}

/* The port of a range at which the search for a free one begins. Backends were chosen by the low bits of the hash. */
static __always_inline __u32 snat_port(const struct snat_route *r, __u32 hash)
{
	__u64 count = r->port_last - r->port_first + 1;

	return r->port_first + (hash * 0x9e3779b1U * count >> 32);
}

#endif
