// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

/*
 * Holds what a device sends to a rate, by telling of each packet when it is due. That is for queue fq, which is the
 * device's and lets none go before.
 */

#include "mustang/consts.h"

#define NSEC_PER_SEC 1000000000ULL

/* A bucket of bytes that fills at a rate, for one device: all its flows and all CPUs take from it. */
struct bucket {
	struct bpf_spin_lock lock; /* of full; the rest never changes */
	__u32 pad;
	__u64 rate;    /* bytes per second */
	__u64 burst;   /* ns that it takes to fill */
	__u64 horizon; /* ns that a packet may wait; one that had to wait longer is dropped */
	__u64 full;    /* when it will be full if nothing is taken any more, by the monotonic clock */
};

_Static_assert(sizeof(struct bucket) == 40, "no hidden padding");

/* The bucket of this instance's device. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bucket);
} buckets SEC(".maps");

/* The time that bytes take at the rate, rounded up: the sum of many must not come out too fast. */
static __always_inline __u64 time_of(const struct bucket *bucket, __u32 bytes)
{
	return (bytes * NSEC_PER_SEC + bucket->rate - 1) / bucket->rate;
}

/*
 * Takes a packet's bytes, and tells when it is due: once they are in the bucket, or it is full, since a packet that is
 * to be cut into segments may be larger. 0 if that is beyond the horizon; then nothing is taken.
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

/* The time that a socket has put on a packet counts for nothing: many could be put on the same one. */
SEC("tc")
int departure(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct bucket *bucket = bpf_map_lookup_elem(&buckets, &zero);
	__u64 due;

	if (!bucket)
		return VERDICT_NEXT;
	due = take(bucket, bpf_ktime_get_ns(), time_of(bucket, skb->wire_len));
	if (!due)
		return VERDICT_DROP;
	skb->tstamp = due;
	return VERDICT_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
