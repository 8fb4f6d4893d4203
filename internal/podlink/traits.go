// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"mustang/internal/ovs"
)

// Traits are the facts about a link mode that other packages decide by. None of them compares the names of modes.
type Traits struct {
	// Needs is the requirement besides a host and a pod.
	Needs Need
	// HostSide is true if each pod has a device on the host, where programs attach and which all of the pod's packets
	// cross, unless a program redirects them. Otherwise programs attach to the pod's own device.
	HostSide bool
	// Routed is true if the host routes all packets of a pod, those to pods of the same network included. Otherwise
	// pods of one network reach each other directly.
	Routed bool
	// Switched is true if the pods and the host are neighbours on one network, where a router other than the host can
	// be the gateway (Network.Routers).
	Switched bool
	// Layer3 is true if the pods' devices have no neighbours: they neither send nor answer ARP and neighbour discovery.
	// Relays of such devices carry IP packets (TUN), those of others Ethernet frames (TAP).
	Layer3 bool
	// Bridge is true if the pods' links are ports of Network.Bridge: a bridge of Open vSwitch in modes with
	// NeedsOpenVSwitch, a Linux bridge in others. Such networks can have a VXLAN tunnel and an uplink port.
	Bridge bool
	// NetfilterCall is true if Network.NetfilterCall has an effect.
	NetfilterCall bool
	// HostDevice is the host's own device among the pods, with the gateways' addresses: the bridge (DefaultBridge), or
	// a device on the uplink. It is empty in Routed modes, whose gateways' addresses are on the loopback device.
	// Packets between two pods do not cross it.
	HostDevice string
	// ReceiveOnUplink is true if the host receives packets of pods on the uplink itself, and only sends on HostDevice.
	ReceiveOnUplink bool
	// UplinkSibling is true if on an uplink of the same kind the kernel attaches the pods' devices to the uplink's own
	// parent, so that their packets do not cross the uplink.
	UplinkSibling bool
	// Delivery is the way in which the eBPF programs deliver packets to another pod of the host. See
	// [Traits.DeliveryOn] for Open vSwitch.
	Delivery Delivery
	// BigTCP is true if Network.BigTCP has an effect: no program in user space reads the packets.
	BigTCP bool
	// DHCP is true if a pod can ask a DHCP server on its network for addresses: its device has a MAC address of its own
	// and is usable before it has IP addresses.
	DHCP bool
	// Guests is true if a pod can lack a namespace and bring its own end of the link, as VMs do. GuestsOnly is true if
	// every pod must.
	Guests, GuestsOnly bool
	// AutoRank is the mode's rank among those that an automatic choice tries, 1 first; 0 excludes it. These need only
	// the kernel, and the first has the least work per packet (docs/performance.md, table of instructions, with eBPF).
	AutoRank int
	// ResultLink is the name of the mode in result files. Modes that differ in the switch, and not in the pod's link,
	// share one.
	ResultLink string
}

// Need is a requirement of a link mode.
type Need int

// Requirements of link modes, besides a host and a pod.
const (
	// NeedsNothing besides.
	NeedsNothing Need = iota
	// NeedsUplink is for modes whose devices sit on Network.Uplink.
	NeedsUplink
	// NeedsOpenVSwitch is for modes that attach pods to a running Open vSwitch, with its database at Network.OVSDB.
	NeedsOpenVSwitch
	// NeedsRelay is for modes in which a program relays packets between the device on the host and the one in the pod.
	// It must open both (TUNSETIFF, each in its namespace) after Create; until then they have no carrier.
	NeedsRelay
)

// Delivery is a way in which an eBPF program on a pod's link delivers a packet to another pod of the same host.
type Delivery int

// Ways of delivery.
const (
	// DeliverByMAC lets the packet continue in the pods' network with the MAC address of the other pod.
	DeliverByMAC Delivery = iota
	// DeliverToPeer redirects it from the host's device of one pod into the other pod (bpf_redirect_peer): the sender's
	// device counts it as received, and no device of the host as sent.
	DeliverToPeer
	// DeliverToHostDevice redirects it from the host's device of one pod to that of the other (bpf_redirect).
	DeliverToHostDevice
	// DeliverFromPeer does the same before the host's device of the sender receives it (netkit): only the other pod's
	// device counts it, as sent.
	DeliverFromPeer
)

// DeliveryOn returns the way of delivery on a datapath of Open vSwitch (ovs.Kernel or ovs.UserSpace), or without one if
// datapath is empty. A switch in user space receives packets before programs on the host's devices could redirect them,
// so programs attach to the pods' own devices there.
func (t Traits) DeliveryOn(datapath string) Delivery {
	if datapath == ovs.UserSpace {
		return DeliverByMAC
	}
	return t.Delivery
}
