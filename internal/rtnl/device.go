// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

// Device is a snapshot of a network device.
type Device struct {
	Name string
	// Kind is the kernel's name for the kind of device, like "veth", "bridge" or "macvlan"; "loopback" or "device" for
	// devices without one.
	Kind  string
	Index int
	// PeerIndex is the index of the other end of a veth or netkit device, in the namespace PeerNSID; 0 for others.
	PeerIndex int
	// ParentIndex is the index of the parent of a macvlan, ipvlan or VLAN device, in the namespace PeerNSID; 0 for others.
	ParentIndex int
	// PeerNSID is this namespace's id (netnsid) of the namespace of PeerIndex or ParentIndex; -1 if it is this namespace.
	PeerNSID    int
	Layer3      bool // whether the device is an ipvlan whose packets the host routes: of mode l3 or l3s
	MasterIndex int  // the index of the bridge that the device is a port of; or 0
	MAC         net.HardwareAddr
	MTU         int
	// Up is whether the device is set up. It may still lack a carrier.
	Up bool
	// Running is whether it is up and can send, with a carrier (RFC 2863: operational state up or unknown).
	Running bool
	Addrs   []netip.Prefix // the device's addresses of both families, with their prefix lengths

	RxPackets, TxPackets, RxBytes, TxBytes uint64
}

// Devices lists the devices of the namespace, sorted by index.
func (c Conn) Devices() ([]Device, error) {
	var devices []Device
	err := c.with(func(handle *netlink.Handle) error {
		links, err := Dump(handle.LinkList)
		if err == nil {
			devices, err = describe(handle, links...)
		}
		return err
	})
	slices.SortFunc(devices, func(a, b Device) int { return cmp.Compare(a.Index, b.Index) })
	return devices, c.failed(err, "list devices")
}

type noDevice struct{}

func (noDevice) Error() string { return "no such device" }

// Is makes the error match fs.ErrNotExist.
func (noDevice) Is(target error) bool { return target == fs.ErrNotExist }

// Device returns the device with a name. The error matches fs.ErrNotExist if there is none.
func (c Conn) Device(name string) (device Device, err error) {
	err = c.OnDevice("", name, func(handle *netlink.Handle, link netlink.Link) error {
		devices, err := describe(handle, link)
		if err == nil {
			device = devices[0]
		}
		return err
	})
	return device, err
}

func describe(handle *netlink.Handle, links ...netlink.Link) ([]Device, error) {
	addrs, err := Dump(func() ([]netlink.Addr, error) { return allAddresses(handle) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	devices := make([]Device, 0, len(links))
	for _, link := range links {
		device := DescribeLink(link)
		for _, addr := range addrs {
			if addr.LinkIndex == device.Index {
				device.Addrs = append(device.Addrs, Prefix(addr.IPNet))
			}
		}
		devices = append(devices, device)
	}
	return devices, nil
}

// DescribeLink converts a link of the netlink library, without addresses.
func DescribeLink(link netlink.Link) Device {
	attrs := link.Attrs()
	device := Device{
		Name:        attrs.Name,
		Kind:        link.Type(),
		Index:       attrs.Index,
		PeerNSID:    attrs.NetNsID,
		MasterIndex: attrs.MasterIndex,
		MAC:         attrs.HardwareAddr,
		MTU:         attrs.MTU,
		Up:          attrs.RawFlags&unix.IFF_UP != 0,
		Running:     attrs.RawFlags&unix.IFF_RUNNING != 0,
	}
	if attrs.RawFlags&unix.IFF_LOOPBACK != 0 {
		device.Kind = "loopback"
	}
	if device.Kind == "tuntap" { // the library's name for it
		device.Kind = "tun"
	}
	if ipvlan, ok := link.(*netlink.IPVlan); ok {
		device.Layer3 = ipvlan.Mode == netlink.IPVLAN_MODE_L3 || ipvlan.Mode == netlink.IPVLAN_MODE_L3S
	}
	switch device.Kind {
	case "veth", "netkit":
		device.PeerIndex = attrs.ParentIndex
	default:
		device.ParentIndex = attrs.ParentIndex
	}
	if stats := attrs.Statistics; stats != nil {
		device.RxPackets, device.TxPackets = stats.RxPackets, stats.TxPackets
		device.RxBytes, device.TxBytes = stats.RxBytes, stats.TxBytes
	}
	return device
}

// Prefix converts an address with a mask. It keeps the host bits.
func Prefix(ipNet *net.IPNet) netip.Prefix {
	addr, _ := netip.AddrFromSlice(ipNet.IP)
	ones, _ := ipNet.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones)
}

// DeviceByIndex returns the device with an index, without its addresses: the kernel can list addresses only for all
// devices at once. The error matches fs.ErrNotExist if there is none.
func (c Conn) DeviceByIndex(index int) (device Device, err error) {
	find := func(h *netlink.Handle) (netlink.Link, error) { return h.LinkByIndex(index) }
	err = c.onLink(fmt.Sprintf("device %d", index), find, func(_ *netlink.Handle, link netlink.Link) error {
		device = DescribeLink(link)
		return nil
	})
	return device, err
}

// OnParentIn returns the name of the macvlan or ipvlan with an index, if its parent is in the namespace ns; empty if
// not, or if the device is missing.
func (c Conn) OnParentIn(ns *netns.Namespace, index int) (string, error) {
	device, err := c.DeviceByIndex(index)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil || device.Kind != "macvlan" && device.Kind != "ipvlan" || device.PeerNSID < 0 {
		return "", err
	}
	id := -1
	err = c.with(func(handle *netlink.Handle) (err error) {
		id, err = handle.GetNetNsIdByFd(ns.FD())
		return err
	})
	if err != nil || id != device.PeerNSID {
		return "", err
	}
	return device.Name, nil
}

// HasDevice reports whether a device with that name or alternative name exists. It is the fastest query (netdevice(7),
// SIOCGIFINDEX).
func (c Conn) HasDevice(name string) (bool, error) {
	request, err := unix.NewIfreq(name)
	if err == nil {
		err = c.ns.WithSocket(func(fd int) error { return unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request) })
	}
	if errors.Is(err, unix.ENODEV) {
		return false, nil
	}
	return err == nil, c.failed(err, "look for device %q", name)
}

// DeleteLink deletes the device of an index, with its peer if it has one. If the device does not exist it returns
// nil. The kernel returns after one or two RCU grace periods, 15 to 40 ms at 250 Hz.
func DeleteLink(handle *netlink.Handle, index int) error {
	err := handle.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}})
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// LinkMessages dumps the devices of the namespace that attributes of the request select, as the kernel's messages about
// them.
func (c Conn) LinkMessages(attributes ...*vnl.RtAttr) ([][]byte, error) {
	messages, err := Dump(func() ([][]byte, error) {
		request := vnl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		request.AddData(vnl.NewIfInfomsg(unix.AF_UNSPEC))
		for _, a := range attributes {
			request.AddData(a)
		}
		return c.request(request, unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	})
	return messages, c.failed(err, "list devices")
}

// DevicesOfKind lists the devices of a kind, like "macvlan", without their addresses. The kernel filters them.
func (c Conn) DevicesOfKind(kind string) (devices []Device, err error) {
	info := vnl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, vnl.NonZeroTerminated(kind))
	messages, err := c.LinkMessages(info)
	for _, message := range messages {
		link, err := netlink.LinkDeserialize(nil, message)
		if err != nil {
			return nil, fmt.Errorf("read a device in network namespace %q: %w", c.ns.Name(), err)
		}
		// A kernel without the kind sends all devices.
		if device := DescribeLink(link); device.Kind == kind {
			devices = append(devices, device)
		}
	}
	return devices, err
}
