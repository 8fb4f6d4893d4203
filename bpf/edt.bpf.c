// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

/*
 * Limits the rate of a device. edt sets the earliest departure time (EDT) of each packet that the device sends; the device's
 * queue, fq, sends no packet before that. police drops packets that the device should not have got yet. Behind a device that
 * edt limits it drops none, until somebody removes that limit.
 */

#include "mustang/consts.h"

#define NSEC_PER_SEC 1000000000ULL

/* A token bucket for one device: all flows and CPUs share it. */
struct bucket {
	struct bpf_spin_lock lock; /* protects full; the other fields are constant */
	__u32 pad;
	__u64 rate;    /* bytes per second */
	__u64 burst;   /* ns to fill the bucket */
	__u64 horizon; /* ns that a packet may wait; packets that would wait longer are dropped */
	__u64 full;    /* monotonic time at which the bucket is full if no more packets come */
};

_Static_assert(sizeof(struct bucket) == 40, "hidden padding");

/* The bucket of the device that this instance is attached to. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bucket);
} buckets SEC(".maps");

/* The time that bytes take at the rate, in ns, rounded up so that the sum of many packets is not too fast. */
static __always_inline __u64 time_of(const struct bucket *bucket, __u32 bytes)
{
	return (bytes * NSEC_PER_SEC + bucket->rate - 1) / bucket->rate;
}

/*
 * Takes the bytes of a packet from the bucket and returns its departure time: when the bucket has them, or is full, as a
 * GSO packet may be larger than the bucket. If that is beyond the horizon, returns 0 and takes nothing.
 */
static __always_inline __u64 take(struct bucket *bucket, __u64 now, __u64 cost)
{
	__u64 need = cost < bucket->burst ? cost : bucket->burst;
	__u64 due = now, full;

	bpf_spin_lock(&bucket->lock);
	full = bucket->full > now ? bucket->full : now;
	if (full + need > now + bucket->burst)
		due = full + need - bucket->burst;
	if (due - now > bucket->horizon)
		due = 0;
	else
		bucket->full = full + cost;
	bpf_spin_unlock(&bucket->lock);
	return due;
}

/* Overwrites the departure time that a socket has set: many packets could have the same one. */
SEC("tc")
int edt(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct bucket *bucket = bpf_map_lookup_elem(&buckets, &zero);
	__u64 due;

	if (!bucket)
		return ACTION_NEXT;
	due = take(bucket, bpf_ktime_get_ns(), time_of(bucket, skb->wire_len));
	if (!due)
		return ACTION_DROP;
	skb->tstamp = due;
	return ACTION_NEXT;
}

/* Only drops: nothing queues what a device receives. */
SEC("tc")
int police(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct bucket *bucket = bpf_map_lookup_elem(&buckets, &zero);

	if (!bucket)
		return ACTION_NEXT;
	return take(bucket, bpf_ktime_get_ns(), time_of(bucket, skb->len)) ? ACTION_NEXT : ACTION_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
