// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Link is a network device with all that the kernel tells about it: what
// `ip -details`, `brctl` and `ethtool` show. It is as it was when it was read.
type Link struct {
	Device
	// Mode is how a device of its kind works: "bridge" or "vepa" for macvlan, "l2",
	// "l3" or "l3s" for ipvlan, "l2" or "l3" for netkit, "tun" or "tap" for tun,
	// the bonding mode for bond. Empty for kinds that have only one.
	Mode string
	// Settings are those that devices of its kind have, such as a VXLAN's id.
	Settings []Setting
	// Port are the device's settings as a port of a bridge; nil if it is none.
	Port []Setting
	// OperState is the kernel's word for the state: up, down, unknown,
	// lower-layer-down, dormant, testing or not-present.
	OperState string
	// Carrier is whether the device could send, if it were set up.
	Carrier bool
	// Qdisc is the name of the root queueing discipline.
	Qdisc string
	// TxQueues and RxQueues are how many queues there are, QueueLength is how many
	// packets wait in one at most.
	TxQueues, RxQueues, QueueLength int
	// GSOMaxSize is the largest packet in bytes that the stack hands to the device.
	GSOMaxSize int
	// Alias is a text that somebody gave the device.
	Alias string
	// Hardware is what ethtool tells.
	Hardware Hardware
	// Programs are the eBPF programs that netlink tells of: XDP, and classic tc
	// filters. Those of tcx and netkit are not among them.
	Programs []ProgramRef

	// Master is the name of the device that this one is a port of; or empty.
	Master string
	// Peer is the other end of a veth or netkit device; or nil.
	Peer *End
	// Parent is the device that this one sits on; or nil.
	Parent *End
	// Children are the devices in other namespaces that sit on this one.
	Children []End
}

// Setting is one property of a device: a bool, an int or a string.
type Setting struct {
	Name  string
	Value any
}

// ProgramRef is an eBPF program at a place on a device.
type ProgramRef struct {
	// Hook is the place, such as "xdp", "tc ingress" or "tc egress".
	Hook string
	// ID is the kernel's number of the program.
	ID uint32
}

// End is a device that another one is joined to.
type End struct {
	// Name is the device's; empty if it can't be seen from here.
	Name string
	// Kind is the device's kind as in Device; empty if it can't be seen.
	Kind string
	// Mode is as in Link.
	Mode string
	// Index is the device's in its namespace.
	Index int
	// Master is the name of what the device is a port of; or empty.
	Master string
	// Place is the namespace that the device is in; nil if it is the same one.
	Place *Place
}

// newLink describes a link without what other questions to the kernel tell.
func newLink(raw rawLink) Link {
	attrs := raw.link.Attrs()
	l := Link{
		Device:      newDevice(raw.link),
		OperState:   attrs.OperState.String(),
		Carrier:     attrs.RawFlags&unix.IFF_LOWER_UP != 0,
		Qdisc:       raw.text(unix.IFLA_QDISC),
		TxQueues:    attrs.NumTxQueues,
		RxQueues:    attrs.NumRxQueues,
		QueueLength: attrs.TxQLen,
		GSOMaxSize:  int(attrs.GSOMaxSize),
		Alias:       attrs.Alias,
	}
	// What the kernel knows no id for, it says as -1, in 32 bits.
	l.PeerNSID = int(int32(l.PeerNSID))
	// A VXLAN device names the device below it by itself.
	if vxlan, ok := raw.link.(*netlink.Vxlan); ok && l.ParentIndex == 0 {
		l.ParentIndex = vxlan.VtepDevIndex
	}
	l.Mode, l.Settings = describe(raw)
	l.Port = raw.port()
	if xdp := attrs.Xdp; xdp != nil && xdp.Attached && xdp.ProgId != 0 {
		l.Programs = append(l.Programs, ProgramRef{Hook: "xdp", ID: xdp.ProgId})
	}
	return l
}
