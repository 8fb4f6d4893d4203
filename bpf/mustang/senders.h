/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_SENDERS_H
#define MUSTANG_SENDERS_H

#include "conn_cache.h"
#include "kernel.h"

/* Prefixes that a pod may send from, apart from its addresses. */
#define SENDER_PREFIXES 32

enum sender_flag {
	SENDER_UNGUARDED = 1, /* it may send anything */
	SENDER_DHCP = 2,      /* it may ask a DHCP server for addresses */
	SENDER_ROUTER = 4,    /* it may announce itself as an IPv6 router: it has a prefix of more than one address */
	SENDER_SWITCHED = 16, /* packets to the pod pass a switch that makes new ones, which may lack marks */
	SENDER_ALONE = 8,     /* without endpoint: its addresses are among the prefixes */
};

/* A device by which packets leave a pod. Pods with one of their own have a row of their network namespace too, and those on a netkit one of its peer. */
struct sender_key {
	__u64 netns;   /* cookie of the pod's network namespace, if it is the pod's own device; 0 for one of the host */
	__u32 ifindex; /* of the device there; 0: the row of the namespace */
	__u32 pad;
};

struct sender_prefix {
	union addr addr;
	union addr mask;
};

/* What the pod may send there in addition to packets from its addresses, which are in endpoints. */
struct sender {
	__u32 endpoint; /* its id */
	__u16 flags;    /* enum sender_flag */
	__u16 prefixes;
	__u8 mac[ETH_ALEN];
	__u16 addresses; /* of SENDER_ALONE: the last prefixes are its addresses */
	__u64 netns;     /* cookie of the pod's network namespace, or 0 */
	__u32 parent; /* index of the host's device that the pod's own device is on; 0: it is on none. For user space only */
	__u32 peer; /* index of the pod's device of a netkit, which has a row as this one; 0: it is none. For user space only */
	union addr link_local; /* the device's IPv6 link-local address */
	union addr pod;        /* one of the pod's addresses in endpoints; zero: not known */
	struct sender_prefix prefix[SENDER_PREFIXES];
};

_Static_assert(sizeof(struct sender_key) == 16, "hidden padding");
_Static_assert(sizeof(struct sender) == 64 + 32 * SENDER_PREFIXES, "hidden padding");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct sender_key);
	__type(value, struct sender);
} source_guard SEC(".maps");

/* Whether the row of a pod's address has the device at which a program has the packet. All devices of the host are in one namespace. */
static __always_inline bool leads_here(struct __sk_buff *skb, const struct ep_path *path, __u64 netns)
{
	bool own = config.attach_point == ATTACH_POD;

	if (path->ifindex != skb->ifindex || own != !(path->flags & ENDPOINT_ON_HOST))
		return false;
	return !own || netns == netns_of(skb);
}

/* The row of the device by which a packet leaves its pod; NULL if it is none. */
static __always_inline const struct sender *sender_of(struct __sk_buff *skb)
{
	struct sender_key key = { .ifindex = skb->ifindex };

	if (config.attach_point == ATTACH_POD)
		key.netns = netns_of(skb);
	return bpf_map_lookup_elem(&source_guard, &key);
}

static __always_inline bool is_pod(const union addr *addr)
{
	const struct cached_endpoint *ep = endpoint_lookup(addr);

	return ep && ep->id;
}

/* Finds an address of the pod that sends from an address in no row. False if the address is in a row, or the pod is unknown. */
static __noinline int pod_of_foreign(struct __sk_buff *skb, const union addr *from, union addr *pod)
{
	const struct sender *sender;

	if (is_pod(from))
		return false;
	sender = sender_of(skb);
	if (!sender || !(sender->pod.halves[0] || sender->pod.halves[1]))
		return false;
	*pod = sender->pod;
	return true;
}

static __always_inline bool in_prefix(const union addr *addr, const struct sender_prefix *prefix)
{
	return (addr->halves[0] & prefix->mask.halves[0]) == prefix->addr.halves[0] &&
	       (addr->halves[1] & prefix->mask.halves[1]) == prefix->addr.halves[1];
}

/* Whether a pod may use an address as its own. */
static __always_inline bool may_send_from(const struct sender *sender, const union addr *addr)
{
	const struct cached_endpoint *ep = endpoint_lookup(addr);

	if (ep && ep->id == sender->endpoint && !(sender->flags & SENDER_ALONE))
		return true;
	if (sender->link_local.bytes[0] && addr_equal(addr, &sender->link_local))
		return true;
	for (__u32 i = 0; i < SENDER_PREFIXES && i < sender->prefixes; i++)
		if (in_prefix(addr, &sender->prefix[i]))
			return true;
	return false;
}

#endif
