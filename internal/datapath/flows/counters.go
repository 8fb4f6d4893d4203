// SPDX-License-Identifier: Apache-2.0

// Package flows reads the results of the programs: translated connections, counters, events as they come.
package flows

// Counter is a count that the programs keep, summed over all CPUs, since the maps were created.
type Counter struct {
	Name    string `json:"name"` // in snake case: from_pod, forward, drop_no_backend
	Drop    bool   `json:"drop"` // whether each packet that was counted was dropped
	Packets uint64 `json:"packets"`
	Meaning string `json:"-"` // a line for people
}

// Metrics returns the names of enum metric in bpf/mustang/metrics.h, without the prefix and in lower case, with their
// meanings.
func Metrics() [][2]string {
	return [][2]string{
		{"none"},
		{"from_pod", "runs of the program"},
		{"to_pod", "runs of the program"},
		{"forward", "translated, from client to backend"},
		{"reverse", "translated, from backend to client"},
		{"new_connection", "connections that were made"},
		{"kept_connection", "repeated SYNs"},
		{"port_changed", "connections with a source port that was taken"},
		{"icmp_error", "ICMP errors translated, with what they quote"},
		{"redirect_peer", "delivered from the host's side of one pod into another"},
		{"redirect_device", "delivered out of the host's device of another pod"},
		{"l2_delivered", "sent to the MAC of another pod, from a pod's own device"},
		{"hairpin", "sent back to the pod that it came from, from the pod's own device"},
		{"delivered", "already delivered by another pod's program"},
		{"passed", "left to the kernel, or to the next program"},
		{"unknown_fragment", "later fragments that came without their first, and were not translated"},
		{"sock_connect", "connects to a service that became connects to a backend"},
		{"sock_sendmsg", "datagrams of unconnected sockets to a service that were sent to a backend"},
		{"sock_recvmsg", "datagrams of a backend that were received as the service's"},
		{"sock_getpeername", "backends that were named as the service"},
		{"sock_destroy", "connected UDP sockets that were ended because their backend was gone"},
		{"from_uplink", "runs of the program"},
		{"to_uplink", "runs of the program"},
		{"slot_reused", "closed connections whose slot or port was reused"},
		{"slot_expired", "connections evicted after expiry, or after their pod was deleted"},
		{"icmp_echo", "echo requests to services that were answered"},
		{"redirect_routed", "sent out of an uplink, to the next hop of the kernel's routes"},
		{"encapsulated", "sent in a tunnel to the node of the backend"},
		{"decapsulated", "taken out of a tunnel from the node that the client called"},
		{"tracked", "direct connections that were noted because a policy selects one of the ends"},
		{"audited", "connections that a policy denies, and that passed as policies are audited only"},
		{"guard", "runs of the program"},
		{"outer_guard", "runs of the program"},
		{"event_left_out", "events dropped above the limit per CPU"},
		{"to_remote", "sent to pods of other nodes past the stack of the host, in a tunnel or as they are"},
		{"from_remote", "of pods of other nodes, delivered past the stack of the host"},
	}
}

// Drops returns the names of enum drop_reason in bpf/mustang/metrics.h, without prefix, in lower case, with meanings.
func Drops() [][2]string {
	return [][2]string{
		{"unspecified"},
		{"malformed", "a header is cut off or contradicts itself"},
		{"extensions", "too many IPv6 extension headers"},
		{"no_backend", "the service lacks a backend"},
		{"backend_missing", "the chosen backend lacks a row in map backends"},
		{"port_exhausted", "no free source port was found"},
		{"table_full", "the connection table took no row"},
		{"rewrite", "the packet could not be written"},
		{"client_share", "the client has as many connections as its share"},
		{"no_route", "no usable route to the backend"},
		{"no_source", "the uplink to the backend lacks an address of the family"},
		{"too_big", "larger than the next network's MTU; the sender gets an ICMP error"},
		{"ttl", "TTL expired; the sender gets an ICMP error"},
		{"no_local_backend", "the policy is local, and the service's backends are on other nodes"},
		{"source_range", "the client is in none of the service's source ranges"},
		{"backend_removed", "the backend was removed, and the sender got a TCP reset"},
		{"source", "the sender may not send from this address"},
		{"source_mac", "the sender may not send from this MAC address"},
		{"neighbour", "ARP or neighbour discovery announces what is not the sender's"},
		{"ethertype", "not IP or ARP, or in a VLAN: pods send no such frames"},
		{"policy_egress", "a policy of the sender's pod denies it"},
		{"policy_ingress", "a policy of the receiver's pod denies it"},
		{"tunnel_route", "the route to the backend is a lightweight tunnel (encap), which the programs cannot enter"},
	}
}
