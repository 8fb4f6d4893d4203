/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_POLICY_H
#define MUSTANG_POLICY_H

#include "config.h"
#include "events.h"
#include "endpoint_cache.h"

/*
 * Network policies, as rows that user space compiles them to. A pod has a rule set for each direction, an address an
 * identity, and both together a verdict. All rows that a rule set refers to are there before a pod has it.
 */

/* The number of different lengths that prefixes can have. */
#define PREFIX_LENGTHS 129

struct policy_settings {
	__u8 lengths[PREFIX_LENGTHS]; /* of the prefixes in identities but for whole addresses, the longest first */
	__u8 count;
	__u8 audit; /* count denied packets, and let them pass */
	__u8 reserved[5];
};

struct verdict_row {
	__u32 rule;    /* that decided, for people */
	__u32 table;   /* of policy_ports, where something else holds for some ports; 0: none */
	__u32 lengths; /* a bit for each length of a prefix in the table */
	__u32 allow;
};

struct port_row {
	__u32 rule;
	__u32 allow;
};

_Static_assert(sizeof(struct policy_settings) == 136, "hidden padding");
_Static_assert(sizeof(struct prefix) == 20, "hidden padding");
_Static_assert(sizeof(struct verdict_row) == 16, "hidden padding");
_Static_assert(sizeof(struct port_key) == 8, "hidden padding");

/*
 * Two rows; node_state.policies names the one in force, so that all settings change at once. The third is for user space only: the
 * files that the rows of policies follow.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 3);
	__type(key, __u32);
	__type(value, struct policy_settings);
} policy_settings SEC(".maps");

/* What policies can know of addresses, as a number. The longest prefix counts. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct prefix);
	__type(value, __u32);
} identities SEC(".maps");

/* A bit of the identities of the node's own addresses. */
#define IDENTITY_OWN_NODE 0x80000000
/* A bit beside the identities of pods' link-local addresses. */
#define IDENTITY_ON_LINK 0x40000000

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct verdict_key);
	__type(value, struct verdict_row);
} verdicts SEC(".maps");

/* What holds for some ports. The longest prefix counts. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct port_key);
	__type(value, struct port_row);
} policy_ports SEC(".maps");

/* For user space only: the numbers that rows use for rules, rule sets and so on, by the digest of their content. */
struct content_digest {
	__u8 bytes[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct content_digest);
	__type(value, __u32);
} policy_numbers SEC(".maps");

/* The settings in force; NULL if no pod has a rule set. */
static __always_inline const struct policy_settings *policies_in_force(void)
{
	const struct node_state *node = node_state_row();
	__u32 row;

	if (!node || !node->policies)
		return NULL;
	row = node->policies - 1;
	return bpf_map_lookup_elem(&policy_settings, &row);
}

/* What policies know of an address by itself, with these bits: 0 if nothing, and while none are in force. */
static __noinline __u32 identity_of(const union addr *addr)
{
	struct prefix prefix = { .length = 128 };
	const __u32 *identity;

	if (!addr || !policies_in_force())
		return 0;
	prefix.addr = *addr;
	identity = bpf_map_lookup_elem(&identities, &prefix);
	return identity ? *identity : 0;
}

/* Whether an address is the node's, to policies. */
static __always_inline bool is_own_node(const union addr *addr)
{
	return identity_of(addr) & IDENTITY_OWN_NODE;
}

static __always_inline struct policy_scratch *policy_scratch_row(void)
{
	struct scratch *scratch = scratch_row();

	return scratch ? &scratch->policy : NULL;
}

/* Notes which address of a packet has been replaced by one of its pod, until the next call. Equal ones: none. */
static __always_inline void stands_for(const union addr *pod, const union addr *own)
{
	struct policy_scratch *j = policy_scratch_row();

	if (!j)
		return;
	j->pod = *pod;
	j->own = *own;
}

/* Gives an event the addresses of its packet. */
static __always_inline void emit_own(struct tuple *t)
{
	const struct policy_scratch *j = policy_scratch_row();

	if (j && addr_equal(&t->saddr, &j->pod))
		t->saddr = j->own;
	if (j && addr_equal(&t->daddr, &j->pod))
		t->daddr = j->own;
}

static __always_inline __be32 mask_word(__u32 length, __u32 word)
{
	if (length >= 32 * (word + 1))
		return 0xffffffff;
	if (length <= 32 * word)
		return 0;
	return bpf_htonl(0xffffffff << (32 * (word + 1) - length));
}

static long search_identity(__u32 i, void *unused)
{
	const struct policy_settings *settings = policies_in_force();
	struct policy_scratch *j = policy_scratch_row();
	const __u32 *found;

	(void)unused;
	if (!settings || !j || i >= PREFIX_LENGTHS)
		return 1;
	j->prefix.length = settings->lengths[i];
	for (int word = 0; word < 4; word++)
		j->prefix.addr.words[word] = j->peer.words[word] & mask_word(j->prefix.length, word);
	found = bpf_map_lookup_elem(&identities, &j->prefix);
	if (!found)
		return 0;
	j->identity = *found & ~IDENTITY_ON_LINK;
	return 1;
}

/* Finds what policies know of the peer. */
static __always_inline void find_identity(struct policy_scratch *j, const union addr *peer)
{
	const struct policy_settings *settings = policies_in_force();
	const __u32 *found;

	j->peer = j->prefix.addr = *peer;
	j->prefix.length = 128;
	found = bpf_map_lookup_elem(&identities, &j->prefix);
	j->identity = found ? *found & ~IDENTITY_ON_LINK : 0;
	if (!found && settings && settings->count)
		bpf_loop(settings->count, search_identity, NULL, 0);
}

static long search_port(__u32 i, void *unused)
{
	struct policy_scratch *j = policy_scratch_row();
	const struct port_row *row;
	__u32 length = 16 - i;

	(void)unused;
	if (!j || length > 16)
		return 1;
	if (!(j->lengths >> length & 1))
		return 0;
	j->port_key.length = length;
	j->port_key.port = j->port & (0xffff0000 >> length);
	row = bpf_map_lookup_elem(&policy_ports, &j->port_key);
	if (!row)
		return 0;
	j->rule = row->rule;
	j->allow = row->allow;
	return 1;
}

/* The ports of a connection, in network order, and its protocol. */
static __always_inline __u64 flow_of(__be16 sport, __be16 dport, __u8 proto)
{
	return (__u64)sport << 32 | (__u32)dport << 16 | proto;
}

static __always_inline __u8 flow_proto(__u64 flow)
{
	return flow;
}

static __always_inline __be16 flow_dport(__u64 flow)
{
	return flow >> 16;
}

/* What decide_by_set() returns. */
#define RULE_DENIES 0x80000000

/* Whether a rule set allows its pod a connection with a peer: the number of the rule that decides, and RULE_DENIES. */
static __noinline __u32 decide_by_set(__u32 set, const union addr *peer, __u64 flow)
{
	struct policy_scratch *j = policy_scratch_row();
	const struct verdict_row *row;

	if (!j)
		return RULE_DENIES;
	find_identity(j, peer);
	j->key.set = set;
	j->key.identity = j->identity;
	row = bpf_map_lookup_elem(&verdicts, &j->key);
	if (!row && j->key.identity) {
		j->key.identity = 0;
		row = bpf_map_lookup_elem(&verdicts, &j->key);
	}
	if (!row)
		return RULE_DENIES;
	j->rule = row->rule;
	j->allow = row->allow;
	if (row->table) {
		j->lengths = row->lengths;
		j->port = bpf_ntohs(flow_dport(flow));
		j->port_key.table = row->table;
		j->port_key.proto = flow_proto(flow);
		bpf_loop(17, search_port, NULL, 0);
	}
	return j->allow ? j->rule : j->rule | RULE_DENIES;
}

/* Emits an event of a connection that is denied. */
static __noinline void emit_denied(const union addr *source, const union addr *destination, __u64 flow, __u32 rule,
				   __u32 reason)
{
	const struct policy_settings *settings = policies_in_force();
	struct event *event;

	if (!settings || !is_watched(EVENT_DENIED))
		return;
	event = event_begin(EVENT_DENIED, config.attach_point);
	if (!event)
		return;
	event->tuple.saddr = *source;
	event->tuple.daddr = *destination;
	event->tuple.sport = flow >> 32;
	event->tuple.dport = flow_dport(flow);
	event->tuple.proto = flow_proto(flow);
	emit_own(&event->tuple);
	event->rule = rule;
	event->reason = reason;
	event->audited = settings->audit;
	event_end(event);
}

/*
 * Judges a connection by the policies of its ends, as far as they are pods of this node: 0 if it is allowed, otherwise an enum
 * drop_reason. The source is the client itself, the destination the server, for a service the backend.
 */
__noinline int judge(const union addr *source, const union addr *destination, __u64 flow)
{
	const struct policy_settings *settings = policies_in_force();
	struct metrics *row = metrics_row();
	__u32 egress = 0, ingress = 0, endpoint = 0, rule = 0, reason = 0;
	const struct cached_endpoint *ep;

	if (!source || !destination || !settings || !row || addr_equal(source, destination))
		return 0;
	/* Each is used up before the next one, which may have the same place. */
	ep = endpoint_lookup(source);
	if (ep && ep->id) {
		egress = ep->egress;
		endpoint = ep->id;
	}
	ep = endpoint_lookup(destination);
	if (ep && ep->id) {
		ingress = ep->ingress;
		if (ep->id == endpoint)
			return 0;
	}
	if (egress) {
		rule = decide_by_set(egress, destination, flow);
		if (rule & RULE_DENIES)
			reason = DROP_POLICY_EGRESS;
	}
	if (ingress && !reason) {
		rule = decide_by_set(ingress, source, flow);
		if (rule & RULE_DENIES)
			reason = DROP_POLICY_INGRESS;
	}
	if (!reason)
		return 0;
	emit_denied(source, destination, flow, rule & ~RULE_DENIES, reason);
	if (!settings->audit)
		return reason;
	row->count[METRIC_AUDITED]++;
	return 0;
}

/* The same with an address of a pod in place of the one that the packet has. */
static __noinline int judge_as(const union addr *pod, const union addr *own, const union addr *source,
			       const union addr *destination, __u64 flow)
{
	int reason;

	stands_for(pod, own);
	reason = judge(source, destination, flow);
	stands_for(own, own);
	return reason;
}

#endif
