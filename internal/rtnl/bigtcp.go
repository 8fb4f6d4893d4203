// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// BigTCPBytes is the size of the largest IPv4 packets with BIG TCP: four times the 64 KiB that the length field of the
	// header allows. Larger ones gain little (Dumazet, "BIG TCP", Netdev 0x15).
	//
	// IPv6 packets keep 64 KiB: Linux adds a jumbo header of 8 bytes to larger ones (to 6.18 at least), which the MTU check
	// of a router counts (ip6_forward, skb_gso_validate_network_len). It drops packets whose segments fill the MTU, and a
	// stream through a routing host is a third as fast.
	BigTCPBytes = 256 << 10
	// PacketBytes is the size of the largest packets without BIG TCP, the kernel's default.
	PacketBytes = 64 << 10
)

// SetUpWithPackets sets a device up, with the size of the largest IPv4 TCP packets that the kernel passes to it (GSO) and
// merges on it (GRO), in one message. If the kernel or the device refuses the size, nothing changes. Kernels before 6.3
// ignore it. An ipvlan device takes three messages: the library refuses one without a parent, which a pod does not see.
func SetUpWithPackets(handle *netlink.Handle, link netlink.Link, bytes uint32) error {
	if link.Type() == "ipvlan" {
		return setUpIPVlanWithPackets(handle, link, bytes)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Index, attrs.Flags = link.Attrs().Name, link.Attrs().Index, net.FlagUp
	attrs.GSOIPv4MaxSize, attrs.GROIPv4MaxSize = bytes, bytes
	if err := handle.LinkModify(&netlink.GenericLink{LinkAttrs: attrs, LinkType: link.Type()}); err != nil {
		return fmt.Errorf("set device %q up with packets of %d bytes: %w", attrs.Name, bytes, err)
	}
	return nil
}

func setUpIPVlanWithPackets(handle *netlink.Handle, link netlink.Link, bytes uint32) error {
	err := handle.LinkSetGSOIPv4MaxSize(link, int(bytes))
	if err == nil {
		err = handle.LinkSetGROIPv4MaxSize(link, int(bytes))
	}
	if err == nil {
		err = handle.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("set device %q up with packets of %d bytes: %w", link.Attrs().Name, bytes, err)
	}
	return nil
}

// TakesBigTCP reports whether the kernel passes packets of BIG TCP to a device. The error matches
// fs.ErrNotExist if there is none of that name.
func (c Conn) TakesBigTCP(device string) (takes bool, err error) {
	err = c.onDevice("", device, func(_ *netlink.Handle, link netlink.Link) error {
		takes = takesBigTCP(link)
		return nil
	})
	return takes, err
}

func takesBigTCP(link netlink.Link) bool { return link.Attrs().GSOIPv4MaxSize >= BigTCPBytes }

// CutsBigTCP reports whether the kernel has to cut packets of BIG TCP to the MTU before the device, which would cut
// smaller ones by itself: it has segmentation offload, with smaller limits. A TCP stream is a quarter as fast then. The
// error matches fs.ErrNotExist if there is no such device.
func (c Conn) CutsBigTCP(device string) (bool, error) {
	takes, err := c.TakesBigTCP(device)
	if err != nil || takes {
		return false, err
	}
	offloads, err := c.Offloads(device)
	return offloads["tso"], err
}

// AllowBigTCP lets packets of BIG TCP leave by all devices that match and are up, except where the kernel refuses it.
func (c Conn) AllowBigTCP(match func(device string) bool) error {
	links, err := dump(c, "devices", (*netlink.Handle).LinkList)
	if err != nil {
		return err
	}
	return c.with(func(handle *netlink.Handle) error {
		for _, link := range links {
			if match(link.Attrs().Name) && link.Attrs().RawFlags&unix.IFF_UP != 0 && !takesBigTCP(link) {
				_ = SetUpWithPackets(handle, link, BigTCPBytes)
			}
		}
		return nil
	})
}
