// SPDX-License-Identifier: Apache-2.0

// Package linkinfo describes the network devices of a namespace with their kinds, settings, offloads, programs and
// relations to devices in other namespaces: the information of `ip -details`, `brctl` and `ethtool` in one structure.
package linkinfo

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// addFilters adds the eBPF programs of classic tc filters (clsact or ingress qdisc). It skips devices that are gone.
func addFilters(handle *netlink.Handle, links []Link) {
	for i := range links {
		l := &links[i]
		for _, at := range []struct {
			hook   string
			parent uint32
		}{{"tc ingress", netlink.HANDLE_MIN_INGRESS}, {"tc egress", netlink.HANDLE_MIN_EGRESS}} {
			device := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: l.Index}}
			filters, err := rtnl.Dump(func() ([]netlink.Filter, error) { return handle.FilterList(device, at.parent) })
			if err != nil {
				continue
			}
			for _, filter := range filters {
				if bpf, ok := filter.(*netlink.BpfFilter); ok {
					l.Programs = append(l.Programs, ProgramRef{Hook: at.hook, ID: uint32(bpf.Id)})
				}
			}
		}
	}
}

// Link is a snapshot of a network device with the information of `ip -details`, `brctl` and `ethtool`.
type Link struct {
	rtnl.Device
	// Mode is the mode of a device: "bridge" or "vepa" for macvlan, "l2", "l3" or "l3s" for ipvlan, "l2" or "l3" for
	// netkit, "tun" or "tap" for tun, the bonding mode for bond. Empty for kinds without modes.
	Mode string
	// Settings are specific to the kind, such as a VXLAN's id.
	Settings []Setting
	// Port are the settings of a bridge port; nil for other devices.
	Port []Setting
	// OperState is the kernel's operational state: up, down, unknown, lower-layer-down, dormant, testing or
	// not-present.
	OperState string
	// Carrier is whether the device has a carrier.
	Carrier bool
	// Qdisc is the name of the root queueing discipline.
	Qdisc string
	// TxQueues and RxQueues are the numbers of queues, QueueLength is the maximum number of packets in one.
	TxQueues, RxQueues, QueueLength int
	// GSOMaxSize is the size in bytes of the largest packet that the stack passes to the device.
	GSOMaxSize int
	// Alias is the text that an administrator set.
	Alias string
	// AltNames are the alternative names, which commands take as well.
	AltNames []string
	// Hardware is the information of ethtool.
	Hardware Hardware
	// Programs are the eBPF programs that netlink reports: XDP and classic tc filters, not tcx and netkit.
	Programs []ProgramRef

	// Master is the name of the bridge or bond that the device is a port of, or empty.
	Master string
	// bigTCP is whether the device takes TCP packets of more than 64 KiB; nil if it can't.
	bigTCP *bool
	// Peer is the other end of a veth or netkit device; or nil.
	Peer *Peer
	// Parent is the device below a macvlan, ipvlan, VLAN or VXLAN device, or nil.
	Parent *Peer
	// Children are the devices in other namespaces whose parent is this one.
	Children []Peer
}

// Setting is one property of a device: a bool, an int or a string.
type Setting struct {
	Name  string
	Value any
}

// ProgramRef is an eBPF program attached to a device.
type ProgramRef struct {
	// Hook is the attach point, such as "xdp", "tc ingress" or "tc egress".
	Hook string
	// ID is the kernel's id of the program.
	ID uint32
}

// Peer is a device that another device is joined to.
type Peer struct {
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
	Namespace *NamespaceInfo
}

// newLink converts a link, without the information that takes further requests.
func newLink(raw rawLink) Link {
	attrs := raw.link.Attrs()
	l := Link{
		Device:      rtnl.DescribeLink(raw.link),
		OperState:   attrs.OperState.String(),
		Carrier:     attrs.RawFlags&unix.IFF_LOWER_UP != 0,
		Qdisc:       raw.text(unix.IFLA_QDISC),
		TxQueues:    attrs.NumTxQueues,
		RxQueues:    attrs.NumRxQueues,
		QueueLength: attrs.TxQLen,
		GSOMaxSize:  int(attrs.GSOMaxSize),
		Alias:       attrs.Alias,
		AltNames:    attrs.AltNames,
	}
	if attrs.TSOMaxSize > rtnl.PacketBytes {
		on := attrs.GSOIPv4MaxSize > rtnl.PacketBytes
		l.bigTCP = &on
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

// Links lists the devices of n, sorted by index, with their relations to devices in other namespaces. It changes
// nothing, except that the kernel assigns netnsids to namespaces of related devices.
func (c *Snapshot) Links(n *netns.Namespace) ([]Link, error) {
	links, err := listLinks(n)
	if err != nil {
		return nil, err
	}
	handle, err := rtnl.In(n).Handle()
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	addrs, err := rtnl.Dump(func() ([]netlink.Addr, error) { return handle.AddrList(nil, unix.AF_UNSPEC) })
	if err != nil {
		return nil, fmt.Errorf("list addresses in network namespace %q: %w", n.Name(), err)
	}
	addAddresses(links, addrs)
	names := make([]string, len(links))
	for i, link := range links {
		names[i] = link.Name
	}
	hardware, err := readHardware(n, names)
	if err != nil {
		return nil, err
	}
	for i := range links {
		links[i].Hardware = hardware[links[i].Name]
		if bigTCP := links[i].bigTCP; bigTCP != nil && links[i].Hardware.Offloads != nil {
			links[i].Hardware.Offloads["big-tcp"] = *bigTCP
		}
	}
	addFilters(handle, links)
	addNamespaceCalls(n, links)
	c.join(n, links)
	c.joinSwitches(n, links)
	if err := c.addChildren(n, links); err != nil {
		return nil, err
	}
	return links, nil
}

// listLinks reads the links of n in one dump.
func listLinks(n *netns.Namespace) ([]Link, error) {
	raws, err := dumpLinks(n, sameNamespace)
	if err != nil {
		return nil, err
	}
	links := make([]Link, 0, len(raws))
	for _, raw := range raws {
		links = append(links, newLink(raw))
	}
	sortLinks(links)
	return links, nil
}

// addAddresses fills in the addresses of links.
func addAddresses(links []Link, addrs []netlink.Addr) {
	byIndex := map[int][]netip.Prefix{}
	for _, addr := range addrs {
		byIndex[addr.LinkIndex] = append(byIndex[addr.LinkIndex], rtnl.Prefix(addr.IPNet))
	}
	for i := range links {
		links[i].Addrs = byIndex[links[i].Index]
	}
}

func sortLinks(links []Link) {
	slices.SortFunc(links, func(a, b Link) int { return cmp.Compare(a.Index, b.Index) })
}
