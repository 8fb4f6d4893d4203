// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Device is a network device as it was when it was read.
type Device struct {
	Name string
	// Kind is the kernel's name for the kind of device, like "veth", "bridge" or
	// "macvlan"; "loopback" or "device" for those that have none.
	Kind  string
	Index int
	// PeerIndex is the index of a veth device's (or netkit device's) other end, in
	// the namespace that PeerNSID stands for. 0 if there is none.
	PeerIndex int
	// ParentIndex is the index of the device that a macvlan, ipvlan or VLAN device
	// sits on, in the namespace that PeerNSID stands for. 0 if there is none.
	ParentIndex int
	// PeerNSID is this namespace's id of the namespace that PeerIndex or
	// ParentIndex belong to; -1 if it is this namespace.
	PeerNSID int
	// MasterIndex is the index of the bridge that the device is a port of; or 0.
	MasterIndex int
	MAC         net.HardwareAddr
	MTU         int
	// Up is whether the device is set up. It may lack a carrier still.
	Up bool
	// Addrs are the device's addresses, of both families, with their prefix length.
	Addrs []netip.Prefix

	RxPackets, TxPackets, RxBytes, TxBytes uint64
}

// Devices returns the devices in n, sorted by index.
func (n *Namespace) Devices() ([]Device, error) {
	handle, err := n.Netlink()
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	links, err := Dump(handle.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list devices in network namespace %q: %w", n.Name(), err)
	}
	devices, err := n.describe(handle, links)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(devices, func(a, b Device) int { return cmp.Compare(a.Index, b.Index) })
	return devices, nil
}

// Device returns the device of that name in n. The error matches fs.ErrNotExist
// (os.ErrNotExist) if there is none.
func (n *Namespace) Device(name string) (Device, error) {
	handle, err := n.Netlink()
	if err != nil {
		return Device{}, err
	}
	defer handle.Close()
	link, err := handle.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return Device{}, fmt.Errorf("device %q in network namespace %q: %w", name, n.Name(), err)
	}
	devices, err := n.describe(handle, []netlink.Link{link})
	if err != nil {
		return Device{}, err
	}
	return devices[0], nil
}

// describe adds their addresses to links.
func (n *Namespace) describe(handle *netlink.Handle, links []netlink.Link) ([]Device, error) {
	addrs, err := Dump(func() ([]netlink.Addr, error) { return handle.AddrList(nil, unix.AF_UNSPEC) })
	if err != nil {
		return nil, fmt.Errorf("list addresses in network namespace %q: %w", n.Name(), err)
	}
	devices := make([]Device, 0, len(links))
	for _, link := range links {
		device := newDevice(link)
		for _, addr := range addrs {
			if addr.LinkIndex == device.Index {
				device.Addrs = append(device.Addrs, prefix(addr.IPNet))
			}
		}
		devices = append(devices, device)
	}
	return devices, nil
}

func newDevice(link netlink.Link) Device {
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
	}
	if attrs.RawFlags&unix.IFF_LOOPBACK != 0 {
		device.Kind = "loopback"
	}
	if device.Kind == "tuntap" { // the library's name for it
		device.Kind = "tun"
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

// prefix turns an address with its mask into a Prefix that keeps the address.
func prefix(ipNet *net.IPNet) netip.Prefix {
	addr, _ := netip.AddrFromSlice(ipNet.IP)
	ones, _ := ipNet.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones)
}
