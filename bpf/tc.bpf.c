// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

/*
 * Services and local delivery for packets. from_pod sees packets that leave a pod, to_pod packets that enter it: on the
 * host's side of a pod's link these are ingress and egress, on the pod's own device egress and ingress. from_uplink sees
 * packets from outside, to_uplink packets to outside. Each parses, decides and acts.
 */

#include "mustang/claims.h"
#include "mustang/crossing.h"
#include "mustang/outer.h"
#include "mustang/pod.h"
#include "mustang/reflect.h"
#include "mustang/remote.h"
#include "mustang/uplink.h"

SEC("tc")
int from_pod(struct __sk_buff *skb)
{
	struct metrics *row = metrics_row();
	struct packet packet = {};
	struct decision d = { .skb = skb };
	enum parse_result parsed;
	bool own;

	if (unlikely(!row))
		return ACTION_NEXT;
	row->count[METRIC_FROM_POD]++;
	own = has_own_source(skb);
	if (!own && !guard_passes(skb, row))
		return ACTION_DROP;
	parsed = parse_packet(skb, &packet);
	if (unlikely(parsed != PARSE_IP)) {
		seal(skb);
		if (parsed == PARSE_OTHER && policies_in_force())
			return police_stray(skb, &packet, true, row, &d);
		return handle_unparsed(skb, parsed, row);
	}
	decide_from_pod(skb, &packet, own, row, &d);
	if (unlikely(!apply(skb, &packet, &d, row)))
		return drop_or_refuse(skb, &packet, &d);
	seal(skb);
	return deliver_from_pod(skb, &packet, &d, row);
}

/* For a pod without endpoint. */
SEC("tc")
int guard(struct __sk_buff *skb)
{
	struct metrics *row = metrics_row();

	if (!row)
		return ACTION_DROP;
	row->count[METRIC_GUARD]++;
	if (!guard_passes_alone(skb, row))
		return ACTION_DROP;
	seal(skb);
	return ACTION_NEXT;
}

/* On devices of the host, for packets of pods that are on these: pods can get past the guard on their own. */
SEC("tc")
int outer_guard(struct __sk_buff *skb)
{
	struct metrics *row = metrics_row();

	if (!row)
		return ACTION_DROP;
	row->count[METRIC_OUTER_GUARD]++;
	return outer_passes(skb, row) ? ACTION_NEXT : ACTION_DROP;
}

/*
 * On devices of the host, for packets to pods. Packets from pods of another parent have lost their seal on the way through the
 * host, and outer_guard let them pass where they came in. The host's own packets are sealed too: a pod could pose as the host.
 */
SEC("tc")
int outer_seal(struct __sk_buff *skb)
{
	seal_again(skb);
	return ACTION_NEXT;
}

SEC("tc")
int to_pod(struct __sk_buff *skb)
{
	struct metrics *row = metrics_row();
	struct packet packet = {};
	struct decision d = { .skb = skb };
	enum parse_result parsed;
	bool delivered;

	if (unlikely(!row))
		return ACTION_NEXT;
	row->count[METRIC_TO_POD]++;
	if (config.attach_point == ATTACH_POD ? !may_enter(skb, row) : !may_cross(skb, row))
		return ACTION_DROP;
	delivered = is_delivered(skb, row);
	if (delivered && (config.attach_point != ATTACH_POD || !policies_in_force()))
		return ACTION_NEXT;
	parsed = parse_packet(skb, &packet);
	if (unlikely(parsed == PARSE_OTHER) && policies_in_force())
		return police_stray(skb, &packet, false, row, &d);
	if (unlikely(parsed != PARSE_IP))
		return handle_unparsed(skb, parsed, row);
	if (unlikely(delivered))
		decide_delivered(skb, &packet, row, &d);
	else
		decide_to_pod(skb, &packet, row, &d);
	return likely(apply(skb, &packet, &d, row)) ? pass(row) : ACTION_DROP;
}

/* Packets that are for no service pass, malformed ones too. */
SEC("tc")
int from_uplink(struct __sk_buff *skb)
{
	struct metrics *row = metrics_row();
	struct packet packet = {};
	struct decision d = { .skb = skb };

	if (unlikely(!row))
		return ACTION_NEXT;
	row->count[METRIC_FROM_UPLINK]++;
	if (skb->pkt_type != PACKET_HOST || parse_packet(skb, &packet) != PARSE_IP)
		return pass(row);
	if (has_remotes() && receive_from_remote(skb, &packet))
		return deliver_from_remote(skb, &packet, &d, row);
	decide_from_uplink(skb, &packet, row, &d);
	if (d.verdict == VERDICT_PASS && !d.ct)
		return pass(row);
	return apply_outside(skb, &packet, &d, row) ? deliver(skb, &d, row) : drop_or_answer(skb, &packet, &d);
}

SEC("tc")
int to_uplink(struct __sk_buff *skb)
{
	struct metrics *row = metrics_row();
	struct packet packet = {};
	struct decision d = { .skb = skb };

	if (unlikely(!row))
		return ACTION_NEXT;
	row->count[METRIC_TO_UPLINK]++;
	if (is_delivered(skb, row))
		return ACTION_NEXT;
	if (parse_packet(skb, &packet) != PARSE_IP)
		return pass(row);
	decide_to_uplink(skb, &packet, row, &d);
	return likely(apply(skb, &packet, &d, row)) ? pass(row) : ACTION_DROP;
}

/* Types that no map refers to, so that the type information has them for Go. No program reads this. */
struct enums {
	enum metric metric;
	enum drop_reason drop_reason;
	enum verdict verdict;
	enum next_hop next_hop;
	enum ct_flag ct_flag;
	enum ct_state ct_state;
	enum endpoint_flag endpoint_flag;
	enum remote_flag remote_flag;
	enum device_role device_role;
	enum sender_flag sender_flag;
	enum service_flag service_flag;
	enum backend_state backend_state;
	enum backend_flag backend_flag;
	enum owner owner;
	enum attach_point attach_point;
	enum event_kind event_kind;
	struct event event;
};

const volatile struct enums enums SEC(".rodata");

char _license[] SEC("license") = "Dual BSD/GPL";
