/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_CT_H
#define MUSTANG_CT_H

#include <asm-generic/errno-base.h>

#include "choice.h"
#include "parse.h"
#include "policy.h"
#include "slots.h"
#include "verdict.h"

/* The service that a packet is sent to, or NULL. Services at loopback addresses are for sockets only. */
static __always_inline struct service *service_lookup(const struct tuple *t)
{
	struct service_key key = { .addr = t->daddr, .port = t->dport, .proto = t->proto };
	struct service *service = service_find(&key);

	return service && !(service->flags & SERVICE_LOOPBACK) ? service : NULL;
}

/* The row of a service that a packet in a tunnel is sent to. It may be a node port at an address of another node. */
static __always_inline struct service *service_of_tunnel(struct service_key *key)
{
	struct service *service = service_at_row(key);

	return service ? service : service_at_all(key);
}

/* Copies the service that a packet is sent to; false if there is none. tunnelled: the packet came in a tunnel. */
__noinline int service_read(const struct tuple *t, struct service *copy, bool tunnelled)
{
	if (!t || !copy)
		return false;
#pragma clang loop unroll(disable)
	for (int i = 0; i < SERVICE_TRIES; i++) {
		struct service_key key = { .addr = t->daddr, .port = t->dport, .proto = t->proto };
		const struct service *row = tunnelled ? service_of_tunnel(&key) : service_find(&key);

		if (!row)
			return false;
		if (service_copy(row, &key, copy))
			return tunnelled ? !!(copy->flags & SERVICE_DSR_IPIP) : !(copy->flags & SERVICE_LOOPBACK);
	}
	return false;
}

/* Copies the service of a connection; NULL if there is none. */
static __always_inline const struct service *ct_service(const struct tuple *from, const struct ct_slot *slot)
{
	struct scratch *scratch = scratch_row();
	struct service *copy;

	if (!scratch)
		return NULL;
	copy = &scratch->service;
	if (!service_read(from, copy, slot->flags & CT_DSR) || copy->id != slot->service)
		return NULL;
	return copy;
}

/* More than the changes of state that a connection can have. */
#define STATE_TRIES 4

/* Whether a slot is the connection of a row still. */
static __always_inline bool ct_has_slot(const struct ct_entry *ct, const struct ct_slot *slot)
{
	return *(volatile const __u32 *)&slot->use == ct->use;
}

/* The slot of a row; NULL if the connection of the row has lost it. */
static __always_inline struct ct_slot *ct_slot_of(const struct ct_entry *ct)
{
	__u32 index = ct->slot;
	struct ct_slot *slot = bpf_map_lookup_elem(&slots, &index);

	return slot && ct_has_slot(ct, slot) ? slot : NULL;
}

/*
 * Whether the service of a connection still has its backend, for new connections or at least for open ones. TCP connections
 * outlive a change unless the service resets them.
 */
static __noinline int ct_served(const struct tuple *from, struct ct_slot *slot)
{
	struct backend_search search = {};
	const struct service *service = ct_service(from, slot);

	if (!service)
		return false;
	search.revision = service->revision;
	if (search.revision == slot->revision)
		return true;
	search.addr = slot->reply.saddr;
	search.port = slot->reply.sport;
	bpf_loop(service->total, search_backend, &search, 0);
	if (search.found)
		slot->revision = search.revision;
	return search.found;
}

/*
 * Whether a TCP connection has ended because its backend was removed from a service that resets such connections. If the
 * service is gone, it did as it was last seen to do.
 */
static __always_inline bool ct_removed(struct ct_slot *slot)
{
	const struct service *service = ct_service(&slot->from, slot);

	if (!service)
		return slot->flags & CT_RESETS;
	if (!(service->flags & SERVICE_RESET)) {
		slot->flags &= ~CT_RESETS;
		return false;
	}
	slot->flags |= CT_RESETS;
	return !ct_served(&slot->from, slot);
}

/* Whether a connection has its backend still; false if one of UDP has not. Of TCP it is noted. */
static __always_inline bool ct_check_service(struct ct_entry *ct, struct ct_slot *slot)
{
	if (!slot->service)
		return true;
	/* Answers that are under way still come from the service. */
	if (slot->from.proto == IPPROTO_UDP)
		return !(ct->flags & CT_FORWARD) || ct_served(&slot->from, slot);
	if (slot->from.proto == IPPROTO_TCP && (slot->flags & CT_REMOVED || ct_removed(slot))) {
		slot->flags |= CT_REMOVED; /* for the other row */
		ct->flags |= CT_REMOVED;
	}
	return true;
}

/* Brings the path of a copy of a row up to date; false if one of the pods is gone. */
static __noinline int ct_check(struct ct_entry *ct, struct ct_slot *slot)
{
	const struct endpoint *client = bpf_map_lookup_elem(&endpoints, &slot->from.saddr);
	const struct endpoint *backend = bpf_map_lookup_elem(&endpoints, &slot->reply.saddr);
	const struct endpoint *receiver = ct->flags & CT_FORWARD ? backend : client;

	if (slot->client && (!client || client->id != slot->client))
		return false;
	if (slot->backend && (!backend || backend->id != slot->backend))
		return false;
	if (slot->flags & CT_UPLINK && !(ct->flags & CT_FORWARD))
		return true; /* the path leads to the client's router (follow_client) */
	if (receiver && (ct->flags & CT_FORWARD ? slot->backend : slot->client))
		ct->path = receiver->path;
	if (client && backend && !(slot->flags & CT_UPLINK)) {
		if (client->segment && client->segment == backend->segment)
			ct->flags |= CT_SEGMENT;
		else
			ct->flags &= ~CT_SEGMENT;
	}
	return true;
}

/* Whether only the client's packets pass here: the backend, on another node, answers the client directly. */
static __always_inline bool ct_is_one_sided(__u32 direction)
{
	return direction & CT_DSR && direction & CT_SNAT;
}

/*
 * Whether a packet shows that both ends hear each other, so that a forged one opens nothing for hours: the client
 * acknowledges the backend's SYN, or a backend whose SYN was not seen answers. SCTP's ends check each other by a cookie.
 */
static __always_inline bool ct_is_answer(__u32 opening, __u32 direction, __u32 traits)
{
	if (traits & (TRAIT_SYN | TRAIT_SYN_ACK))
		return false;
	if (direction & CT_FORWARD)
		return opening == (OPENING_KNOWN | traits >> TRAIT_NUMBER_SHIFT) || ct_is_one_sided(direction);
	return !opening;
}

/*
 * Whether a packet shows that its end goes on, though an RST with its address has closed the connection: another machine sent that
 * RST, and the receiver ignored it (RFC 5961). fin is the flag of the end.
 */
static __always_inline bool ct_goes_on(__u32 state, __u32 fin, __u32 traits)
{
	return unlikely(SLOT_STATE(state) == CT_CLOSED) && (state & (SLOT_FIN_CLIENT | SLOT_FIN_BACKEND)) == fin &&
	       !(traits & (TRAIT_FIN | TRAIT_RST | TRAIT_SYN | TRAIT_SYN_ACK));
}

/* The state of a connection after a packet. */
static __always_inline __u32 ct_next(__u32 state, __u32 opening, __u32 direction, __u32 traits)
{
	__u32 fin = direction & CT_FORWARD ? SLOT_FIN_CLIENT : SLOT_FIN_BACKEND, next = state;

	if (ct_goes_on(state, fin, traits))
		return (state & ~(0xff | fin | SLOT_TIME_WAIT)) | CT_OPEN;
	if (traits & TRAIT_FIN)
		next |= fin;
	if (SLOT_STATE(state) == CT_SYN && traits & TRAIT_RST)
		next |= SLOT_FIN_CLIENT | SLOT_FIN_BACKEND; /* it was not open, and does not become so */
	if (next & SLOT_FIN_BACKEND && !(next & SLOT_FIN_CLIENT) && !(traits & TRAIT_RST))
		next |= SLOT_TIME_WAIT;
	if (next & SLOT_FIN_CLIENT && ct_is_one_sided(direction) && !(traits & TRAIT_RST))
		next |= SLOT_FIN_BACKEND; /* its packets pass elsewhere */
	if (traits & TRAIT_RST || (next & SLOT_FIN_CLIENT && next & SLOT_FIN_BACKEND))
		return (next & ~0xff) | CT_CLOSED;
	if (SLOT_STATE(state) == CT_SYN && ct_is_answer(opening, direction, traits))
		return (next & ~0xff) | CT_OPEN;
	if (SLOT_STATE(state) == CT_UDP && !(direction & CT_FORWARD))
		return (next & ~0xff) | CT_UDP_REPLIED;
	return next;
}

/* Notes what a packet tells about the state of its connection, which packets on other CPUs may change at the same time. */
__noinline int ct_advance(struct ct_slot *slot, __u32 state, __u32 direction, __u32 traits)
{
	/* A client without room for one more connection gets none back. */
	if (!slot || (SLOT_STATE(state) == CT_CLOSED && !(traits & TRAIT_FIN) && !client_conns_allow(slot->client)))
		return 0;
#pragma clang loop unroll(disable)
	for (int i = 0; i < STATE_TRIES; i++) {
		__u32 next = ct_next(state, slot->opening, direction, traits), client = slot->client, found;
		bool closed = SLOT_STATE(state) == CT_CLOSED, closes = SLOT_STATE(next) == CT_CLOSED;

		if (next == state)
			return 0;
		found = __sync_val_compare_and_swap(&slot->state, state, next);
		if (found == state) {
			if (closes != closed)
				client_conns_add(client,
						 closes ? -1 : 1); /* another may have the slot of a closed one */
			return 0;
		}
		if (SLOT_STATE(found) <= CT_CLAIMED || (found ^ state) >> SLOT_USE_SHIFT)
			return 0;
		state = found;
	}
	return 0;
}

/* Whether a slot still has the connection of a row, and the row belongs to a tuple. */
static __always_inline bool ct_is_of(const struct ct_entry *ct, const struct ct_slot *slot, const struct tuple *t)
{
	return ct_has_slot(ct, slot) && tuple_equal(ct->flags & CT_FORWARD ? &slot->from : &slot->reply, t);
}

/*
 * Copies the row of a tuple; false if there is none. A connection may end, and its rows be reused, at any time. So copy
 * the row first: if its slot then still has the connection, the copy is right.
 */
static __always_inline bool ct_copy(const struct tuple *t, struct ct_entry *copy)
{
	const struct ct_entry *ct = bpf_map_lookup_elem(&connections, t);

	if (!ct)
		return false;
	*copy = *ct;
	return true;
}

/*
 * Whether the connection of a copy of the row of t is valid for a packet. UDP that has expired begins anew, perhaps with
 * another backend; TCP lives on until another connection takes the slot.
 */
__noinline int ct_use(struct ct_entry *ct, const struct tuple *t, __u32 traits)
{
	const struct ct_config *conf = ct_config_row();
	const struct node_state *node = node_state_row();
	struct ct_slot *slot = ct ? ct_slot_of(ct) : NULL;
	__u64 now = coarse_now();
	__u32 state, rows;

	if (!slot || !t || !conf || !node)
		return false;
	state = slot_state(slot);
	if (SLOT_STATE(state) <= CT_CLAIMED || !ct_is_of(ct, slot, t) || /* the state was not of another connection */
	    (SLOT_STATE(state) >= CT_UDP && slot_expired(slot, state, conf, now)))
		return false;
	rows = *(volatile const __u64 *)&node->rows;
	if (ct->checked != rows) {
		if (!ct_check(ct, slot) || !ct_check_service(ct, slot))
			return false;
		ct->checked = rows;
		if (policies_in_force())
			ct->flags |= CT_UNJUDGED;
	}
	ct->flags = (ct->flags & CT_FLAGS) | counts_of(slot->service) << CT_COUNTS_SHIFT;
	if (ct->flags & CT_UNJUDGED)
		return true;
	if (traits & TRAIT_RST)
		ct->flags |= CT_OPENING; /* the next packet shows whether its end goes on */
	if (ct->flags & CT_REMOVED)
		traits |= TRAIT_RST;
	/* What policies deny does not keep a connection: one end could have it shut for the other. Its ends give it up all the same. */
	if (ct->denied && !(traits & TRAIT_FIN))
		return true;
	if (!ct->denied && slot->seen != now)
		slot->seen = now;
	if (SLOT_STATE(state) == CT_SYN) {
		if (!ct_is_answer(slot->opening, ct->flags, traits))
			ct->flags |= CT_OPENING;
		if (traits & TRAIT_SYN_ACK && slot->from.proto == IPPROTO_TCP && !(ct->flags & CT_FORWARD))
			slot->opening = OPENING_KNOWN | traits >> TRAIT_NUMBER_SHIFT;
	}
	if (!(traits & TRAIT_NONE) && ct_next(state, slot->opening, ct->flags, traits) != state)
		ct_advance(slot, state, ct->flags, traits);
	return true;
}

/* Judges the connection of a copy of a row by the policies that are in force now. Not a part of ct_use(): the stack is short. */
__noinline int ct_judge(struct ct_entry *ct)
{
	const struct ct_slot *slot = ct ? ct_slot_of(ct) : NULL;

	if (!slot)
		return 0;
	ct->flags &= ~CT_UNJUDGED;
	ct->denied = judge(&slot->from.saddr, &slot->reply.saddr,
			   flow_of(slot->from.sport, slot->reply.sport, slot->from.proto));
	return 0;
}

/* ct_use(), and judges the connection again if policies have changed. */
static __always_inline bool ct_use_judged(struct ct_entry *ct, const struct tuple *t, __u32 traits)
{
	if (!ct_use(ct, t, traits))
		return false;
	if (likely(!(ct->flags & CT_UNJUDGED)))
		return true;
	ct_judge(ct);
	return ct->denied || ct_use(ct, t, traits);
}

/* The row of a tuple, for a packet that is none of the connection; NULL if there is none. */
static __always_inline struct ct_entry *ct_peek(const struct tuple *t)
{
	struct ct_entry *ct = bpf_map_lookup_elem(&connections, t);

	return ct && ct_slot_of(ct) ? ct : NULL;
}

/*
 * Deletes the connection that has the tuple for a row, if it has ended. False if it is open, or was closed so recently that
 * packets may be on their way. patient: false also if the backend may still keep the ports.
 */
__noinline int ct_evict(const struct tuple *t, bool patient)
{
	const struct ct_config *conf = ct_config_row();
	struct ct_entry *ct = t ? bpf_map_lookup_elem(&connections, t) : NULL;
	struct ct_slot *slot;
	__u32 state, index;
	__u64 now;

	if (!ct || !conf)
		return true;
	index = ct->slot;
	slot = bpf_map_lookup_elem(&slots, &index);
	if (!slot)
		return false;
	state = slot_state(slot);
	now = bpf_ktime_get_coarse_ns();
	if (patient && state & SLOT_TIME_WAIT && now < slot_seen(slot) + TIME_WAIT)
		return false;
	if (!ct_is_of(ct, slot, t) ||
	    !(slot_done(slot, state, now) || (SLOT_STATE(state) != CT_CLOSED && slot_ended(slot, state, conf, now))))
		return false;
	if (!slot_take_over(slot, state, now, bpf_get_prandom_u32()))
		return false;
	slot_empty(index);
	slot_free(slot);
	return true;
}

#endif
