/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_CT_STORE_H
#define MUSTANG_CT_STORE_H

#include "conn_cache.h"
#include "scratch.h"
#include "snat.h"

static __always_inline struct ct_new *ct_new_row(void)
{
	struct scratch *scratch = scratch_row();

	return scratch ? &scratch->connection : NULL;
}

/* The sum to add to a checksum when words change, as bpf_csum_diff() returns it, which is a call. */
static __always_inline __u32 csum_diff(const __be32 *from, const __be32 *to, int count)
{
	__u64 sum = 0;

	for (int i = 0; i < count; i++)
		sum += (__u64)(__u32)~from[i] + to[i];
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (__u32)sum + (__u32)(sum >> 32);
}

/* Completes a row, which translates from to row->to. The checksum sums are computed once, not for each packet. */
static __noinline void ct_fill_row(const struct ct_new *n, struct ct_entry *row, const struct tuple *from,
				   __u32 direction)
{
	const struct tuple *to = &row->to;

	row->addr_diff = csum_diff((__be32 *)&from->saddr, (__be32 *)&to->saddr, 8);
	row->port_diff = 0;
	if (from->sport != to->sport || from->dport != to->dport)
		row->port_diff = csum_diff((__be32 *)&from->sport, (__be32 *)&to->sport, 1);
	row->slot = n->slot;
	row->use = n->use;
	row->checked = n->rows;
	row->denied = 0;
	row->flags = n->flags | direction | counts_of(n->service) << CT_COUNTS_SHIFT;
	row->path = direction & CT_FORWARD ? n->backend_path : n->client_path;
}

/*
 * Whether the row of replies belongs to the connection of n: another packet of the client has just opened it on another CPU,
 * which perhaps has not finished.
 */
static __always_inline bool ct_adopt(struct ct_new *n, const struct tuple *reply)
{
	const struct ct_entry *ct = bpf_map_lookup_elem(&connections, reply);
	const struct ct_slot *slot = ct ? ct_slot_of(ct) : NULL;

	if (!slot || !ct_is_of(ct, slot, reply) || !tuple_equal(&slot->from, &n->from))
		return false;
	n->slot = ct->slot;
	n->use = ct->use;
	n->adopted = true;
	return true;
}

/* Stores the row of replies; an error if another connection that has not ended has the same one. */
__noinline int ct_try_reply(void)
{
	struct ct_new *n = ct_new_row();
	__u32 index = n ? n->slot : SLOT_NONE;
	struct ct_slot *slot = bpf_map_lookup_elem(&slots, &index);
	int err;

	if (!n || !slot)
		return -ENOENT;
	slot->reply = tuple_reverse(&n->to);
	ct_fill_row(n, &n->back, &slot->reply, 0);
	err = bpf_map_update_elem(&connections, &slot->reply, &n->back, BPF_NOEXIST);
	if (err != -EEXIST)
		return err;
	if (ct_evict(&slot->reply, n->patient))
		return bpf_map_update_elem(&connections, &slot->reply, &n->back, BPF_NOEXIST);
	return ct_adopt(n, &slot->reply) ? 0 : err;
}

static long try_port(__u32 i, void *unused)
{
	__u32 first = PORT_FIRST, last = PORT_LAST;
	struct ct_new *n = ct_new_row();

	(void)unused;
	if (!n)
		return 1;
	n->patient = i < (n->flags & CT_SNAT ? PORT_TRIES_PATIENT_SNAT : PORT_TRIES_PATIENT);
	if (n->flags & CT_SNAT) {
		first = n->route.port_first;
		last = n->route.port_last;
	}
	/* The port that a hash chose comes first. */
	if (i || !(n->flags & CT_SNAT))
		n->port = first + bpf_get_prandom_u32() % (last - first + 1);
	n->to.sport = bpf_htons(n->port);
	n->err = ct_try_reply();
	return n->err != -EEXIST;
}

/* Tries source ports at random: two or three of four are free even if a client has tens of thousands of connections. */
static __always_inline void ct_search_port(struct ct_new *n)
{
	struct scratch *scratch = scratch_row();
	struct snat_failure *last;
	struct tuple between;
	__u32 pair;
	bool again;

	if (!scratch)
		return;
	between = n->to;
	between.saddr = n->from.saddr;
	between.sport = 0;
	pair = tuple_hash(&between);
	last = &scratch->snat_fail_cache[pair % SNAT_FAILURES];
	again = last->pair == pair && n->now < last->until;
	bpf_loop(again ? PORT_TRIES_AGAIN : PORT_TRIES, try_port, NULL, 0);
	if (n->err == -EEXIST && !again)
		*last = (struct snat_failure){ .until = n->now + SNAT_FAILED_FOR, .pair = pair };
}

/*
 * Whether a connection must keep its client's port, as all of SCTP must whose packets this node translates. Into a tunnel they go
 * as they are: the port counts in the table alone.
 */
static __always_inline bool keeps_port(const struct ct_new *n)
{
	if (n->flags & CT_DIRECT)
		return true;
	return n->from.proto == IPPROTO_SCTP && (n->flags & (CT_SNAT | CT_DSR)) != (CT_SNAT | CT_DSR);
}

/*
 * Stores the reply direction. If another connection has the same one, the client gets another source port: two connections
 * collide if a client uses one port for two services that share a backend. For packets in this node's own name, a hash chooses
 * the first port to try: a connection without its rows gets the same port again. SCTP keeps its port (ct_avoid).
 */
static __always_inline struct outcome ct_store_reply(struct ct_new *n)
{
	enum metric metric = METRIC_NEW_CONNECTION;

	n->back.to = tuple_reverse(&n->from);
	n->patient = true;
	n->err = n->flags & CT_SNAT && !keeps_port(n) ? -EEXIST : ct_try_reply();
	if (n->err == -EEXIST && !keeps_port(n)) {
		if (!(n->flags & CT_SNAT))
			metric = METRIC_PORT_CHANGED;
		ct_search_port(n);
	}
	if (!n->err)
		return outcome_translate(metric);
	return outcome_drop(n->err == -EEXIST ? DROP_PORT_EXHAUSTED : DROP_TABLE_FULL);
}

/* Stores the row of the client's packets; an error if the map is full, or another connection of the client has taken the row. */
static __always_inline long ct_store_forward(struct ct_new *n)
{
	const struct ct_entry *ct;
	long err;

	n->row.to = n->to;
	ct_fill_row(n, &n->row, &n->from, CT_FORWARD);
	err = bpf_map_update_elem(&connections, &n->from, &n->row, n->replace ? BPF_ANY : BPF_NOEXIST);
	if (err != -EEXIST)
		return err;
	ct = bpf_map_lookup_elem(&connections, &n->from);
	return ct && ct->slot == n->slot && ct->use == n->use ? 0 : err; /* who adopted the connection may be first */
}

/* Uses the connection that another program has stored, instead of one in the slot, which is claimed. */
static __always_inline struct outcome ct_use_other(struct ct_new *n, __u32 index, struct ct_slot *slot)
{
	slot_empty(index);
	slot_free(slot);
	if (!n->adopted && (!ct_copy(&n->from, &n->row) || !ct_slot_of(&n->row)))
		return outcome_drop(DROP_TABLE_FULL);
	return outcome_translate(METRIC_KEPT_CONNECTION);
}

/* Gives back a slot whose connection could not be stored. */
static __always_inline struct outcome ct_give_up(__u32 index, struct ct_slot *slot, struct outcome outcome)
{
	slot_empty(index);
	slot_free(slot);
	return outcome;
}

/* Whether connections of a protocol begin and end. The table treats all other protocols as UDP. */
static __always_inline bool has_states(__u8 proto)
{
	return proto == IPPROTO_TCP || proto == IPPROTO_SCTP;
}

/* Emits an event of a connection that is made. */
static __noinline void emit_made(const struct ct_new *n)
{
	struct event *event = event_begin(EVENT_MADE, config.attach_point);

	if (!event)
		return;
	event->tuple = n->from;
	emit_own(&event->tuple);
	event->service = n->service;
	if (!(n->flags & CT_DIRECT)) {
		event->backend = n->to.daddr;
		event->backend_port = n->to.dport;
	}
	event_end(event);
}

/* Completes the slot of a connection whose rows are stored. */
static __always_inline void ct_complete(const struct ct_new *n, struct ct_slot *slot)
{
	slot->service = n->service;
	slot->revision = n->revision;
	slot->client = n->client;
	slot->backend = n->backend;
	slot->flags = n->flags;
	slot->opening = 0;
	slot->opened = slot->seen = n->now;
	client_conns_add(n->client, 1);
	conn_cache_put(&slot->reply, &n->back);
	conn_cache_put(&slot->from, &n->row);
	__sync_lock_test_and_set(&slot->state,
				 (has_states(n->from.proto) ? CT_SYN : CT_UDP) | n->use << SLOT_USE_SHIFT);
	/* Only now: a program that finds the slot claimed takes the connection for absent until its generation changes. */
	conn_cache_invalidate(&slot->reply);
	conn_cache_invalidate(&slot->from);
	if (is_watched(EVENT_MADE))
		emit_made(n);
}

/*
 * Whether n can keep the rows of the client's previous connection, of n->row and the slot, mostly so if a client makes
 * many short connections. They still exist, as their slot was in use until the caller claimed it.
 */
static __always_inline bool ct_has_same_rows(const struct ct_new *n, const struct ct_slot *slot)
{
	struct tuple reply = tuple_reverse(&n->to);
	__u32 differ = (n->row.flags & CT_FLAGS) ^ (n->flags | CT_FORWARD);

	/* CT_SEGMENT is brought up to date by ct_check(), and the path of a client outside by follow_client(). */
	return !(n->flags & CT_UPLINK) && !(differ & ~(CT_SEGMENT | CT_REMOVED | CT_OPENING)) &&
	       slot->client == n->client && slot->backend == n->backend && tuple_equal(&slot->reply, &reply);
}

/* Begins a connection in the slot and the rows of the client's previous one. */
static __always_inline void ct_begin_again(struct ct_new *n, __u32 index, struct ct_slot *slot)
{
	n->slot = index;
	n->use = slot->use;
	n->row.to = n->to;
	ct_fill_row(n, &n->row, &n->from, CT_FORWARD);
	n->back.to = tuple_reverse(&n->from);
	ct_fill_row(n, &n->back, &slot->reply, 0);
	ct_complete(n, slot);
}

/* Stores a connection in a slot, with the rows of both directions. */
static __always_inline struct outcome ct_store_new(struct ct_new *n)
{
	__u32 over_share = false, old = n->old, index = old;
	struct ct_slot *slot;
	struct outcome outcome;
	long err;

	if (old == SLOT_NONE)
		index = slot_take(n->client, n->now, &over_share, &n->cursor);
	slot = bpf_map_lookup_elem(&slots, &index);
	if (!slot)
		return outcome_drop(over_share ? DROP_CLIENT_SHARE : DROP_TABLE_FULL);
	if (old != SLOT_NONE && !n->counted && !client_conns_allow(n->client))
		return ct_give_up(index, slot, outcome_drop(DROP_CLIENT_SHARE));
	if (old != SLOT_NONE && ct_has_same_rows(n, slot)) {
		ct_begin_again(n, index, slot);
		return outcome_translate(METRIC_NEW_CONNECTION);
	}
	if (old != SLOT_NONE)
		slot_empty(index);
	slot->use++;
	if (!(n->flags & CT_DIRECT)) {
		bloom_add(&n->from.daddr, n->from.dport, n->from.proto);
		bloom_add(&n->to.daddr, n->to.dport, n->to.proto);
	}
	n->slot = index;
	n->use = slot->use;
	slot->from = n->from;
	outcome = ct_store_reply(n);
	if (outcome.verdict == VERDICT_DROP)
		return ct_give_up(index, slot, outcome);
	if (n->flags & CT_SNAT) /* from_uplink asks for the destination alone */
		bloom_add(&slot->reply.daddr, slot->reply.dport, slot->reply.proto);
	err = ct_store_forward(n);
	if (n->adopted || err == -EEXIST)
		return ct_use_other(n, index, slot);
	if (err)
		return ct_give_up(index, slot, outcome_drop(DROP_TABLE_FULL));
	ct_complete(n, slot);
	return outcome;
}

/*
 * The same for the connection under construction; returns a packed outcome. The functions that construct it do not call this:
 * the stack would get too large.
 */
__noinline int ct_store(void)
{
	struct ct_new *n = ct_new_row();

	return outcome_pack(n ? ct_store_new(n) : outcome_drop(DROP_UNSPECIFIED));
}

/* An outcome once the connection under construction is stored, if it is to be. */
static __always_inline struct outcome ct_stored(int packed)
{
	struct outcome outcome = outcome_unpack(packed);

	return outcome.verdict == VERDICT_STORE ? outcome_unpack(ct_store()) : outcome;
}

#endif
