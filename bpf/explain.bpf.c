// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

/*
 * Records what the packets of one TCP flow cross: its sockets, devices, softirqs, look-ups of routes, netfilter hooks, BPF
 * programs, and the threads that the scheduler switches to. It uses tracepoints, and hooks that other programs share: not
 * each kernel lets BPF programs trace functions.
 */

#include "mustang/consts.h"

#include <bpf/bpf_tracing.h>

#define IPV6_HEADER 40
#define VXLAN_PORT 4789

/* Numbers of softirqs. */
#define NET_TX 2
#define NET_RX 3

#define NF_ACCEPT 1

void *bpf_cast_to_kern_ctx(void *obj) __ksym;

/* The parts of the kernel's structs that are read. CO-RE fills in the offsets of the running kernel. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct ns_common {
	unsigned int inum;
};
struct net {
	struct ns_common ns;
};
typedef struct {
	struct net *net;
} possible_net_t;
struct net_device {
	int ifindex;
	possible_net_t nd_net;
};
struct sk_buff {
	struct net_device *dev;
	unsigned char *head;
	int skb_iif;
	__be16 protocol;
	__u16 network_header;
};
struct sock_common {
	__be16 skc_dport;
	__u16 skc_num;
	possible_net_t skc_net;
};
struct sock {
	struct sock_common __sk_common;
};
struct nf_hook_state {
	__u8 hook;
	struct net_device *in;
	struct net_device *out;
	struct net *net;
};
struct bpf_nf_ctx {
	const struct nf_hook_state *state;
	struct sk_buff *skb;
};
struct fib_nh_common {
	struct net_device *nhc_dev;
};
struct nsproxy {
	struct net *net_ns;
};
struct task_struct {
	struct nsproxy *nsproxy;
	int tgid;
};
#pragma clang attribute pop

/* The contents of an event. */
enum kind {
	KIND_SEND = 1,    /* a thread sends */
	KIND_SENT,        /* it has sent */
	KIND_READ,        /* it has read */
	KIND_TCP,         /* TCP has received */
	KIND_WAKE,        /* the socket has data */
	KIND_TRANSMIT,    /* at a device */
	KIND_QUEUE,       /* for NET_RX */
	KIND_RECEIVE,     /* at a device */
	KIND_ROUTE,       /* look-up of a route */
	KIND_HOOK,        /* before the functions of a netfilter hook */
	KIND_HOOK_END,    /* after them */
	KIND_PROGRAM,     /* before a BPF program */
	KIND_PROGRAM_END, /* after one that lets the packet pass */
	KIND_RAISE,
	KIND_SOFTIRQ,
	KIND_SOFTIRQ_END,
	KIND_RUN, /* a thread runs */
};

/* The end of a socket's connection. */
enum role {
	ROLE_CLIENT = 1,
	ROLE_SERVER,
};

struct event {
	__u64 time;
	__u32 head;    /* of the packet's buffer, lower half: clones share it */
	__u32 subject; /* index of the device; process that calls or runs */
	__u8 kind;
	__u8 place;  /* number of the namespace; 0 outside of any */
	__u8 detail; /* role; number of the softirq, of the hook, of the program */
	__u8 cpu;
	__u32 socket; /* its address, lower half */
};

_Static_assert(sizeof(struct event) == 24, "hidden padding");

/* The events so far. User space sets the size. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct event);
} events SEC(".maps");

/* The network namespaces of the lab by inode, with their numbers from 1. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u8);
} namespaces SEC(".maps");

/* Keeps the enum in the object's types. */
const enum kind *unused __attribute__((unused));

/* The number of events, also of events that did not fit. */
__u32 count;

/* The ports that the client connects to and the server listens on. */
const volatile __u16 ports[2];

/* The number of the program at which an instance of program_start and program_end is. */
const volatile __u8 program;

static __always_inline bool is_port(__u16 port)
{
	return port == ports[0] || port == ports[1];
}

/* The number of a namespace, 0 if it is not of the lab. */
static __always_inline __u8 place_of(const struct net *net)
{
	__u32 inode = net->ns.inum;
	__u8 *place = bpf_map_lookup_elem(&namespaces, &inode);

	return place ? *place : 0;
}

/* Adds an event with the present time and returns it; NULL if the map is full. */
static __always_inline struct event *add(enum kind kind, __u8 place, __u8 detail)
{
	__u32 at = __sync_fetch_and_add(&count, 1);
	struct event *e = bpf_map_lookup_elem(&events, &at);

	if (!e)
		return NULL;
	*e = (struct event){
		.kind = kind,
		.place = place,
		.detail = detail,
		.cpu = bpf_get_smp_processor_id(),
		.time = bpf_ktime_get_ns(),
	};
	return e;
}

/* Whether a packet has a port of the flow, or is a tunnel's (VXLAN). */
static __always_inline bool has_port(const struct sk_buff *skb)
{
	unsigned char *at = skb->head + skb->network_header;
	__be16 protocol = skb->protocol, found[2];
	__u8 header[10];
	__u32 size;

	if (bpf_probe_read_kernel(header, sizeof(header), at))
		return false;
	if (protocol == bpf_htons(ETH_P_IP)) {
		size = (header[0] & 0xf) * 4;
		protocol = header[9];
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		size = IPV6_HEADER;
		protocol = header[6];
	} else {
		return false;
	}
	if (bpf_probe_read_kernel(found, sizeof(found), at + size))
		return false;
	if (protocol == IPPROTO_UDP)
		return found[1] == bpf_htons(VXLAN_PORT);
	return protocol == IPPROTO_TCP && (is_port(bpf_ntohs(found[0])) || is_port(bpf_ntohs(found[1])));
}

/* Adds an event of a packet at a device. */
static __always_inline int packet(enum kind kind, const struct sk_buff *skb, const struct net_device *dev, __u8 detail)
{
	__u8 place = place_of(dev->nd_net.net);
	struct event *e;

	if (!place || !has_port(skb))
		return 0;
	e = add(kind, place, detail);
	if (!e)
		return 0;
	e->head = (__u64)skb->head;
	e->subject = dev->ifindex;
	return 0;
}

/* Adds an event of a socket of the flow and returns it, NULL for other sockets. */
static __always_inline struct event *socket_event(enum kind kind, const struct sock *sk)
{
	__u8 place = place_of(sk->__sk_common.skc_net.net);
	enum role role = 0;
	struct event *e;

	if (is_port(bpf_ntohs(sk->__sk_common.skc_dport)))
		role = ROLE_CLIENT;
	else if (is_port(sk->__sk_common.skc_num))
		role = ROLE_SERVER;
	e = role && place ? add(kind, place, role) : NULL;
	if (e)
		e->socket = (__u64)sk;
	return e;
}

/* Adds an event of a thread that calls a socket of the flow. */
static __always_inline int at_call(enum kind kind, const struct sock *sk)
{
	struct event *e = socket_event(kind, sk);

	if (e)
		e->subject = bpf_get_current_pid_tgid() >> 32;
	return 0;
}

static __always_inline int at_softirq(enum kind kind, __u32 vector)
{
	if (vector == NET_TX || vector == NET_RX)
		add(kind, 0, vector);
	return 0;
}

SEC("tp_btf/tcp_sendmsg_locked")
int BPF_PROG(send, const struct sock *sk)
{
	return at_call(KIND_SEND, sk);
}

/* On a kernel without the tracepoint. */
SEC("fentry/tcp_sendmsg")
int BPF_PROG(send_function, const struct sock *sk)
{
	return at_call(KIND_SEND, sk);
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(sent, const struct sock *sk, int length)
{
	return length > 0 ? at_call(KIND_SENT, sk) : 0;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(read, const struct sock *sk, int length)
{
	return length > 0 ? at_call(KIND_READ, sk) : 0;
}

/* The packet has left the device, but records the last device that received it. */
SEC("tp_btf/tcp_probe")
int BPF_PROG(tcp, const struct sock *sk, const struct sk_buff *skb)
{
	struct event *e = socket_event(KIND_TCP, sk);

	if (e) {
		e->head = (__u64)skb->head;
		e->subject = skb->skb_iif;
	}
	return 0;
}

SEC("tp_btf/sk_data_ready")
int BPF_PROG(wake, const struct sock *sk)
{
	socket_event(KIND_WAKE, sk);
	return 0;
}

SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(transmit, const struct sk_buff *skb, const struct net_device *dev)
{
	return packet(KIND_TRANSMIT, skb, dev, 0);
}

SEC("tp_btf/netif_rx")
int BPF_PROG(queue, const struct sk_buff *skb)
{
	return packet(KIND_QUEUE, skb, skb->dev, 0);
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(receive, const struct sk_buff *skb)
{
	return packet(KIND_RECEIVE, skb, skb->dev, 0);
}

SEC("tp_btf/fib_table_lookup")
int BPF_PROG(route, __u32 table, const void *flow, const struct fib_nh_common *hop, int err)
{
	__u8 place = hop ? place_of(hop->nhc_dev->nd_net.net) : 0;

	if (place || err) /* nothing tells the namespace of one that finds nothing */
		add(KIND_ROUTE, place, 0);
	return 0;
}

SEC("tp_btf/fib6_table_lookup")
int BPF_PROG(route6, const struct net *net)
{
	__u8 place = place_of(net);

	if (place)
		add(KIND_ROUTE, place, 0);
	return 0;
}

static __always_inline int at_hook(enum kind kind, struct bpf_nf_ctx *ctx)
{
	const struct nf_hook_state *state = ctx->state;
	__u8 place = place_of(state->net);
	struct event *e;

	if (!has_port(ctx->skb))
		return NF_ACCEPT;
	e = add(kind, place, state->hook);
	if (!e)
		return NF_ACCEPT;
	e->head = (__u64)ctx->skb->head;
	if (state->in)
		e->subject = state->in->ifindex;
	else if (state->out)
		e->subject = state->out->ifindex;
	return NF_ACCEPT;
}

SEC("netfilter")
int hook(struct bpf_nf_ctx *ctx)
{
	return at_hook(KIND_HOOK, ctx);
}

SEC("netfilter")
int hook_end(struct bpf_nf_ctx *ctx)
{
	return at_hook(KIND_HOOK_END, ctx);
}

static __always_inline int at_program(enum kind kind, struct __sk_buff *ctx)
{
	struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);

	packet(kind, skb, skb->dev, program);
	return ACTION_NEXT;
}

SEC("tc")
int program_start(struct __sk_buff *ctx)
{
	return at_program(KIND_PROGRAM, ctx);
}

SEC("tc")
int program_end(struct __sk_buff *ctx)
{
	return at_program(KIND_PROGRAM_END, ctx);
}

SEC("tp_btf/softirq_raise")
int BPF_PROG(raise, unsigned int vector)
{
	return at_softirq(KIND_RAISE, vector);
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(softirq, unsigned int vector)
{
	return at_softirq(KIND_SOFTIRQ, vector);
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(softirq_end, unsigned int vector)
{
	return at_softirq(KIND_SOFTIRQ_END, vector);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(run, bool preempt, const struct task_struct *prev, const struct task_struct *next)
{
	struct event *e;
	__u8 place;

	if (!next->nsproxy) /* it ends */
		return 0;
	place = place_of(next->nsproxy->net_ns);
	if (!place)
		return 0;
	e = add(KIND_RUN, place, 0);
	if (e)
		e->subject = next->tgid;
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
