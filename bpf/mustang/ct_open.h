/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_CT_OPEN_H
#define MUSTANG_CT_OPEN_H

#include "affinity.h"
#include "ct.h"
#include "snat.h"

/* A connection under construction. */
struct ct_new {
	struct tuple from; /* the first packet as the client sends it */
	struct tuple to;   /* the first packet as the backend receives it */
	__u32 service;
	__u32 revision;
	__u32 flags;  /* enum ct_flag */
	__u32 traits; /* of the first packet */
	/* The paths into the pods at both ends, and their endpoints; 0 where there is none. */
	struct ep_path backend_path, client_path;
	__u32 backend, client;
	__u32 slot, use;
	__u32 rows; /* filter.rows before the endpoints were read */
	/* A row of the table, before it is stored. */
	struct tuple key;
	struct ct_entry row;
	/* Of the search for a source port: the next one, in host order, and the error of the last try. */
	__u32 port;
	__s32 err;
	struct snat_route route;
};

/* Room for one new connection on each CPU: it does not fit on the stack. Packet programs do not interrupt each other. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ct_new);
} ct_scratch SEC(".maps");

static __always_inline struct ct_new *ct_new_row(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&ct_scratch, &zero);
}

/* The sum to add to a checksum when words change, as bpf_csum_diff() returns it, which is a call. */
static __always_inline __u32 words_diff(const __be32 *from, const __be32 *to, int count)
{
	__u64 sum = 0;

	for (int i = 0; i < count; i++)
		sum += (__u64)(__u32)~from[i] + to[i];
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (__u32)sum + (__u32)(sum >> 32);
}

/* Completes n->row, which translates n->key to n->row.to. The checksum sums are computed once, not for each packet. */
static __always_inline void ct_fill_row(struct ct_new *n, __u32 direction)
{
	struct tuple *from = &n->key, *to = &n->row.to;

	n->row.addr_diff = words_diff((__be32 *)&from->saddr, (__be32 *)&to->saddr, 8);
	n->row.port_diff = 0;
	if (from->sport != to->sport || from->dport != to->dport)
		n->row.port_diff = words_diff((__be32 *)&from->sport, (__be32 *)&to->sport, 1);
	n->row.slot = n->slot;
	n->row.use = n->use;
	n->row.checked = n->rows;
	n->row.flags = n->flags | direction;
	n->row.path = direction & CT_FORWARD ? n->backend_path : n->client_path;
}

/* Stores the row of replies; an error if another connection that has not ended has the same one. */
static __always_inline long ct_try_reply(struct ct_new *n)
{
	long err;

	n->key = tuple_reverse(&n->to);
	ct_fill_row(n, 0);
	err = bpf_map_update_elem(&connections, &n->key, &n->row, BPF_NOEXIST);
	if (err == -EEXIST && ct_make_way(&n->key))
		err = bpf_map_update_elem(&connections, &n->key, &n->row, BPF_NOEXIST);
	return err;
}

static long try_port(__u32 i, void *unused)
{
	struct ct_new *n = ct_new_row();

	(void)i;
	(void)unused;
	if (!n)
		return 1;
	n->to.sport = bpf_htons(n->port);
	n->err = ct_try_reply(n);
	n->port = n->port < n->route.port_last ? n->port + 1 : n->route.port_first;
	return n->err != -EEXIST;
}

/*
 * Stores the reply direction. If another connection has the same one, the next source port that is free is taken, from a
 * random one on: two connections collide if a client uses one port for two services that share a backend. What this node
 * passes on in its own name has a port that a hash chooses, so that a connection that has lost its rows gets the same again.
 * SCTP keeps its port (ct_avoid).
 */
static __always_inline struct outcome ct_store_reply(struct ct_new *n)
{
	enum metric metric = METRIC_NEW_CONNECTION;

	n->row.to = tuple_reverse(&n->from);
	n->err = n->flags & CT_SNAT && n->from.proto != IPPROTO_SCTP ? -EEXIST : ct_try_reply(n);
	if (n->err == -EEXIST && n->from.proto != IPPROTO_SCTP) {
		if (!(n->flags & CT_SNAT)) {
			metric = METRIC_PORT_CHANGED;
			n->route.port_first = PORT_FIRST;
			n->route.port_last = PORT_LAST;
			n->port = PORT_FIRST + bpf_get_prandom_u32() % (PORT_LAST - PORT_FIRST + 1);
		}
		bpf_loop(PORT_TRIES, try_port, NULL, 0);
	}
	if (!n->err)
		return outcome_translate(metric);
	return outcome_drop(n->err == -EEXIST ? DROP_PORT_EXHAUSTED : DROP_TABLE_FULL);
}

/* The state in which a connection begins. */
static __always_inline __u32 ct_first_state(const struct ct_new *n, __u32 traits)
{
	if (n->from.proto == IPPROTO_UDP)
		return CT_UDP;
	return traits & TRAIT_SYN ? CT_SYN : CT_OPEN;
}

/*
 * Stores n in a slot, with the rows of both directions. old is the slot of the client's previous connection, which the caller
 * has claimed, or SLOT_NONE.
 */
static __always_inline struct outcome ct_store(struct ct_new *n, __u32 old, __u32 traits)
{
	__u32 over_share = false, index = old;
	struct ct_slot *slot;
	struct outcome outcome;

	if (old == SLOT_NONE)
		index = slot_take(n->client, &over_share);
	slot = bpf_map_lookup_elem(&slots, &index);
	if (!slot)
		return outcome_drop(over_share ? DROP_CLIENT_SHARE : DROP_TABLE_FULL);
	if (old != SLOT_NONE)
		slot_reuse(index, slot);
	filter_add(&n->from.daddr, n->from.dport, n->from.proto);
	filter_add(&n->to.daddr, n->to.dport, n->to.proto);
	n->slot = index;
	n->use = slot->use;
	slot->from = n->from;
	outcome = ct_store_reply(n);
	if (outcome.verdict == VERDICT_DROP) {
		if (old != SLOT_NONE) {
			bpf_map_delete_elem(&connections, &n->from);
			filter_change(&n->from);
		}
		slot_free(slot);
		return outcome;
	}
	slot->reply = n->key;
	if (n->flags & CT_SNAT)
		filter_add(&n->key.daddr, n->key.dport, n->key.proto); /* from_uplink asks for the destination alone */
	filter_change(&n->key);
	n->key = n->from;
	n->row.to = n->to;
	ct_fill_row(n, CT_FORWARD);
	if (bpf_map_update_elem(&connections, &n->key, &n->row, BPF_ANY)) {
		slot_empty(index);
		slot_free(slot);
		return outcome_drop(DROP_TABLE_FULL);
	}
	filter_change(&n->key);
	slot->service = n->service;
	slot->revision = n->revision;
	slot->client = n->client;
	slot->backend = n->backend;
	slot->flags = n->flags;
	slot->opened = slot->seen = bpf_ktime_get_coarse_ns();
	usage_add(n->client, 1);
	__sync_lock_test_and_set(&slot->state, ct_first_state(n, traits) | n->use << SLOT_USE_SHIFT);
	return outcome;
}

/*
 * Completes n for a client that came in by an uplink. If the request bypasses the stack, so does the reply: to the device
 * and MAC address that the request came from. Otherwise the stack has seen the request, and must see the reply.
 */
static __always_inline void ct_locate_uplink(struct ct_new *n, const struct endpoint *backend,
					     const struct ep_path *uplink)
{
	n->flags |= CT_UPLINK;
	if (!backend)
		return;
	if (backend->path.flags & ENDPOINT_EGRESS) {
		n->client_path = *uplink;
	} else if (backend->segment == uplink->ifindex) {
		n->client_path = *uplink;
		n->flags |= CT_SEGMENT;
	}
}

/* Finds the pods at both ends of n. */
static __always_inline void ct_locate(struct ct_new *n, const struct ep_path *uplink)
{
	struct filter *filter = filter_row();
	struct endpoint *client, *backend;

	if (filter)
		n->rows = *(volatile __u64 *)&filter->rows;
	client = bpf_map_lookup_elem(&endpoints, &n->from.saddr);
	backend = bpf_map_lookup_elem(&endpoints, &n->to.daddr);
	if (addr_equal(&n->from.saddr, &n->to.daddr) || (client && backend && client->id == backend->id)) {
		/* A pod drops a packet from its own address as forged, and would reply over loopback. */
		n->to.saddr = n->from.daddr;
		n->flags |= CT_HAIRPIN;
	}
	if (client) {
		n->client = client->id;
		n->client_path = client->path;
	}
	if (backend) {
		n->backend = backend->id;
		n->backend_path = backend->path;
	}
	if (client && backend && client->segment && client->segment == backend->segment)
		n->flags |= CT_SEGMENT;
	if (uplink)
		ct_locate_uplink(n, backend, uplink);
}

/* Compares a backend with the address alone, and finds its port. */
static long search_address(__u32 slot, struct backend_search *s)
{
	struct backend_key key = { .revision = s->revision, .slot = slot };
	const struct backend *row = bpf_map_lookup_elem(&backends, &key);

	s->found = row && addr_equal(&row->addr, &s->addr);
	if (s->found)
		s->port = row->port;
	return s->found;
}

/* Finds the port of a backend of the service. */
static __always_inline bool dsr_port(const struct service *service, const union addr *addr, __be16 *port)
{
	struct backend_search search = { .addr = *addr, .revision = service->revision };

	bpf_loop(service->total, search_address, &search, 0);
	*port = search.port;
	return search.found;
}

/* Completes n for a backend on another node. */
static __always_inline struct outcome ct_route(struct __sk_buff *skb, struct ct_new *n, const struct ep_path *uplink)
{
	struct outcome outcome = outcome_unpack(snat_find(skb, &n->to.daddr, &n->route));

	if (outcome.verdict != VERDICT_TRANSLATE)
		return outcome;
	n->to.saddr = n->route.source;
	n->port = snat_port(&n->route, tuple_hash(&n->from));
	n->flags = (n->flags & ~CT_HAIRPIN) | CT_SNAT;
	n->client_path = *uplink;
	n->backend_path.ifindex = n->route.ifindex;
	n->backend_path.flags = ENDPOINT_ROUTED;
	return outcome;
}

/*
 * Chooses a backend by a hash. That of the tuple is the same on all nodes: a connection that has lost its row gets the same
 * backend again.
 */
static __always_inline struct outcome ct_choose_backend(struct ct_new *n, const struct service *service, __u32 hash)
{
	struct backend_key key = { .revision = n->revision };
	struct backend *backend;

	if (!service->count)
		return outcome_drop(DROP_NO_BACKEND);
	key.slot = client_slot(service, n->revision, &n->from.saddr, hash);
	backend = bpf_map_lookup_elem(&backends, &key);
	if (!backend)
		return outcome_drop(DROP_BACKEND_MISSING);
	n->to = n->from;
	n->to.daddr = backend->addr;
	n->to.dport = backend->port;
	return outcome_translate(METRIC_NONE);
}

/* Backends tried for a connection of SCTP. */
#define SCTP_TRIES 32

/* A search for a backend to which no other connection of the client's port goes. */
struct sctp_search {
	const struct service *service;
	__u32 own; /* slot of the client's previous connection; SLOT_NONE: it has none */
	__u32 hash;
};

static long search_sctp(__u32 i, struct sctp_search *s)
{
	struct ct_new *n = ct_new_row();
	const struct ct_entry *taken;

	if (!n)
		return 1;
	if (i)
		ct_choose_backend(n, s->service, s->hash + i);
	n->key = tuple_reverse(&n->to);
	taken = bpf_map_lookup_elem(&connections, &n->key);
	return !taken || taken->slot == s->own || ct_make_way(&n->key);
}

/*
 * Changes the backend of an SCTP connection if another connection of the client has the same port there: no source port can
 * change, as the kernel cannot mend the checksum.
 */
static __always_inline void ct_avoid(const struct service *service, const struct ct_entry *old, __u32 hash)
{
	struct sctp_search search = { .service = service, .own = old ? old->slot : SLOT_NONE, .hash = hash };

	bpf_loop(SCTP_TRIES, search_sctp, &search, 0);
}

static __always_inline bool is_closed(const struct ct_slot *slot)
{
	return SLOT_STATE(slot_state(slot)) == CT_CLOSED;
}

/*
 * Whether a repeated SYN keeps the connection of the row, which n->row becomes then. A connection that has ended gets no
 * other packet.
 */
static __always_inline bool ct_keep(struct ct_new *n, struct ct_entry *ct, const struct service *service, __u32 traits)
{
	const struct ct_slot *slot = ct_slot_of(ct);

	if (!slot || !(ct->flags & CT_FORWARD) || slot->service != service->id || slot->revision != service->revision ||
	    is_closed(slot) || !ct_use(ct, traits))
		return false;
	n->row = *ct;
	return true;
}

/* Claims the slot of the client's previous connection, to which the row belongs. SLOT_NONE: another program has it. */
static __always_inline __u32 ct_claim_old(const struct ct_entry *ct)
{
	struct ct_slot *slot = ct_slot_of(ct);
	__u32 state;

	if (!slot || !(ct->flags & CT_FORWARD))
		return SLOT_NONE;
	state = slot_state(slot);
	if (SLOT_STATE(state) <= CT_CLAIMED || !slot_claim(slot, state))
		return SLOT_NONE;
	return ct->slot;
}

/* Opens a connection to a service, or keeps the existing one if the SYN is repeated. */
static __always_inline struct outcome ct_open_service(struct __sk_buff *skb, struct ct_new *n,
						      const struct service *service, const struct ep_path *uplink)
{
	struct ct_entry *ct = bpf_map_lookup_elem(&connections, &n->from);
	struct outcome outcome;
	__u32 old = SLOT_NONE, hash;

	n->service = service->id;
	n->revision = service->revision;
	if (ct && ct_keep(n, ct, service, n->traits))
		return outcome_translate(METRIC_KEPT_CONNECTION);
	hash = tuple_hash(&n->from);
	outcome = ct_choose_backend(n, service, hash);
	if (outcome.verdict == VERDICT_DROP)
		return outcome;
	if (n->from.proto == IPPROTO_SCTP)
		ct_avoid(service, ct, hash);
	ct_locate(n, uplink);
	if (uplink && !n->backend) {
		outcome = ct_route(skb, n, uplink);
		if (outcome.verdict == VERDICT_DROP)
			return outcome;
		if (outcome.verdict == VERDICT_TRANSLATE && service->flags & SERVICE_DSR_IPIP)
			n->flags |= CT_DSR;
	}
	if (ct)
		old = ct_claim_old(ct);
	return ct_store(n, old, n->traits);
}

/*
 * A packet sent to a backend itself, from a port that the client uses or used through a service: the reply would be taken
 * for that of the service. If that connection has ended, it goes; otherwise the packet gets another source port.
 */
static __always_inline struct outcome ct_open_direct(struct ct_new *n, __u32 traits)
{
	struct ct_entry *forward = bpf_map_lookup_elem(&connections, &n->from), *taken;
	struct ct_slot *slot = forward ? ct_slot_of(forward) : NULL;

	if (slot && forward->flags & CT_FORWARD && !slot->service && !(traits & TRAIT_SYN && is_closed(slot)) &&
	    ct_use(forward, traits)) {
		n->row = *forward;
		return outcome_translate(METRIC_KEPT_CONNECTION);
	}
	n->key = tuple_reverse(&n->from);
	taken = bpf_map_lookup_elem(&connections, &n->key);
	if (!taken || taken->flags & CT_FORWARD || ct_make_way(&n->key))
		return outcome_pass(METRIC_NONE);
	n->to = n->from;
	ct_locate(n, NULL);
	return ct_store(n, SLOT_NONE, traits);
}

/*
 * Opens the connection of a packet that may be its first. uplink is where a packet from outside came in, otherwise NULL;
 * packets from outside open connections to services only. Returns a packed outcome; after VERDICT_TRANSLATE both
 * directions are in the table, and ct_opened() returns that of the packet.
 */
__noinline int ct_open(struct __sk_buff *skb, const struct tuple *t, const struct ep_path *uplink, __u32 traits)
{
	struct ct_new *n = ct_new_row();
	struct service *service;

	if (!t || !n)
		return outcome_pack(outcome_pass(METRIC_NONE));
	__builtin_memset(n, 0, sizeof(*n));
	n->from = *t;
	n->traits = traits;
	service = service_lookup(t);
	if (service)
		return outcome_pack(ct_open_service(skb, n, service, uplink));
	return outcome_pack(uplink ? outcome_pass(METRIC_NONE) : ct_open_direct(n, traits));
}

/*
 * Opens the connection of a packet that came in a tunnel to a pod of this node, if that is a backend of the service. The
 * answers leave by the device that leads to the client, or through the stack. Returns a packed outcome as ct_open();
 * VERDICT_PASS: it is not.
 */
__noinline int ct_open_tunnelled(struct __sk_buff *skb, const struct tuple *t, const union addr *pod, __u32 traits)
{
	struct ct_new *n = ct_new_row();
	const struct service *service;
	struct ct_entry *ct;

	if (!t || !pod || !n)
		return outcome_pack(outcome_pass(METRIC_NONE));
	__builtin_memset(n, 0, sizeof(*n));
	n->from = n->to = *t;
	n->to.daddr = *pod;
	service = service_of_tunnel(t);
	if (!service || !dsr_port(service, pod, &n->to.dport))
		return outcome_pack(outcome_pass(METRIC_NONE));
	n->service = service->id;
	n->revision = service->revision;
	ct = bpf_map_lookup_elem(&connections, &n->from);
	if (ct && addr_equal(&ct->to.daddr, pod) && ct_keep(n, ct, service, traits))
		return outcome_pack(outcome_translate(METRIC_KEPT_CONNECTION));
	ct_locate(n, NULL);
	if (!n->backend)
		return outcome_pack(outcome_pass(METRIC_NONE));
	n->flags = CT_UPLINK | CT_DSR;
	if (n->backend_path.flags & ENDPOINT_EGRESS && snat_device(skb, &n->from.saddr, &n->route)) {
		n->client_path.ifindex = n->route.ifindex;
		n->client_path.flags = ENDPOINT_ROUTED;
	}
	return outcome_pack(ct_store(n, ct ? ct_claim_old(ct) : SLOT_NONE, traits));
}

/* The row of the connection that ct_open() has just opened on this CPU. */
static __always_inline struct ct_entry *ct_opened(void)
{
	struct ct_new *n = ct_new_row();

	return n ? &n->row : NULL;
}

#endif
