/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_CT_OPEN_H
#define MUSTANG_CT_OPEN_H

#include "affinity.h"
#include "clients.h"
#include "conn_cache.h"
#include "ct_store.h"
#include "senders.h"

/*
 * Completes n for a client that came in by an uplink. If the request bypasses the stack, so does the reply: to the device
 * and MAC address that the request came from. Otherwise the stack has seen the request, and must see the reply.
 */
static __always_inline void ct_locate_uplink(struct ct_new *n, __u32 segment, const struct ep_path *uplink)
{
	n->flags |= CT_UPLINK;
	if (!n->backend)
		return;
	if (n->backend_path.flags & ENDPOINT_EGRESS) {
		n->client_path = *uplink;
	} else if (segment == uplink->ifindex) {
		n->client_path = *uplink;
		n->flags |= CT_SEGMENT;
	}
}

/* Finds the pods at both ends of n. */
static __always_inline void ct_locate(struct ct_new *n, const struct ep_path *uplink)
{
	struct node_state *node = node_state_row();
	__u32 client_segment = 0, backend_segment = 0;
	const struct cached_endpoint *ep;

	if (node)
		n->rows = *(volatile __u64 *)&node->rows;
	/* Each is used up before the next one, which may have the same place. */
	ep = endpoint_lookup(&n->from.saddr);
	if (ep && ep->id) {
		n->client = ep->id;
		n->client_path = ep->path;
		client_segment = ep->segment;
	}
	ep = endpoint_lookup(&n->to.daddr);
	if (ep && ep->id) {
		n->backend = ep->id;
		n->backend_path = ep->path;
		backend_segment = ep->segment;
	}
	if (addr_equal(&n->from.saddr, &n->to.daddr) || (n->client && n->client == n->backend)) {
		/* A pod drops a packet from its own address as forged, and would reply over loopback. */
		n->to.saddr = n->from.daddr;
		n->flags |= CT_HAIRPIN;
	}
	if (client_segment && client_segment == backend_segment)
		n->flags |= CT_SEGMENT;
	if (uplink)
		ct_locate_uplink(n, backend_segment, uplink);
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

/* Sends n to the backend in a slot. */
static __always_inline struct outcome ct_take_backend(struct ct_new *n, __u32 slot)
{
	union addr addr;
	__be16 port;

	if (!backend_read(&n->called, slot, &addr, &port))
		return outcome_drop(DROP_BACKEND_MISSING);
	n->to = n->from;
	n->to.daddr = addr;
	n->to.dport = port;
	return outcome_translate(METRIC_NONE);
}

/*
 * Chooses a backend by a hash. The hash of the tuple is the same on all nodes, so that a connection without its row gets
 * the same backend again. Returns a packed outcome, and is not inlined: its callers have little stack left.
 */
static __noinline int ct_choose_backend(const struct service *service, __u32 hash, bool outside)
{
	bool local = service->flags & (outside ? SERVICE_EXTERNAL_LOCAL : SERVICE_INTERNAL_LOCAL);
	struct ct_new *n = ct_new_row();

	if (!n)
		return outcome_pack(outcome_drop(DROP_BACKEND_MISSING));
	if (service->flags & SERVICE_SOURCE_RANGES && !in_source_ranges(n->revision, &n->from.saddr))
		return outcome_pack(outcome_drop(DROP_SOURCE_RANGE));
	if (!(local ? service->local : service->count))
		return outcome_pack(outcome_drop(missing_backend(service)));
	return outcome_pack(ct_take_backend(n, client_slot(service, n->revision, &n->from.saddr, hash, local)));
}

/* Backends tried for a connection of SCTP. */
#define SCTP_TRIES 32

/* A search for a backend for a connection of SCTP. The rest is in ct_new: callers have little stack left. */
struct sctp_search {
	struct __sk_buff *skb;
	bool outside;
};

/* Sets the tuple of replies of the backend that n goes to. One on another node sees a client outside by this node's address. */
static __always_inline void sctp_key(struct sctp_search *s, struct ct_new *n)
{
	n->key = tuple_reverse(&n->to);
	if (s->outside && !bpf_map_lookup_elem(&endpoints, &n->to.daddr) &&
	    outcome_unpack(snat_find(s->skb, &n->to.daddr, &n->route)).verdict == VERDICT_TRANSLATE)
		n->key.daddr = n->route.source;
}

/* Takes a backend to which no other connection of the client's port goes. */
static long search_sctp(__u32 i, struct sctp_search *s)
{
	struct ct_new *n = ct_new_row();
	const struct ct_entry *taken;
	int evicted;

	if (!n)
		return 1;
	if (i)
		ct_take_backend(n, backend_slot(&n->candidates, n->revision, n->hash + i));
	sctp_key(s, n);
	taken = bpf_map_lookup_elem(&connections, &n->key);
	if (!taken || (n->replace && taken->slot == n->row.slot))
		return 1;
	evicted = ct_evict(&n->key, false);
	/* The compiler knows that it is 0 or 1; the verifier does not know it of a global function. */
	asm volatile("" : "+r"(evicted));
	return evicted != 0;
}

/*
 * Changes the backend of an SCTP connection if another connection of the client has the same port there: the source port
 * cannot change, as the kernel cannot update the checksum.
 */
static __always_inline void ct_avoid(struct __sk_buff *skb, struct ct_new *n, const struct service *service,
				     bool outside)
{
	struct sctp_search search = { .skb = skb, .outside = outside };
	bool local = service->flags & (outside ? SERVICE_EXTERNAL_LOCAL : SERVICE_INTERNAL_LOCAL);

	n->candidates = candidates_of(service, local);
	n->hash = tuple_hash(&n->from);
	bpf_loop(SCTP_TRIES, search_sctp, &search, 0);
}

/* Judges the connection of n by policies: 0 if it is allowed, otherwise an enum drop_reason. */
static __always_inline __u32 ct_judge_new(const struct ct_new *n)
{
	const struct tuple *from = &n->from, *to = &n->to;
	__u64 flow = flow_of(from->sport, to->dport, from->proto);
	__u32 reason = 0;

	if (!policies_in_force())
		return 0;
	/* The policies of its pod hold too. */
	if (n->foreign)
		reason = judge_as(&n->pod, &from->saddr, &n->pod, &to->daddr, flow);
	return reason ? reason : judge(&from->saddr, &to->daddr, flow);
}

static __always_inline bool is_closed(const struct ct_slot *slot)
{
	return SLOT_STATE(slot_state(slot)) == CT_CLOSED;
}

/* How late the network may deliver a repeated SYN: ns. */
#define SYN_LATE (60 * NS_PER_SECOND)

/* Whether a SYN may be a late duplicate of the one that opened the connection. The backend answers it by an ACK (RFC 5961). */
static __always_inline bool is_late_syn(const struct ct_new *n, const struct ct_slot *slot)
{
	return SLOT_STATE(slot_state(slot)) == CT_OPEN && n->now < slot->opened + SYN_LATE;
}

/* Whether another program is about to open the connection of n->row. It does not take long. */
static __always_inline bool is_new(const struct ct_new *n, const struct ct_slot *slot)
{
	return SLOT_STATE(slot_state(slot)) == CT_CLAIMED && n->now < slot_seen(slot) + NS_PER_SECOND &&
	       ct_is_of(&n->row, slot, &n->from);
}

/*
 * Whether a repeated SYN keeps the connection of n->row. A connection that has ended gets no other packet; an open one keeps
 * its backend if the service has changed.
 */
static __always_inline bool ct_keep(struct ct_new *n, const struct service *service, __u32 traits)
{
	const struct ct_slot *slot = ct_slot_of(&n->row);

	if (!slot || !(n->row.flags & CT_FORWARD))
		return false;
	if (is_new(n, slot))
		return true;
	return slot->service == service->id && (slot->revision == service->revision || is_late_syn(n, slot)) &&
	       !is_closed(slot) && ct_use_judged(&n->row, &n->from, traits);
}

/* Claims the slot of the client's previous connection, of n->row. SLOT_NONE: another program has it. */
static __always_inline __u32 ct_claim_old(struct ct_new *n)
{
	struct ct_slot *slot = ct_slot_of(&n->row);
	__u32 state;

	if (!slot || !(n->row.flags & CT_FORWARD))
		return SLOT_NONE;
	state = slot_state(slot);
	if (SLOT_STATE(state) <= CT_CLAIMED || !ct_is_of(&n->row, slot, &n->from) ||
	    !slot_claim(slot, state, n->now, bpf_get_prandom_u32()))
		return SLOT_NONE;
	n->counted = SLOT_STATE(state) != CT_CLOSED;
	return n->row.slot;
}

/* Opens a connection to a service, or keeps the existing one if the SYN is repeated. */
static __always_inline struct outcome ct_open_service(struct __sk_buff *skb, struct ct_new *n,
						      const struct service *service, const struct ep_path *uplink)
{
	struct outcome outcome;
	__u32 old = SLOT_NONE, hash, reason;

	n->service = service->id;
	n->revision = service->revision;
	if (service->flags & SERVICE_RESET)
		n->flags |= CT_RESETS;
	n->replace = ct_copy(&n->from, &n->row);
	if (n->replace && ct_keep(n, service, n->traits))
		return outcome_translate(METRIC_KEPT_CONNECTION);
	hash = tuple_hash(&n->from);
	outcome = outcome_unpack(ct_choose_backend(service, hash, uplink));
	if (outcome.verdict == VERDICT_DROP)
		return outcome;
	if (n->from.proto == IPPROTO_SCTP)
		ct_avoid(skb, n, service, uplink);
	ct_locate(n, uplink);
	reason = ct_judge_new(n);
	if (reason)
		return outcome_drop(reason);
	if (uplink && !n->backend) {
		outcome = ct_route(skb, n, uplink);
		if (outcome.verdict == VERDICT_DROP)
			return outcome;
		if (outcome.verdict == VERDICT_TRANSLATE && service->flags & SERVICE_DSR_IPIP)
			n->flags |= CT_DSR;
	}
	if (n->replace)
		old = ct_claim_old(n);
	n->old = old;
	return outcome_store();
}

/*
 * A packet sent to a backend itself, from a port that the client uses or used through a service: the reply would look
 * like the service's. If that connection has ended, it is deleted; otherwise the packet gets another source port.
 */
static __always_inline struct outcome ct_open_direct(struct ct_new *n, __u32 traits)
{
	__u32 old = SLOT_NONE, reason;
	struct ct_entry *taken;
	struct ct_slot *slot;
	bool free;

	n->replace = ct_copy(&n->from, &n->row);
	if (n->replace && n->row.flags & CT_DIRECT)
		return outcome_pass(METRIC_NONE); /* police() sees to it */
	slot = n->replace ? ct_slot_of(&n->row) : NULL;
	if (slot && n->row.flags & CT_FORWARD && !slot->service && !(traits & TRAIT_SYN && is_closed(slot)) &&
	    ct_use_judged(&n->row, &n->from, traits))
		return outcome_translate(METRIC_KEPT_CONNECTION);
	n->to = tuple_reverse(&n->from);
	taken = bpf_map_lookup_elem(&connections, &n->to);
	free = !taken || taken->flags & CT_FORWARD || ct_evict(&n->to, false);
	if (slot && !slot->service)
		old = ct_claim_old(n);
	if (free) {
		/* The old row would change the port of the packets that follow. */
		if (old != SLOT_NONE)
			slot_release(old);
		return outcome_pass(METRIC_NONE);
	}
	n->to = n->from;
	reason = ct_judge_new(n);
	if (reason)
		return outcome_drop(reason);
	ct_locate(n, NULL);
	n->old = old;
	return outcome_store();
}

/*
 * Whether a packet to a service is for a socket of the host that has the port as its own: one of an open TCP connection, or a connected
 * UDP socket. A listener, and a UDP socket that anybody may send to, have lost the port to the service.
 */
static __noinline int is_for_host(struct __sk_buff *skb, const struct tuple *t)
{
	struct bpf_sock_tuple key = {};
	__u32 size = tuple_socket(t, &key);
	struct bpf_sock *sk;
	bool own;

	if (t->proto == IPPROTO_TCP) {
		sk = bpf_skc_lookup_tcp(skb, &key, size, BPF_F_CURRENT_NETNS, 0);
		if (!sk)
			return false;
		own = sk->state != BPF_TCP_LISTEN;
	} else {
		sk = bpf_sk_lookup_udp(skb, &key, size, BPF_F_CURRENT_NETNS, 0);
		if (!sk)
			return false;
		own = sk->state == BPF_TCP_ESTABLISHED;
	}
	bpf_sk_release(sk);
	return own;
}

/*
 * Opens the connection of a packet that may be its first. uplink is where a packet from outside came in, otherwise NULL;
 * packets from outside open connections to services only. Returns a packed outcome, for ct_stored(); after VERDICT_TRANSLATE both
 * directions are in the table, and ct_opened() returns the packet's.
 */
__noinline int ct_open(struct __sk_buff *skb, const struct tuple *t, const struct ep_path *uplink, __u32 traits)
{
	struct ct_new *n = ct_new_row();

	if (!t || !n)
		return outcome_pack(outcome_pass(METRIC_NONE));
	/* Routers do not forward packets with such a source (RFC 4291), and in the table it would be a client outside, not the pod. */
	if (!uplink && is_link_local(&t->saddr))
		return outcome_pack(outcome_pass(METRIC_NONE));
	__builtin_memset(n, 0, offsetof(struct ct_new, traits));
	n->from = *t;
	n->traits = traits;
	n->now = coarse_now();
	n->foreign = !uplink && policies_in_force() && pod_of_foreign(skb, &t->saddr, &n->pod);
	if (service_read(t, &n->called, false)) {
		if (!(traits & TRAIT_SYN) && t->proto != IPPROTO_SCTP && config.attach_point != ATTACH_POD &&
		    is_for_host(skb, t))
			return outcome_pack(outcome_pass(METRIC_NONE));
		return outcome_pack(ct_open_service(skb, n, &n->called, uplink));
	}
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
	__u32 reason;

	if (!t || !pod || !n)
		return outcome_pack(outcome_pass(METRIC_NONE));
	__builtin_memset(n, 0, offsetof(struct ct_new, traits));
	n->from = n->to = *t;
	n->to.daddr = *pod;
	service = &n->called;
	/* A pod of this node sends nothing in a tunnel. */
	if (!service_read(t, &n->called, true) || bpf_map_lookup_elem(&endpoints, &t->saddr) ||
	    !dsr_port(service, pod, &n->to.dport))
		return outcome_pack(outcome_pass(METRIC_NONE));
	n->service = service->id;
	n->revision = service->revision;
	n->traits = traits;
	n->now = coarse_now();
	n->replace = ct_copy(&n->from, &n->row);
	if (n->replace && addr_equal(&n->row.to.daddr, pod) && ct_keep(n, service, traits))
		return outcome_pack(outcome_translate(METRIC_KEPT_CONNECTION));
	if (service->flags & SERVICE_SOURCE_RANGES && !in_source_ranges(n->revision, &n->from.saddr))
		return outcome_pack(outcome_drop(DROP_SOURCE_RANGE));
	ct_locate(n, NULL);
	if (!n->backend)
		return outcome_pack(outcome_pass(METRIC_NONE));
	reason = ct_judge_new(n);
	if (reason)
		return outcome_pack(outcome_drop(reason));
	n->flags = CT_UPLINK | CT_DSR;
	if (n->backend_path.flags & ENDPOINT_EGRESS && !snat_device(skb, &n->from.saddr, &n->route)) {
		n->client_path.ifindex = n->route.ifindex;
		n->client_path.flags = ENDPOINT_ROUTED;
	}
	n->old = n->replace ? ct_claim_old(n) : SLOT_NONE;
	return outcome_pack(outcome_store());
}

/* The row of the connection that ct_open() has just opened on this CPU. */
static __always_inline struct ct_entry *ct_opened(void)
{
	struct ct_new *n = ct_new_row();

	return n ? &n->row : NULL;
}

#endif
