/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_FRAG_H
#define MUSTANG_FRAG_H

#include "maps.h"
#include "metrics.h"
#include "parse.h"

/*
 * Stores the ports of a first fragment, and copies them to later ones. False for a later fragment whose first one is
 * not in the table: it arrived out of order, or was evicted.
 */
__noinline int fragment_ports(struct packet *packet)
{
	struct fragment_key key = {};
	struct ports *known, ports;

	if (!packet)
		return false;
	key.saddr = packet->tuple.saddr;
	key.daddr = packet->tuple.daddr;
	key.id = packet->fragment_id;
	key.proto = packet->tuple.proto;
	ports.sport = packet->tuple.sport;
	ports.dport = packet->tuple.dport;
	if (packet->traits & TRAIT_FIRST_FRAGMENT) {
		if (packet->traits & TRAIT_PORTS)
			bpf_map_update_elem(&fragments, &key, &ports, BPF_ANY);
		return true;
	}
	if (!has_ports(packet->tuple.proto))
		return true;
	known = bpf_map_lookup_elem(&fragments, &key);
	if (!known)
		return false;
	packet->tuple.sport = known->sport;
	packet->tuple.dport = known->dport;
	packet->traits |= TRAIT_PORTS;
	return true;
}

/* Sets the ports of a fragment. */
static __always_inline void find_fragment_ports(struct packet *packet, struct metrics *row)
{
	if (unlikely(packet->traits & (TRAIT_FIRST_FRAGMENT | TRAIT_LATER_FRAGMENT)) && !fragment_ports(packet))
		row->count[METRIC_UNKNOWN_FRAGMENT]++;
}

#endif
