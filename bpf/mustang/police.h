/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_POLICE_H
#define MUSTANG_POLICE_H

#include "ends.h"
#include "frag.h"
#include "icmp.h"

/*
 * Enforcement of policies on connections that are not translated. Where a policy selects one of the pods, the connection gets
 * a slot and rows, as a connection to a service does, so that its answers pass. The first program that sees a packet judges
 * both ends. The copy of the row serves until policies change: then the connection is judged again (ct_check).
 */

/* Whether a policy selects the pod with the address. */
static __always_inline bool has_rules(const union addr *addr)
{
	const struct cached_endpoint *ep = endpoint_lookup(addr);

	return ep && ep->id && (ep->egress || ep->ingress);
}

/* Whether a policy selects one of the pods at the ends of a packet. */
static __noinline int is_policed(const struct tuple *t)
{
	return has_rules(&t->saddr) || has_rules(&t->daddr);
}

/* What police() returns of a packet whose connection ct_store() is to store. */
#define POLICE_STORE (-1)

/*
 * Whether an ICMP error is about a connection that is allowed, and goes to who sent the packet that it quotes. Pods tell of their own
 * connections only. own: the address of the pod in the error, for which own_end() has put another one.
 */
static __noinline int quotes_connection(struct __sk_buff *skb, const struct packet *packet, const union addr *own,
					bool from_pod)
{
	struct packet *quote = quote_row();
	const struct ct_entry *ct;

	if (skb->data_end - skb->data < skb->len)
		bpf_skb_pull_data(skb, skb->len < LINEAR_BYTES ? skb->len : LINEAR_BYTES);
	if (!quote || parse_quote(skb, packet, quote) < 0)
		return false;
	if (from_pod && addr_equal(&quote->tuple.daddr, own))
		quote->tuple.daddr = packet->tuple.saddr;
	if (!from_pod && addr_equal(&quote->tuple.saddr, own))
		quote->tuple.saddr = packet->tuple.daddr;
	if (!addr_equal(&quote->tuple.saddr, &packet->tuple.daddr))
		return false;
	if (is_icmp(quote)) {
		if (!header_at(skb, quote->l4, sizeof(struct icmp_header)))
			return false;
		name_icmp(skb, quote);
	}
	if (endpoint_path(&packet->tuple.saddr) && !addr_equal(&quote->tuple.daddr, &packet->tuple.saddr))
		return false;
	ct = conn_lookup(&quote->tuple, TRAIT_NONE);
	if (!ct) {
		quote->tuple = tuple_reverse(&quote->tuple);
		ct = conn_lookup(&quote->tuple, TRAIT_NONE);
	}
	return ct && !ct->denied;
}

/* The first port that Linux gives to clients by itself: net.ipv4.ip_local_port_range. */
#define EPHEMERAL 32768

/* Who has opened the connection of a packet without a row. */
enum initiator {
	INITIATOR_SENDER,
	INITIATOR_RECEIVER,
	INITIATOR_UNKNOWN,
};

/*
 * A TCP connection lacks a row if it was open when the first policy came, or if the row has expired, was flushed or ended by a policy. If
 * only one end has an ephemeral port, that end is the client. Otherwise the client is unknown: a pod can listen on the port of a
 * connection that it has opened.
 */
static __always_inline enum initiator find_initiator(const struct tuple *t, __u32 traits)
{
	bool from_ephemeral = bpf_ntohs(t->sport) >= EPHEMERAL, to_ephemeral = bpf_ntohs(t->dport) >= EPHEMERAL;

	if (!has_states(t->proto) || traits & TRAIT_SYN)
		return INITIATOR_SENDER;
	if (from_ephemeral == to_ephemeral)
		return INITIATOR_UNKNOWN;
	return from_ephemeral ? INITIATOR_SENDER : INITIATOR_RECEIVER;
}

/* Judges the connection of n as if the other end had opened it. */
static __always_inline __u32 judge_reverse(const struct ct_new *n)
{
	const struct tuple *t = &n->from;

	return judge(&t->daddr, &t->saddr, flow_of(t->dport, t->sport, t->proto));
}

/* Whether a packet keeps the direct connection of n->row, which is its own. */
static __always_inline bool keeps_direct(struct ct_new *n, __u32 traits)
{
	const struct ct_slot *slot = ct_slot_of(&n->row);

	if (!slot)
		return false;
	if (is_new(n, slot))
		return true;
	return !(traits & TRAIT_SYN && is_closed(slot)) && ct_use_judged(&n->row, &n->from, traits);
}

/*
 * Judges the first packet of a direct connection: POLICE_STORE if it is allowed and must be stored, 0 if it is stored already,
 * otherwise an enum drop_reason.
 */
__noinline int track(const struct tuple *t, __u32 traits)
{
	struct ct_new *n = ct_new_row();
	enum initiator initiator;
	__u32 reason;
	bool keeps;

	if (!t || !n)
		return DROP_UNSPECIFIED;
	__builtin_memset(n, 0, offsetof(struct ct_new, traits));
	initiator = find_initiator(t, traits);
	n->from = initiator == INITIATOR_RECEIVER ? tuple_reverse(t) : *t;
	n->to = n->from;
	n->flags = CT_DIRECT;
	n->traits = traits;
	n->now = coarse_now();
	n->replace = ct_copy(&n->from, &n->row);
	keeps = n->replace && keeps_direct(n, traits);
	/* A SYN against the connection's direction is judged: forged answers open a connection of the other direction. */
	if (keeps && (n->row.flags & CT_FORWARD || !(traits & TRAIT_SYN)))
		return n->row.denied;
	reason = ct_judge_new(n);
	/* A connection that a policy has ended stays ended, even if the other end may open connections. */
	if (!reason && !keeps && initiator == INITIATOR_UNKNOWN)
		reason = judge_reverse(n);
	/*
	 * An answer to a packet that the table does not know begins no connection, nor does a reset. The row would count as the receiver's,
	 * or for resets the sender's: somebody else could use up its share.
	 */
	if (reason || keeps || initiator == INITIATOR_RECEIVER || traits & (TRAIT_RST | TRAIT_SYN_ACK))
		return reason;
	ct_locate(n, NULL);
	n->old = n->replace ? ct_claim_old(n) : SLOT_NONE;
	return POLICE_STORE;
}

/* What known() returns of a packet whose connection the table does not know. */
#define POLICE_UNKNOWN (-2)

/* Decides about a packet by its connection: 0 if that is allowed, otherwise an enum drop_reason, or POLICE_UNKNOWN. */
static __noinline int known(const struct packet *packet)
{
	struct ct_new *n = ct_new_row();
	const struct ct_entry *ct;

	if (!n)
		return DROP_UNSPECIFIED;
	/* The first look is for the packet's own connection, the second for the service's, if the packet has been translated already. */
#pragma clang loop unroll(disable)
	for (int second = packet->traits & TRAIT_SYN ? 1 : 0; second < 2; second++) {
		n->key = packet->tuple;
		if (second)
			n->key = tuple_reverse(&packet->tuple);
		ct = conn_lookup(&n->key, second ? TRAIT_NONE : packet->traits);
		if (ct && !(second && ct->flags & CT_DIRECT))
			return ct->denied;
	}
	return POLICE_UNKNOWN;
}

/*
 * Decides about a packet that is not translated here, and that own_end() has looked at: 0 if policies allow it, otherwise an enum
 * drop_reason, or POLICE_STORE.
 */
__noinline int police(struct __sk_buff *skb, struct packet *packet, bool from_pod)
{
	union addr own;
	int reason;

	if (!packet)
		return 0;
	own = from_pod ? packet->tuple.saddr : packet->tuple.daddr;
	if (!own_end(skb, packet, from_pod) || !is_policed(&packet->tuple))
		return 0;
	stands_for(from_pod ? &packet->tuple.saddr : &packet->tuple.daddr, &own);
	if (packet->traits & TRAIT_ICMP_ERROR && quotes_connection(skb, packet, &own, from_pod))
		return 0;
	if (is_icmp(packet))
		name_icmp(skb, packet);
	reason = known(packet);
	if (reason == POLICE_UNKNOWN && is_icmp(packet) && packet->traits & TRAIT_LATER_FRAGMENT) {
		swap_ports(&packet->tuple); /* of a reply, perhaps */
		reason = known(packet);
		if (reason == POLICE_UNKNOWN)
			swap_ports(&packet->tuple);
	}
	return reason == POLICE_UNKNOWN ? track(&packet->tuple, packet->traits) : reason;
}

/*
 * Whether police() would let a packet pass, as most: no policy selects a pod at its ends, or policies allow its direct connection.
 * The packet's own end is a pod by its address, so that own_end() has nothing to put there.
 */
static __noinline int passes(const struct packet *packet, bool from_pod)
{
	const struct tuple *t = &packet->tuple;
	const struct ct_entry *ct;

	if (!(packet->traits & TRAIT_PORTS) || packet->traits & TRAIT_SYN || !is_pod(from_pod ? &t->saddr : &t->daddr))
		return false;
	if (!is_policed(t))
		return true;
	ct = conn_lookup(t, packet->traits);
	return ct && ct->flags & CT_DIRECT && !ct->denied;
}

/* Enforces policies on a packet that no connection of a service has been found for. */
static __always_inline void enforce(struct __sk_buff *skb, struct packet *packet, bool from_pod, struct metrics *row,
				    struct decision *d)
{
	const struct node_state *node = node_state_row();
	struct outcome outcome;
	int reason = 0;

	if (d->ct || d->verdict != VERDICT_PASS || !node || likely(!node->policies))
		return;
	if (!passes(packet, from_pod)) {
		reason = police(skb, packet, from_pod);
		if (reason == POLICE_STORE) {
			outcome = outcome_unpack(ct_store());
			reason = outcome.verdict == VERDICT_DROP ? outcome.reason : 0;
			if (!reason)
				row->count[METRIC_TRACKED]++;
		}
		stands_for(&packet->tuple.saddr, &packet->tuple.saddr); /* no longer */
	}
	if (reason)
		decide_drop(d, reason);
	/* The copy of another address, looked up since, may have the same slot of the cache. */
	if (d->path)
		d->path = endpoint_path(&packet->tuple.daddr);
}

/* Why policies deny the connection of a tuple by now: an enum drop_reason, or 0. */
static __noinline int denied_by_now(const struct tuple *t)
{
	const struct ct_entry *ct = policies_in_force() ? conn_lookup(t, TRAIT_NONE) : NULL;

	return ct ? ct->denied : 0;
}

/* The action for a frame that parse_packet() leaves alone, while policies are in force. */
static __always_inline int police_stray(struct __sk_buff *skb, struct packet *packet, bool from_pod,
					struct metrics *row, struct decision *d)
{
	const struct policy_settings *settings = policies_in_force();
	int reason = parse_stray(skb, packet, from_pod);

	if (from_pod && skb->tc_index == DELIVERED)
		skb->tc_index = 0; /* the pod has set it */
	if (reason == STRAY_JUDGED) {
		find_fragment_ports(packet, row);
		enforce(skb, packet, from_pod, row, d);
	} else if (reason && settings && own_end(skb, packet, from_pod) && is_policed(&packet->tuple)) {
		if (settings->audit)
			row->count[METRIC_AUDITED]++;
		else
			decide_drop(d, reason);
	}
	return d->verdict == VERDICT_DROP ? drop(skb, row, d->reason) : pass(row);
}

#endif
