/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_POLICE_H
#define MUSTANG_POLICE_H

#include "icmp.h"

/*
 * Enforcement of policies on connections that are not translated. Where a policy selects one of the pods, the connection
 * gets a slot and rows as those of services have, so that its answers pass. Whichever program sees a packet first judges both
 * ends. The copy of the row serves until policies change: then the connection is judged again (ct_check).
 */

/* Whether a policy selects the pod with the address. */
static __always_inline bool has_rules(const union addr *addr)
{
	const struct way *way = way_find(addr);

	return way && way->endpoint && (way->egress || way->ingress);
}

/* Whether a policy selects one of the pods at the ends of a packet. */
static __always_inline bool is_policed(const struct tuple *t)
{
	const struct filter *filter = filter_row();

	return filter && unlikely(filter->policies) && (has_rules(&t->saddr) || has_rules(&t->daddr));
}

/* Whether an ICMP error quotes a packet of a connection that is allowed. */
static __noinline int quotes_connection(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 zero = 0;
	struct packet *quote = bpf_map_lookup_elem(&quotes, &zero);
	const struct ct_entry *ct;

	if (!quote || parse_quote(skb, packet, quote))
		return false;
	ct = ct_peek(&quote->tuple);
	if (!ct) {
		quote->tuple = tuple_reverse(&quote->tuple);
		ct = ct_peek(&quote->tuple);
	}
	return ct && !ct->denied;
}

/*
 * Whether a packet in the middle of a connection that the table does not know is an answer. Connections that were open when the
 * first policy came have no row: the end with the lower port is taken for the server.
 */
static __always_inline bool is_answer(const struct tuple *t, __u32 traits)
{
	return has_states(t->proto) && !(traits & TRAIT_SYN) && bpf_ntohs(t->sport) < bpf_ntohs(t->dport);
}

/* Whether a packet keeps the direct connection of n->row, which is its own. */
static __always_inline bool keeps_direct(struct ct_new *n, __u32 traits)
{
	const struct ct_slot *slot = ct_slot_of(&n->row);

	if (!slot)
		return false;
	if (is_opening(n, slot))
		return true;
	return !(traits & TRAIT_SYN && is_closed(slot)) && ct_use_judged(&n->row, &n->from, traits);
}

/* Judges the first packet of a direct connection, and notes that if it is allowed: 0, otherwise an enum drop_reason. */
__noinline int track(const struct tuple *t, __u32 traits)
{
	struct ct_new *n = ct_new_row();
	struct metrics *row = metrics_row();
	struct outcome outcome;
	__u32 reason, old = SLOT_NONE;

	if (!t || !n || !row)
		return DROP_UNSPECIFIED;
	__builtin_memset(n, 0, offsetof(struct ct_new, traits));
	n->from = is_answer(t, traits) ? tuple_reverse(t) : *t;
	n->to = n->from;
	n->flags = CT_DIRECT;
	n->traits = traits;
	n->now = coarse_now();
	n->replace = ct_copy(&n->from, &n->row);
	if (n->replace && keeps_direct(n, traits))
		return n->row.denied;
	reason = ct_judge_new(n);
	if (reason)
		return reason;
	ct_locate(n, NULL);
	if (n->replace)
		old = ct_claim_old(n);
	outcome = outcome_unpack(ct_store(old));
	if (outcome.verdict == VERDICT_DROP)
		return outcome.reason;
	row->count[METRIC_TRACKED]++;
	return 0;
}

/* What police() returns of a packet whose connection is to be judged by track(). */
#define POLICE_FIRST (-1)

/* Decides about a packet that is not translated here: 0 if policies allow it, otherwise an enum drop_reason, or POLICE_FIRST. */
__noinline int police(struct __sk_buff *skb, const struct packet *packet)
{
	struct ct_new *n = ct_new_row();
	const struct ct_entry *ct;

	if (!packet || !n)
		return DROP_UNSPECIFIED;
	if (packet->traits & TRAIT_ICMP_ERROR && quotes_connection(skb, packet))
		return 0;
	/* The first look is for its own connection, the second for that of a service, of which it has been translated already. */
#pragma clang loop unroll(disable)
	for (int second = packet->traits & TRAIT_SYN ? 1 : 0; second < 2; second++) {
		n->key = packet->tuple;
		if (second)
			n->key = tuple_reverse(&packet->tuple);
		ct = flow_find(&n->key, second ? TRAIT_NONE : packet->traits);
		if (ct && !(second && ct->flags & CT_DIRECT))
			return ct->denied;
	}
	return POLICE_FIRST;
}

/* Enforces policies on a packet that no connection of a service has been found for. */
static __always_inline void enforce(struct __sk_buff *skb, const struct packet *packet, struct decision *d)
{
	int reason;

	if (d->ct || d->verdict != VERDICT_PASS || !is_policed(&packet->tuple))
		return;
	reason = police(skb, packet);
	if (reason == POLICE_FIRST)
		reason = track(&packet->tuple, packet->traits);
	if (reason)
		decide_drop(d, reason);
}

#endif
