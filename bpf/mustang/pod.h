/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_POD_H
#define MUSTANG_POD_H

#include "deliver.h"
#include "police.h"

/* Translates an ICMP error, and decides about it by the connection that it is about. */
static __always_inline void handle_icmp_error(struct __sk_buff *skb, struct packet *packet, bool from_pod,
					      struct metrics *row, struct decision *d)
{
	int translated = translate_icmp_error(skb, packet, from_pod), denied;

	if (translated < 0)
		decide_drop(d, DROP_REWRITE);
	if (translated <= 0)
		return;
	row->count[METRIC_ICMP_ERROR]++;
	d->ct = ct_peek(&packet->tuple);
	if (d->ct)
		d->path = &d->ct->path;
	denied = d->ct ? denied_by_now(&packet->tuple) : 0;
	if (denied)
		decide_drop(d, denied);
	if (d->ct && into_tunnel(d->ct))
		d->verdict = VERDICT_TRANSLATE;
}

/* Ends a connection: deletes its rows at once, so that the other end cannot use it either. Connections of clients outside stay. */
static __always_inline void ct_end(const struct ct_entry *ct)
{
	struct ct_slot *slot = ct_slot_of(ct);
	__u32 state = slot ? slot_state(slot) : CT_FREE;

	if (SLOT_STATE(state) > CT_CLAIMED && !(ct->flags & CT_UPLINK) &&
	    slot_claim(slot, state, coarse_now(), bpf_get_prandom_u32()))
		slot_release(ct->slot);
}

/*
 * Judges a packet that a pod sends from an address in no row on a connection of a service: an enum drop_reason, or 0. By its row the connection is one
 * of that address, which is outside, and policies may have come for the pod since it was opened.
 */
static __noinline int judge_foreign(struct __sk_buff *skb, const struct packet *packet, const struct ct_entry *ct)
{
	const union addr *own = &packet->tuple.saddr;
	union addr pod;
	int denied;

	if (!pod_of_foreign(skb, own, &pod))
		return 0;
	if (ct->flags & CT_FORWARD)
		denied = judge_as(&pod, own, &pod, &ct->to.daddr,
				  flow_of(packet->tuple.sport, ct->to.dport, packet->tuple.proto));
	else
		denied = judge_as(&pod, own, &packet->tuple.daddr, &pod,
				  flow_of(packet->tuple.dport, packet->tuple.sport, packet->tuple.proto));
	if (denied)
		ct_end(ct);
	return denied;
}

/* Decides about a packet that leaves a pod. own: it is certainly from an address of the pod that is in endpoints. */
static __always_inline void decide_from_pod(struct __sk_buff *skb, struct packet *packet, bool own, struct metrics *row,
					    struct decision *d)
{
	int denied;

	find_fragment_ports(packet, row);
	if (likely(packet->traits & TRAIT_PORTS))
		translate(packet, row, d);
	else
		d->path = endpoint_path(&packet->tuple.daddr);
	if (unlikely(!own)) {
		packet->traits |= TRAIT_FOREIGN;
		denied = d->ct && policies_in_force() ? judge_foreign(skb, packet, d->ct) : 0;
		if (denied)
			decide_drop(d, denied);
	}
	if (unlikely(packet->traits & TRAIT_ICMP_ERROR))
		handle_icmp_error(skb, packet, true, row, d);
	if (unlikely(packet->traits & TRAIT_ECHO))
		decide_echo(packet, row, d);
	enforce(skb, packet, true, row, d);
}

/* Decides about a packet that enters a pod. */
static __always_inline void decide_to_pod(struct __sk_buff *skb, struct packet *packet, struct metrics *row,
					  struct decision *d)
{
	find_fragment_ports(packet, row);
	if (likely(packet->traits & TRAIT_PORTS))
		translate_reply(&packet->tuple, packet->traits, d);
	if (unlikely(packet->traits & TRAIT_ICMP_ERROR))
		handle_icmp_error(skb, packet, false, row, d);
	enforce(skb, packet, false, row, d);
}

/* Decides once more about a packet that a program on another pod's device has finished with: that pod may have forged it. */
static __always_inline void decide_delivered(struct __sk_buff *skb, struct packet *packet, struct metrics *row,
					     struct decision *d)
{
	find_fragment_ports(packet, row);
	enforce(skb, packet, false, row, d);
}

#endif
