/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_SLOTS_H
#define MUSTANG_SLOTS_H

#include "bloom.h"
#include "metrics.h"
#include "scratch.h"

/*
 * The slots of connections. They are never swept: a new connection looks at some slots, and takes over one that is free
 * or whose connection has ended. A connection that has not ended keeps its slot and its rows. A program that changes the
 * state of a slot to CT_CLAIMED, with a compare-and-swap, may delete its rows and use it.
 *
 * A client may open a connection while it has fewer than twice the shared slots without one (the dynamic threshold of
 * Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998): one greedy client gets two
 * thirds of them at most, two get two fifths each. Later ones would get less and less, since connections stay open: so some
 * slots are not shared, but kept for clients that have few connections.
 */

/* Slots that a new connection looks at first: those behind the one that this CPU took last. */
#define SLOT_NEXT 4

/* Slots that it then looks at, at random. With nine of ten in use, one search of 700,000 fails. */
#define SLOT_TRIES 128

/* Free or expired slots are preferred to those closed just now, whose last packets may be on their way, in this many tries. */
#define SLOT_PREFERENCE (SLOT_NEXT + 4)

/* How long the ports of a closed connection are kept for its last packets: ns. */
#define CLOSED_KEPT 1000000000ULL

/* How long the end that closed first refuses other connections of the same ports (RFC 9293; Linux has 60 s): ns. */
#define TIME_WAIT 60000000000ULL

/*
 * When a CPU begins with its slots again: ns. Short connections have ended by then, and their slots and rows are still in the
 * processor's caches. A table of gigabytes is not.
 */
#define CURSOR_TIME (CLOSED_KEPT + CLOSED_KEPT / 4)

/* Slots that a client looks at when it has too many connections, as some may have expired. */
#define SWEEP_TRIES 32

#define SLOT_NONE 0xffffffff

/* ns of CLOCK_MONOTONIC, of the last tick. It is read once a tick: the call takes longer than all else here. */
static __always_inline __u64 coarse_now(void)
{
	__u64 jiffies = bpf_jiffies64();
	struct scratch *scratch = scratch_row();
	struct coarse_time *last;

	if (unlikely(!scratch))
		return bpf_ktime_get_coarse_ns();
	last = &scratch->time;
	if (unlikely(last->jiffies != jiffies)) {
		last->now = bpf_ktime_get_coarse_ns();
		last->jiffies = jiffies;
	}
	return last->now;
}

static __always_inline const struct ct_config *ct_config_row(void)
{
	const struct node_state *node = node_state_row();

	return node ? &node->ct_config : NULL;
}

static __always_inline __u32 slot_state(const struct ct_slot *slot)
{
	return *(volatile const __u32 *)&slot->state;
}

static __always_inline __u64 slot_seen(const struct ct_slot *slot)
{
	return *(volatile const __u64 *)&slot->seen;
}

static __always_inline void client_conns_add(__u32 client, __u64 n)
{
	struct node_state *node = node_state_row();

	if (!node)
		return;
	ordered_add(&node->client_conns[client % CLIENT_ROWS], n);
	ordered_add(&node->client_conns[CLIENTS_TOTAL], n);
}

/* Whether the client may open a connection. */
static __always_inline bool client_conns_allow(__u32 client)
{
	const struct node_state *node = node_state_row();
	const struct ct_config *conf;
	__u64 count, all;

	if (!node)
		return false;
	conf = &node->ct_config;
	count = *(volatile const __u64 *)&node->client_conns[client % CLIENT_ROWS];
	all = *(volatile const __u64 *)&node->client_conns[CLIENTS_TOTAL];
	return count + 2 * all < 2 * (__u64)conf->shared || (count < conf->least && all < conf->slots);
}

/* Whether the endpoint with the id, if there is one, still has the address. */
static __always_inline bool ep_alive(const union addr *addr, __u32 id)
{
	const struct endpoint *endpoint;

	if (!id)
		return true;
	endpoint = bpf_map_lookup_elem(&endpoints, addr);
	return endpoint && endpoint->id == id;
}

static __always_inline bool slot_expired(const struct ct_slot *slot, __u32 state, const struct ct_config *conf,
					 __u64 now)
{
	__u64 seen = slot_seen(slot); /* by another CPU, it may be later than now */

	return seen < now && now - seen > conf->timeout[state & 7];
}

/* Whether a new connection may take the slot over: its connection has expired, or one of its pods is gone. */
static __always_inline bool slot_ended(const struct ct_slot *slot, __u32 state, const struct ct_config *conf, __u64 now)
{
	if (SLOT_STATE(state) == CT_FREE || slot_expired(slot, state, conf, now))
		return true;
	return SLOT_STATE(state) != CT_CLAIMED && SLOT_STATE(state) != CT_CLOSED &&
	       !(ep_alive(&slot->from.saddr, slot->client) && ep_alive(&slot->reply.saddr, slot->backend));
}

/* Claims a slot that is in the state; false if another program was first. random has a random number in its high bits. */
static __always_inline bool slot_claim(struct ct_slot *slot, __u32 state, __u64 now, __u32 random)
{
	__u32 claim = CT_CLAIMED | (random & ~0xff);

	slot->seen = now; /* a claim expires too: of a command that was killed */
	if (__sync_val_compare_and_swap(&slot->state, state, claim) != state)
		return false;
	if (SLOT_STATE(state) != CT_FREE && SLOT_STATE(state) != CT_CLOSED && SLOT_STATE(state) != CT_CLAIMED)
		client_conns_add(slot->client, -1);
	return true;
}

/* Claims a slot whose connection has ended, for another one or to empty it. */
static __always_inline bool slot_take_over(struct ct_slot *slot, __u32 state, __u64 now, __u32 random)
{
	struct metrics *row = metrics_row();

	if (!slot_claim(slot, state, now, random))
		return false;
	if (!row || SLOT_STATE(state) == CT_FREE || SLOT_STATE(state) == CT_CLAIMED)
		return true;
	if (SLOT_STATE(state) == CT_CLOSED)
		row->count[METRIC_SLOT_REUSED]++;
	else
		row->count[METRIC_SLOT_EXPIRED]++;
	return true;
}

static __always_inline void slot_delete_row(__u32 index, __u32 use, const struct tuple *key)
{
	const struct ct_entry *row = bpf_map_lookup_elem(&connections, key);

	if (row && row->slot == index && row->use == use) {
		bpf_map_delete_elem(&connections, key);
		conn_cache_invalidate(key);
	}
}

/*
 * Deletes the rows of a slot that the caller has claimed. Only the caller deletes or replaces them meanwhile. They are already
 * void: a program that reads a row while it is deleted, and perhaps reused, finds another use in the slot.
 */
__noinline int slot_empty(__u32 index)
{
	struct ct_slot *slot = bpf_map_lookup_elem(&slots, &index);
	__u32 use;

	if (!slot)
		return 0;
	use = slot->use++;
	slot_delete_row(index, use, &slot->from);
	slot_delete_row(index, use, &slot->reply);
	return 0;
}

/* Ends a claim. */
static __always_inline void slot_free(struct ct_slot *slot)
{
	__sync_lock_test_and_set(&slot->state, CT_FREE);
}

/* Empties a slot that the caller has claimed, and ends the claim. */
static __always_inline void slot_release(__u32 index)
{
	struct ct_slot *slot = bpf_map_lookup_elem(&slots, &index);

	slot_empty(index);
	if (slot)
		slot_free(slot);
}

/* A search for a slot. */
struct slot_search {
	__u64 now;
	__u32 next;   /* to look at, of the cursor */
	__u32 found;  /* claimed; SLOT_NONE: none */
	__u32 rows;   /* it may have rows */
	__u32 closed; /* the one that was closed longest ago, of those looked at; SLOT_NONE: none */
	__u64 closed_seen;
};

static __always_inline bool search_claim(struct slot_search *s, __u32 index, struct ct_slot *slot, __u32 state,
					 __u32 random)
{
	if (!slot_take_over(slot, state, s->now, random))
		return false;
	s->found = index;
	s->rows = SLOT_STATE(state) != CT_FREE;
	return true;
}

/* Whether a slot was closed so long ago that all packets of its connection have come. */
static __always_inline bool slot_done(const struct ct_slot *slot, __u32 state, __u64 now)
{
	return SLOT_STATE(state) == CT_CLOSED && now >= slot_seen(slot) + CLOSED_KEPT;
}

/* Looks at a slot; 1 if that ends the search. A function of its own: most searches end with the first slot, without a loop. */
static __noinline long search_slots(__u32 i, struct slot_search *s)
{
	const struct ct_config *conf = ct_config_row();
	/* A slot is claimed once in a tick at most, so that the claim needs no better number. */
	__u32 random = i < SLOT_NEXT ? (__u32)s->now : bpf_get_prandom_u32(), index, state;
	struct ct_slot *slot;

	if (!conf || !conf->slots)
		return 1;
	index = i < SLOT_NEXT ? s->next + i : random;
	index = i >= SLOT_PREFERENCE && s->closed != SLOT_NONE ? s->closed : index % conf->slots;
	slot = bpf_map_lookup_elem(&slots, &index);
	if (!slot)
		return 0;
	state = slot_state(slot);
	if (i >= SLOT_PREFERENCE && index == s->closed) {
		s->closed = SLOT_NONE;
		return SLOT_STATE(state) == CT_CLOSED && search_claim(s, index, slot, state, random);
	}
	if (slot_done(slot, state, s->now) || slot_ended(slot, state, conf, s->now))
		return search_claim(s, index, slot, state, random);
	if (SLOT_STATE(state) == CT_CLOSED && (s->closed == SLOT_NONE || slot_seen(slot) < s->closed_seen)) {
		s->closed = index;
		s->closed_seen = slot_seen(slot);
	}
	return 0;
}

static long sweep_slots(__u32 i, struct slot_search *s)
{
	const struct ct_config *conf = ct_config_row();
	__u32 random = bpf_get_prandom_u32(), index, state;
	struct ct_slot *slot;

	(void)i;
	if (!conf || !conf->slots)
		return 1;
	index = random % conf->slots;
	slot = bpf_map_lookup_elem(&slots, &index);
	if (!slot)
		return 1;
	state = slot_state(slot);
	if (SLOT_STATE(state) == CT_FREE || !slot_ended(slot, state, conf, s->now) ||
	    !slot_take_over(slot, state, s->now, random))
		return 0;
	slot_empty(index);
	slot_free(slot);
	return 0;
}

/* Moves a cursor behind the slot that was found; far from where it was, it begins there. */
static __always_inline void cursor_move(struct slot_cursor *cursor, const struct slot_search *search)
{
	if (search->found - cursor->next >= SLOT_NEXT) {
		cursor->first = search->found;
		cursor->since = search->now;
	}
	cursor->next = search->found + 1;
}

/* Finds a slot for a connection of the client, claims and empties it. SLOT_NONE: there is none. */
__noinline __u32 slot_take(__u32 client, __u64 now, __u32 *over_share, struct slot_cursor *cursor)
{
	struct slot_search search = { .now = now, .found = SLOT_NONE, .closed = SLOT_NONE };

	if (!over_share || !cursor)
		return SLOT_NONE;
	if (!client_conns_allow(client)) {
		bpf_loop(SWEEP_TRIES, sweep_slots, &search, 0);
		*over_share = !client_conns_allow(client);
		if (*over_share)
			return SLOT_NONE;
	}
	if (now >= cursor->since + CURSOR_TIME) {
		cursor->next = cursor->since ? cursor->first : bpf_get_prandom_u32();
		cursor->since = now;
	}
	search.next = cursor->next;
	if (!search_slots(0, &search))
		bpf_loop(SLOT_NEXT + SLOT_TRIES, search_slots, &search, 0);
	if (search.found == SLOT_NONE)
		return SLOT_NONE;
	cursor_move(cursor, &search);
	if (search.rows)
		slot_empty(search.found);
	return search.found;
}

#endif
