/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_REMOTE_H
#define MUSTANG_REMOTE_H

#include "pod.h"

/*
 * Packets between pods of two nodes, past the stacks of both hosts: as they are, or in VXLAN (RFC 7348). Both nodes lower the TTL, as
 * routers. What is not TCP, UDP or SCTP, in fragments, too large or with IP options is left to the kernel's routes and VXLAN
 * device, and so is all that calls for an answer of a router.
 */

#define VXLAN_FLAGS bpf_htonl(0x08000000) /* the VNI is valid */
#define VXLAN_TTL 64
#define DHCP_CLIENT 68

/* Flags of bpf_skb_adjust_room() since Linux 6.3, which <linux/bpf.h> of older distributions lacks. */
#define ADJ_ROOM_DECAP_L3_IPV4 (1ULL << 7)
#define ADJ_ROOM_DECAP_L3_IPV6 (1ULL << 8)

#define ECN_MASK 3
#define ECN_CE 3

/* The headers of UDP and VXLAN, which have no options, and those with the inner Ethernet header. */
#define TUNNEL_BYTES (sizeof(struct udphdr) + 8)
#define TUNNEL_ETHER_BYTES (TUNNEL_BYTES + sizeof(struct ethhdr))

static __always_inline __u32 ip_bytes(bool v6)
{
	return v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
}

/* The TTL of a packet in the low byte, its traffic class in the next one; 0: the header is not linear. */
static __always_inline __u32 ttl_and_class(struct __sk_buff *skb, const struct packet *packet)
{
	const struct ipv6hdr *ip6;
	const struct iphdr *ip;

	if (packet->v6) {
		ip6 = header_at(skb, packet->l3, sizeof(*ip6));
		return ip6 ? (bpf_ntohl(*(const __be32 *)ip6) >> 20 & 0xff) << 8 | ip6->hop_limit : 0;
	}
	ip = header_at(skb, packet->l3, sizeof(*ip));
	return ip ? ip->tos << 8 | ip->ttl : 0;
}

/* Whether a packet may pass the stack: a router would only lower its TTL. */
static __always_inline bool is_plain(struct __sk_buff *skb, const struct packet *packet)
{
	return packet->traits & TRAIT_PORTS && !(packet->traits & (TRAIT_FIRST_FRAGMENT | TRAIT_LATER_FRAGMENT)) &&
	       packet->l4 == packet->l3 + ip_bytes(packet->v6) && (ttl_and_class(skb, packet) & 0xff) > 1;
}

/* Whether a packet, with the headers of the tunnel, fits into the network that leads to the node. */
static __always_inline bool fits_remote(struct __sk_buff *skb, const struct packet *packet, const struct remote *remote)
{
	__u32 more = ip_bytes(true) + TUNNEL_ETHER_BYTES, size = skb->len - packet->l3;

	if (skb->gso_size) {
		/* The segments of SCTP have no common size. The fields of outer headers have no room for BIG TCP. */
		if (packet->tuple.proto == IPPROTO_SCTP || (remote->flags & REMOTE_TUNNEL && size + more > 0xffff))
			return false;
		size = segment_size(skb, packet);
	}
	return size && size <= remote->mtu;
}

/*
 * The source port of a tunnelled packet, before it has outer headers: the port of the kernel's device (udp_flow_src_port) in Linux' usual
 * range, or packets of one flow could overtake each other.
 */
static __always_inline __u32 tunnel_sport(struct __sk_buff *skb)
{
	__u32 hash = bpf_get_hash_recalc(skb);

	hash ^= hash << 16;
	return 32768 + ((__u64)hash * (60999 - 32768) >> 32);
}

/* Writes the headers of a tunnel between Ethernet header and packet, and the inner Ethernet header. ecn: that of the packet (RFC 6040). */
static __always_inline int write_outer(struct __sk_buff *skb, const struct packet *packet, const struct remote *remote,
				       __u32 ecn, __u32 sport)
{
	const struct node_state *node = node_state_row();
	bool v6 = remote->flags & REMOTE_V6;
	__u32 bytes = skb->len - sizeof(struct ethhdr) - ip_bytes(v6);
	__be32 *at = header_at(skb, sizeof(struct ethhdr), ip_bytes(v6) + TUNNEL_ETHER_BYTES);

	if (!at || !node)
		return -1;
	if (v6) {
		at[0] = bpf_htonl(6 << 28 | ecn << 20);
		at[1] = bpf_htonl(bytes << 16 | IPPROTO_UDP << 8 | VXLAN_TTL);
		for (int i = 0; i < 4; i++) {
			at[2 + i] = remote->local.words[i];
			at[6 + i] = remote->node.words[i];
		}
		at += 10;
	} else {
		at[0] = bpf_htonl(0x45000000 | ecn << 16 | (bytes + sizeof(struct iphdr)));
		at[1] = bpf_htonl(bpf_get_prandom_u32()
				  << 16); /* a router may make fragments, as of what the device sends */
		at[2] = bpf_htonl(VXLAN_TTL << 24 | IPPROTO_UDP << 16);
		at[3] = remote->local.words[3];
		at[4] = remote->node.words[3];
		((struct iphdr *)at)->check = checksum_add(0xffff, bpf_csum_diff(NULL, 0, at, sizeof(struct iphdr), 0));
		at += 5;
	}
	at[0] = bpf_htonl(sport << 16 | bpf_ntohs(node->tunnel_port));
	at[1] = bpf_htonl(bytes << 16); /* no checksum: the inner one protects what matters (RFC 6935) */
	at[2] = VXLAN_FLAGS;
	at[3] = node->tunnel_vni;
	mac_copy((__u8 *)(at + 4), remote->node_mac);
	mac_copy((__u8 *)(at + 4) + ETH_ALEN, remote->local_mac);
	*(__be16 *)((__u8 *)(at + 4) + 2 * ETH_ALEN) = bpf_htons(packet->v6 ? ETH_P_IPV6 : ETH_P_IP);
	return 0;
}

/* Puts a packet into a tunnel. -1: it stays as it is, unless packet->l3 is 0. */
static __always_inline int enter_tunnel(struct __sk_buff *skb, struct packet *packet, const struct remote *remote)
{
	bool v6 = remote->flags & REMOTE_V6;
	__u32 more = ip_bytes(v6) + TUNNEL_ETHER_BYTES, ecn = ttl_and_class(skb, packet) >> 8 & ECN_MASK;
	__u32 sport = tunnel_sport(skb);
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L4_UDP | BPF_F_ADJ_ROOM_ENCAP_L2_ETH |
		      BPF_F_ADJ_ROOM_ENCAP_L2(sizeof(struct ethhdr));

	flags |= v6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4;
	if (bpf_skb_adjust_room(skb, more, BPF_ADJ_ROOM_MAC, flags))
		return -1;
	packet->l3 = write_outer(skb, packet, remote, ecn, sport) ? 0 : packet->l3 + more;
	return packet->l3 ? 0 : -1;
}

/*
 * Whether the program at the uplink delivers to a path: all of a flow passes the stack, or nothing, as connection tracking of the
 * host may drop what it takes for half a flow. The kernel takes a GSO packet for one in a tunnel still, which a device of the
 * host could send in pieces.
 */
static __always_inline bool is_reached(__u32 path_flags, bool tunnelled)
{
	return path_flags & (tunnelled ? ENDPOINT_PEER : ENDPOINT_PEER | ENDPOINT_EGRESS);
}

/* The flags of the path to an address; 0: no pod of this node has it. */
static __always_inline __u32 path_flags_of(const union addr *addr)
{
	const struct ep_path *path = endpoint_path(addr);

	return path ? path->flags : 0;
}

/* Sends a packet of a pod to the node that has the receiver. False: it stays as it is, for the kernel. */
static __noinline int send_to_remote(struct __sk_buff *skb, struct packet *packet, const union addr *to)
{
	__u32 back = path_flags_of(&packet->tuple.saddr);
	const struct remote *remote = remote_of(to);

	if (!remote || !is_reached(back, remote->flags & REMOTE_TUNNEL) || !is_plain(skb, packet) ||
	    !fits_remote(skb, packet, remote))
		return ACTION_NEXT;
	if (remote->flags & REMOTE_TUNNEL && enter_tunnel(skb, packet, remote))
		return packet->l3 ? ACTION_NEXT : ACTION_DROP;
	lower_ttl(skb, packet);
	struct bpf_redir_neigh hop = { .nh_family = remote->flags & REMOTE_V6 ? FAMILY_IPV6 : FAMILY_IPV4 };

	for (int i = 0; i < 4; i++)
		hop.ipv6_nh[i] = remote->next_hop.words[i];
	if (!(remote->flags & REMOTE_V6))
		hop.ipv4_nh = remote->next_hop.words[3];
	skb->tc_index = DELIVERED;
	return bpf_redirect_neigh(remote->ifindex, &hop, sizeof(hop), 0);
}

/* Sends what leaves a pod to its next hop: for the pods of other nodes, past the host's stack. */
static __always_inline int deliver_from_pod(struct __sk_buff *skb, struct packet *packet, const struct decision *d,
					    struct metrics *row)
{
	const struct node_state *node = node_state_row();
	const union addr *to = &packet->tuple.daddr;
	int action;

	if (config.attach_point != ATTACH_HOST && config.attach_point != ATTACH_NETKIT)
		return deliver(skb, d, row);
	if (packet->traits & TRAIT_FOREIGN || !node || !node->remotes || next_hop_of(d->ct, d->path) != NEXT_HOP_STACK)
		return deliver(skb, d, row);
	if (d->ct && d->verdict == VERDICT_TRANSLATE)
		to = &d->ct->to.daddr;
	action = send_to_remote(skb, packet, to);
	if (action == ACTION_NEXT)
		return deliver_to_stack(skb, d, row);
	if (action == ACTION_DROP)
		return drop(skb, row, DROP_REWRITE);
	row->count[METRIC_TO_REMOTE]++;
	return action;
}

/* Whether a packet, which another node may have sent, has a pod of this node as its receiver that the program can deliver to. */
static __always_inline bool is_deliverable(struct __sk_buff *skb, const struct packet *packet, bool tunnelled)
{
	/* The kernel still takes GSO packets for tunnelled, and drops UDP ones when it splits them for a socket. */
	if (tunnelled && skb->gso_size && packet->tuple.proto == IPPROTO_UDP)
		return false;
	return is_plain(skb, packet) && packet->tuple.dport != bpf_htons(DHCP_CLIENT) &&
	       is_reached(path_flags_of(&packet->tuple.daddr), tunnelled);
}

/* Whether the device still has to complete a checksum that is not the packet's own, but the tunnel's. */
static __always_inline bool needs_outer_checksum(struct __sk_buff *skb, const struct packet *packet)
{
	const struct sk_buff *kernel = kernel_packet(skb);

	return checksum_state(skb) == CHECKSUM_PARTIAL &&
	       kernel->csum_start != (__u64)kernel->data - (__u64)kernel->head + packet->l4;
}

/* Parses a packet in the tunnel. False: it is not one of the other node's pods to a pod of this node. */
static __always_inline bool parse_tunnelled(struct __sk_buff *skb, const struct packet *outer, struct packet *packet)
{
	const struct ethhdr *eth;

	if (skb->data_end - skb->data < skb->len)
		bpf_skb_pull_data(skb, skb->len < LINEAR_BYTES ? skb->len : LINEAR_BYTES);
	eth = header_at(skb, outer->l4 + TUNNEL_BYTES, sizeof(*eth));
	if (!eth)
		return false;
	__builtin_memset(packet, 0, sizeof(*packet));
	packet->l4 = outer->l4 + TUNNEL_ETHER_BYTES;
	if (eth->h_proto == bpf_htons(ETH_P_IP) ? parse_ipv4(skb, packet)
						: eth->h_proto != bpf_htons(ETH_P_IPV6) || parse_ipv6(skb, packet))
		return false;
	return parse_transport(skb, packet) == PARSE_IP;
}

/* Whether a packet to this node is in the tunnel. */
static __always_inline bool is_in_tunnel(struct __sk_buff *skb, const struct packet *outer,
					 const struct node_state *node)
{
	const __be32 *at;

	if (outer->tuple.proto != IPPROTO_UDP || outer->tuple.dport != node->tunnel_port || !is_plain(skb, outer))
		return false;
	at = header_at(skb, outer->l4, TUNNEL_BYTES);
	/* The checksum need not be verified (RFC 7348, section 5). */
	return at && bpf_ntohl(at[1]) >> 16 == skb->len - outer->l4 && at[2] == VXLAN_FLAGS &&
	       at[3] == node->tunnel_vni;
}

/* Takes a packet out of the tunnel. False: it stays as it is. */
static __always_inline bool leave_tunnel(struct __sk_buff *skb, const struct packet *outer, struct packet *packet)
{
	__u32 less = packet->l3 - outer->l3;
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	bool checked = bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) > 0;
	struct ethhdr *eth;

	if (checked)
		flags |= BPF_F_ADJ_ROOM_NO_CSUM_RESET;
	if (outer->v6 != packet->v6)
		flags |= packet->v6 ? ADJ_ROOM_DECAP_L3_IPV6 : ADJ_ROOM_DECAP_L3_IPV4;
	if (bpf_skb_adjust_room(skb, -(__s32)less, BPF_ADJ_ROOM_MAC, flags))
		return false;
	if (checked)
		bpf_csum_level(skb, BPF_CSUM_LEVEL_DEC);
	packet->l3 -= less;
	packet->l4 -= less;
	eth = header_at(skb, 0, sizeof(*eth));
	if (eth)
		eth->h_proto = bpf_htons(packet->v6 ? ETH_P_IPV6 : ETH_P_IP);
	return true;
}

/* Takes a packet for a pod of this node out of the tunnel: *packet is then that one. */
static __always_inline int receive_tunnelled(struct __sk_buff *skb, struct packet *packet)
{
	__u32 outer_ecn = ttl_and_class(skb, packet) >> 8 & ECN_MASK, ecn;
	struct packet *inner = quote_row();
	const struct remote *remote;

	if (!inner || !parse_tunnelled(skb, packet, inner) || !is_deliverable(skb, inner, true))
		return false;
	remote = remote_of(&inner->tuple.saddr);
	if (!remote || !(remote->flags & REMOTE_TUNNEL) || !addr_equal(&remote->node, &packet->tuple.saddr) ||
	    !addr_equal(&remote->local, &packet->tuple.daddr))
		return false;
	/* A mark of congestion goes on with the packet; the kernel has all other changes on the way (RFC 6040). */
	ecn = ttl_and_class(skb, inner) >> 8 & ECN_MASK;
	if (outer_ecn != ecn && (outer_ecn != ECN_CE || !ecn))
		return false;
	if (needs_outer_checksum(skb, inner) || !leave_tunnel(skb, packet, inner))
		return false;
	if (outer_ecn == ECN_CE)
		bpf_skb_ecn_set_ce(skb);
	*packet = *inner;
	return true;
}

/* Whether a packet that came as it is, is one of another node's pods. */
static __always_inline bool is_from_remote(struct __sk_buff *skb, const struct packet *packet)
{
	const struct remote *remote;

	if (!is_deliverable(skb, packet, false))
		return false;
	remote = remote_of(&packet->tuple.saddr);
	return remote && !(remote->flags & REMOTE_TUNNEL) && remote->ifindex == skb->ifindex;
}

/* Whether a packet that came by an uplink is one of another node's pod to a pod of this node. *packet is then without the tunnel. */
static __noinline int receive_from_remote(struct __sk_buff *skb, struct packet *packet)
{
	const struct node_state *node = node_state_row();
	bool received;

	if (!node)
		return false;
	received = is_in_tunnel(skb, packet, node) ? receive_tunnelled(skb, packet) : is_from_remote(skb, packet);
	return received && lower_ttl(skb, packet);
}

/* Delivers a packet of another node's pod, as to_pod lets it pass. */
static __always_inline int deliver_from_remote(struct __sk_buff *skb, struct packet *packet, struct decision *d,
					       struct metrics *row)
{
	row->count[METRIC_FROM_REMOTE]++;
	d->path = endpoint_path(&packet->tuple.daddr);
	decide_to_pod(skb, packet, row, d);
	return apply(skb, packet, d, row) ? deliver(skb, d, row) : ACTION_DROP;
}

static __always_inline bool has_remotes(void)
{
	const struct node_state *node = node_state_row();

	return node && node->remotes;
}

#endif
