// SPDX-License-Identifier: Apache-2.0

// Package linkinfo describes the network devices of a namespace, as `ip -details` does.
package linkinfo

import (
	"fmt"
	"slices"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/rtnl"
)

// Link is a snapshot of a network device.
type Link struct {
	rtnl.Device `json:"-"`
	// Mode is the mode of a device: "bridge" or "vepa" for macvlan, "l2", "l3" or "l3s" for ipvlan, "l2" or "l3" for
	// netkit, "tun" or "tap" for tun, the bonding mode for bond. Empty for kinds without modes.
	Mode     string    `json:"mode,omitempty"`
	Settings []Setting `json:"-"` // specific to the kind, such as a VXLAN's id
	Port     []Setting `json:"-"` // the settings of a bridge port; nil for other devices
	// OperState is the kernel's operational state: up, down, unknown, lower-layer-down, dormant, testing or not-present.
	OperState string `json:"operstate"`
	Carrier   bool   `json:"carrier"` // whether the device has a carrier
	Qdisc     string `json:"qdisc"`   // the name of the root queueing discipline
	// TxQueues and RxQueues are the numbers of queues, QueueLength is the maximum number of packets in one.
	TxQueues    int `json:"tx_queues"`
	RxQueues    int `json:"rx_queues"`
	QueueLength int `json:"queue_length"`
	// GSOMaxSize is the size in bytes of the largest packet that the stack passes to the device.
	GSOMaxSize int      `json:"gso_max_size"`
	Alias      string   `json:"alias,omitempty"`    // the text that an administrator set
	AltNames   []string `json:"altnames,omitempty"` // the alternative names, which commands take as well
	Hardware   Hardware `json:"-"`                  // the information of ethtool
	// Programs are the eBPF programs on it. Links finds only programs that netlink reports, with hook and id: XDP and
	// classic tc filters, not tcx and netkit.
	Programs []Program `json:"programs"`

	Master string `json:"master,omitempty"` // the name of the bridge or bond that the device is a port of, or empty
	Peer   *Peer  `json:"peer,omitempty"`   // the other end of a veth or netkit device; or nil
	Parent *Peer  `json:"parent,omitempty"` // the device below a macvlan, ipvlan, VLAN or VXLAN device, or nil
	// Children are the devices in other namespaces whose parent is this one.
	Children []Peer `json:"children,omitempty"`
}

// Setting is one property of a device: a bool, an int or a string.
type Setting struct {
	Name  string
	Value any
}

// Peer is a device that another device is joined to.
type Peer struct {
	Name   string `json:"name,omitempty"`   // the device's; empty if it can't be seen from here
	Index  int    `json:"index"`            // the device's in its namespace
	Kind   string `json:"kind,omitempty"`   // the device's kind as in Device; empty if it can't be seen
	Mode   string `json:"mode,omitempty"`   // as in Link
	Master string `json:"master,omitempty"` // the name of the device's master; or empty
	// Namespace is the namespace that the device is in; nil if it is the same one.
	Namespace *NamespaceInfo `json:"namespace,omitempty"`
}

// NamespaceInfo identifies a network namespace for people.
type NamespaceInfo struct {
	// Name is the namespace's name below netns.Directory, "root" for the namespace of process 1, or empty.
	Name      string `json:"name"`
	PID       int    `json:"pid,omitempty"`       // the lowest process id in the namespace; 0 if there is none
	Command   string `json:"command,omitempty"`   // the name of that process
	Container string `json:"container,omitempty"` // the container id of that process, or empty
	// Inode identifies the namespace among existing ones; 0 if it can't be opened.
	Inode uint64 `json:"inode,omitempty"`
	NSID  int    `json:"-"` // the namespace's netnsid in the namespace that was listed; -1 if it lacks one
}

// RootName is the NamespaceInfo.Name of process 1's namespace.
const RootName = "root"

// String returns the best available name.
func (p NamespaceInfo) String() string {
	switch {
	case p.Name != "":
		return p.Name
	case p.Container != "":
		return fmt.Sprintf("container %.12s (pid %d)", p.Container, p.PID)
	case p.PID != 0:
		return fmt.Sprintf("pid %d (%s)", p.PID, p.Command)
	case p.NSID >= 0:
		return fmt.Sprintf("nsid %d", p.NSID)
	}
	return fmt.Sprintf("inode %d", p.Inode)
}

// Program is an eBPF program attached to a link.
type Program struct {
	Hook string `json:"hook"` // the attach point, such as "tcx ingress", "netkit peer" or "xdp"
	// ID is the kernel's id of the program, Name and Tag are the kernel's too. They are empty if the program is gone.
	ID      uint32 `json:"id"`
	Name    string `json:"name"`
	Tag     string `json:"tag,omitempty"`
	LinkID  uint32 `json:"link_id,omitempty"` // the id of the bpf_link that holds the program; 0 without one
	Mustang bool   `json:"mustang"`           // true for programs of this project's datapaths
}

// newLink converts a link, without what takes further requests. The library omits some attributes of its message.
func newLink(link netlink.Link, attributes map[uint16][]byte) Link {
	attrs, info := link.Attrs(), attributesOf(attributes[unix.IFLA_LINKINFO])
	l := Link{
		Device:      rtnl.DescribeLink(link),
		OperState:   attrs.OperState.String(),
		Carrier:     attrs.RawFlags&unix.IFF_LOWER_UP != 0,
		Qdisc:       unix.ByteSliceToString(attributes[unix.IFLA_QDISC]),
		TxQueues:    attrs.NumTxQueues,
		RxQueues:    attrs.NumRxQueues,
		QueueLength: attrs.TxQLen,
		GSOMaxSize:  int(attrs.GSOMaxSize),
		Programs:    []Program{},
		Alias:       attrs.Alias,
		AltNames:    attrs.AltNames,
	}
	if attrs.TSOMaxSize > rtnl.PacketBytes {
		l.Hardware.Offloads = map[string]bool{"big-tcp": attrs.GSOIPv4MaxSize > rtnl.PacketBytes}
	}
	// The kernel encodes a missing id as -1, in 32 bits.
	l.PeerNSID = int(int32(l.PeerNSID))
	if vxlan, ok := link.(*netlink.Vxlan); ok && l.ParentIndex == 0 {
		l.ParentIndex = vxlan.VtepDevIndex
	}
	l.Mode, l.Settings = describe(link, attributesOf(info[vnl.IFLA_INFO_DATA]))
	if unix.ByteSliceToString(info[vnl.IFLA_INFO_SLAVE_KIND]) == "bridge" {
		l.Port = read(portAttributes, attributesOf(info[vnl.IFLA_INFO_SLAVE_DATA]))
	}
	if xdp := attrs.Xdp; xdp != nil && xdp.Attached && xdp.ProgId != 0 {
		l.Programs = append(l.Programs, Program{Hook: "xdp", ID: xdp.ProgId})
	}
	return l
}

// addFilters adds the eBPF programs of classic tc filters (clsact or ingress qdisc); none if the device is gone.
func (l *Link) addFilters(handle *netlink.Handle) {
	device := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: l.Index}}
	for _, at := range []struct {
		hook   string
		parent uint32
	}{{"tc ingress", netlink.HANDLE_MIN_INGRESS}, {"tc egress", netlink.HANDLE_MIN_EGRESS}} {
		filters, _ := rtnl.Dump(func() ([]netlink.Filter, error) { return handle.FilterList(device, at.parent) })
		for _, filter := range filters {
			if bpf, ok := filter.(*netlink.BpfFilter); ok {
				l.Programs = append(l.Programs, Program{Hook: at.hook, ID: uint32(bpf.Id)})
			}
		}
	}
}

func linkAt(links []Link, index int) *Link {
	if i := slices.IndexFunc(links, func(l Link) bool { return l.Index == index }); i >= 0 {
		return &links[i]
	}
	return nil
}

func nameOf(links []Link, index int) string {
	if l := linkAt(links, index); l != nil {
		return l.Name
	}
	return ""
}

// SpeedUnknown is the speed of a device without a meaningful speed at the moment.
const SpeedUnknown = -1

// Hardware is the information of ethtool about a device; zero where the device reports nothing. The speeds of virtual
// devices are fictitious and do not limit them.
type Hardware struct {
	Speed int `json:"-"` // the nominal speed in Mbit/s, SpeedUnknown, or 0 if the device does not report one
	// Duplex is "full", "half" or "unknown"; or empty.
	Duplex string `json:"duplex,omitempty"`
	Driver string `json:"driver,omitempty"` // the name of the device's driver
	// Offloads maps the short names of the device's offloads to whether they are on: tso, gso, gro, lro, uso (UDP
	// segmentation), big-tcp (TCP packets of more than 64 KiB), sg (scatter and gather), tx-checksum, rx-checksum.
	Offloads map[string]bool `json:"offloads"`
}

// features maps short names to the kernel's names. An offload with several names is on if one of them is.
var features = map[string][]string{
	"tso":         {"tx-tcp-segmentation", "tx-tcp6-segmentation"},
	"gso":         {"tx-generic-segmentation"},
	"gro":         {"rx-gro"},
	"lro":         {"rx-lro"},
	"uso":         {"tx-udp-segmentation"},
	"sg":          {"tx-scatter-gather"},
	"tx-checksum": {"tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"},
	"rx-checksum": {"rx-checksum"},
}

func (h *Hardware) read(handle *ethtool.Ethtool, device string) {
	h.Driver, _ = handle.DriverName(device)
	// Not the newer GetLinkSettings: it queries the kernel without agreeing on a size first, and prints that on stdout.
	var settings ethtool.EthtoolCmd
	if speed, err := handle.CmdGet(&settings, device); err == nil {
		h.Speed, h.Duplex = int(int32(speed)), "unknown"
		if settings.Duplex < 2 {
			h.Duplex = []string{"half", "full"}[settings.Duplex]
		}
	}
	state, err := handle.FeaturesWithState(device)
	if err != nil {
		h.Offloads = nil
		return
	}
	if h.Offloads == nil {
		h.Offloads = map[string]bool{}
	}
	for short, names := range features {
		for _, name := range names {
			// Some are off and can't be switched on: the device doesn't have them.
			if feature, ok := state[name]; ok && (feature.Active || feature.Available) {
				h.Offloads[short] = h.Offloads[short] || feature.Active
			}
		}
	}
}
