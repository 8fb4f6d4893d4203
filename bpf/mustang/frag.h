/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_FRAG_H
#define MUSTANG_FRAG_H

#include "maps.h"
#include "parse.h"

/*
 * Remembers the ports of a first fragment, and gives them to later ones. False for a later fragment whose first one was
 * not seen: it came out of order, or was forgotten.
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
	if (packet->tuple.proto != IPPROTO_TCP && packet->tuple.proto != IPPROTO_UDP)
		return true;
	known = bpf_map_lookup_elem(&fragments, &key);
	if (!known)
		return false;
	packet->tuple.sport = known->sport;
	packet->tuple.dport = known->dport;
	packet->traits |= TRAIT_PORTS;
	return true;
}

#endif
