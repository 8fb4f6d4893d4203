/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_DEPARTURES_H
#define MUSTANG_DEPARTURES_H

#include "claims.h"
#include "slots.h"

/*
 * What has left for the network by a parent with a pod's address. A router may bring it back, without its seal: it then has the
 * addresses that a seal covers, within moments.
 */

#define DEPARTURES_LOG 15

/* How long it may take to come back, in units of departure_time(). */
#define RETURN_TIME 10

/*
 * Seals, with the time in place of the token, which all have. The one that is written last has the slot. Pinned with the first
 * program that is loaded: parents and entrances share it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__uint(max_entries, 1 << DEPARTURES_LOG);
	__type(key, __u32);
	__type(value, __u64);
} departures SEC(".maps");

#define DEPARTURE_TIME ((__u64)SEAL_TOKEN << 32)

/* About a second. */
static __always_inline __u16 departure_time(void)
{
	return coarse_now() >> 30;
}

static __always_inline volatile __u64 *departure_at(__u64 seal)
{
	__u32 slot = seal & ((1 << DEPARTURES_LOG) - 1);

	return bpf_map_lookup_elem(&departures, &slot);
}

static __always_inline void note_departure(__u64 seal)
{
	__u64 departure = (seal & ~DEPARTURE_TIME) | (__u64)departure_time() << 32;
	volatile __u64 *place = departure_at(seal);

	if (place && *place != departure)
		*place = departure;
}

static __always_inline bool has_departed(__u64 seal)
{
	volatile const __u64 *place = departure_at(seal);
	__u64 departure = place ? *place : 0;

	return seal && !((departure ^ seal) & ~DEPARTURE_TIME) &&
	       (__u16)(departure_time() - (departure >> 32)) <= RETURN_TIME;
}

#endif
