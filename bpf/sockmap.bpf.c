// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

/*
 * Joins the TCP sockets of a machine's processes: join adds each established socket to a table, and pass hands the data that
 * a socket sends to the socket at the other end, if that is in the table too. Such data passes no device, guard or policy.
 * For comparison only, by a lab: the datapath does not use it.
 */

#include "mustang/kernel.h"

#define AF_INET 2 /* of the kernel's include/linux/socket.h */

struct end {
	__u32 local[4], remote[4]; /* IPv4 in the first word, the others 0 */
	__u32 local_port, remote_port;
	__u32 family;
};

_Static_assert(sizeof(struct end) == 44, "hidden padding");

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 65536);
	__type(key, struct end);
	__type(value, __u64);
} joined SEC(".maps");

/* A field of a context. Else one load serves for two fields, from an address in a register, which the verifier refuses. */
#define LOAD(context, field)                                                                                           \
	({                                                                                                             \
		__u32 value = (context)->field;                                                                        \
		asm volatile("" : "+r"(value));                                                                        \
		value;                                                                                                 \
	})

#define LOAD_END(end, context)                                                                                         \
	do {                                                                                                           \
		(end)->family = LOAD(context, family);                                                                 \
		(end)->local_port = LOAD(context, local_port);                                                         \
		(end)->remote_port = bpf_ntohl(LOAD(context, remote_port));                                            \
		if ((end)->family == AF_INET) {                                                                        \
			(end)->local[0] = LOAD(context, local_ip4);                                                    \
			(end)->remote[0] = LOAD(context, remote_ip4);                                                  \
		} else {                                                                                               \
			(end)->local[0] = LOAD(context, local_ip6[0]);                                                 \
			(end)->local[1] = LOAD(context, local_ip6[1]);                                                 \
			(end)->local[2] = LOAD(context, local_ip6[2]);                                                 \
			(end)->local[3] = LOAD(context, local_ip6[3]);                                                 \
			(end)->remote[0] = LOAD(context, remote_ip6[0]);                                               \
			(end)->remote[1] = LOAD(context, remote_ip6[1]);                                               \
			(end)->remote[2] = LOAD(context, remote_ip6[2]);                                               \
			(end)->remote[3] = LOAD(context, remote_ip6[3]);                                               \
		}                                                                                                      \
	} while (0)

SEC("sockops")
int join(struct bpf_sock_ops *ops)
{
	struct end key = {};

	if (ops->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB && ops->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		return 1;
	LOAD_END(&key, ops);
	bpf_sock_hash_update(ops, &joined, &key, BPF_ANY);
	return 1;
}

/* The counters of a socket that tell whether data has left it by TCP, or is about to. */
struct tcp_sock {
	__u32 data_segs_out, write_seq, snd_nxt;
} __attribute__((preserve_access_index));

SEC("sk_msg")
int pass(struct sk_msg_md *msg)
{
	struct tcp_sock *tcp = (struct tcp_sock *)bpf_skc_to_tcp_sock(msg->sk);
	struct end own = {}, peer = {};

	/* A stream that has begun by TCP, as the peer was not in the table yet, goes on by TCP: later data would overtake it. */
	if (!tcp || tcp->data_segs_out || tcp->write_seq != tcp->snd_nxt)
		return SK_PASS;
	LOAD_END(&own, msg);
	__builtin_memcpy(peer.local, own.remote, sizeof(peer.local));
	__builtin_memcpy(peer.remote, own.local, sizeof(peer.remote));
	peer.local_port = own.remote_port;
	peer.remote_port = own.local_port;
	peer.family = own.family;
	bpf_msg_redirect_hash(msg, &joined, &peer, BPF_F_INGRESS);
	return SK_PASS; /* by TCP, if the peer is not in the table */
}

char _license[] SEC("license") = "Dual BSD/GPL";
