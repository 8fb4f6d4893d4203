/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_EGRESS_SEALS_H
#define MUSTANG_EGRESS_SEALS_H

#include "claims.h"
#include "slots.h"

/*
 * Packets with a pod's address that have left for the network by a parent. A router may bring it back, without its seal: it
 * then has the addresses that a seal covers, within moments.
 */

/* How long it may take to come back, in units of egress_seal_time(). */
#define RETURN_TIME 10

#define EGRESS_SEAL_TIME ((__u64)SEAL_TOKEN << 32)

/* About a second. */
static __always_inline __u16 egress_seal_time(void)
{
	return coarse_now() >> 30;
}

static __always_inline volatile __u64 *egress_seal_slot(__u64 seal)
{
	struct node_state *node = node_state_row();

	return node ? &node->egress_seals[seal & ((1 << EGRESS_SEALS_LOG) - 1)] : NULL;
}

static __always_inline void egress_seal_store(__u64 seal)
{
	__u64 departure = (seal & ~EGRESS_SEAL_TIME) | (__u64)egress_seal_time() << 32;
	volatile __u64 *place = egress_seal_slot(seal);

	if (place && *place != departure)
		*place = departure;
}

static __always_inline bool has_egress_seal(__u64 seal)
{
	volatile const __u64 *place = egress_seal_slot(seal);
	__u64 departure = place ? *place : 0;

	return seal && !((departure ^ seal) & ~EGRESS_SEAL_TIME) &&
	       (__u16)(egress_seal_time() - (departure >> 32)) <= RETURN_TIME;
}

#endif
