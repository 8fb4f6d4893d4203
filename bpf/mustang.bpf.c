// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

/*
 * Services and local delivery for pods. from_pod sees what leaves a pod, to_pod what goes into one. On the host's side of
 * a pod's link that is ingress and egress, on the pod's own device egress and ingress; so neither name says a direction.
 */

#include "mustang/handle.h"
#include "mustang/uplink.h"

SEC("tc")
int from_pod(struct __sk_buff *skb)
{
	struct metrics *row = metrics_row();

	if (!row)
		return VERDICT_NEXT;
	row->count[METRIC_FROM_POD]++;
	return handle_from_pod(skb, row);
}

SEC("tc")
int to_pod(struct __sk_buff *skb)
{
	struct metrics *row = metrics_row();

	if (!row)
		return VERDICT_NEXT;
	row->count[METRIC_TO_POD]++;
	return handle_to_pod(skb, row);
}

/* Sees what comes from outside, on a device of the host's own. */
SEC("tc")
int from_uplink(struct __sk_buff *skb)
{
	struct metrics *row = metrics_row();

	if (!row)
		return VERDICT_NEXT;
	row->count[METRIC_FROM_UPLINK]++;
	return handle_from_uplink(skb, row);
}

/* Sees what goes outside. */
SEC("tc")
int to_uplink(struct __sk_buff *skb)
{
	struct metrics *row = metrics_row();

	if (!row)
		return VERDICT_NEXT;
	row->count[METRIC_TO_UPLINK]++;
	return handle_to_uplink(skb, row);
}

/* Keeps in the type information, for Go, what no map has. Nothing reads it. */
struct names {
	enum metric metric;
	enum connection_flag connection_flag;
	enum endpoint_flag endpoint_flag;
	enum service_flag service_flag;
	enum side side;
};

const volatile struct names names SEC(".rodata");

char _license[] SEC("license") = "Dual BSD/GPL";
