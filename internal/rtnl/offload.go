// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"fmt"
	"net"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// offloads maps short names to the kernel's names of the features that decide packet sizes and checksums.
var offloads = map[string]string{
	"tso":         "tx-tcp-segmentation",
	"gso":         "tx-generic-segmentation",
	"gro":         "rx-gro",
	"tx-checksum": "tx-checksum-ip-generic",
}

// Offloads returns which offloads of a device are on, by short name: tso, gso, gro and tx-checksum. It omits offloads
// that the device lacks.
func (c Conn) Offloads(device string) (map[string]bool, error) {
	on := map[string]bool{}
	err := c.withFeatures(device, func(_ *ethtool.Ethtool, features map[string]bool) error {
		for short, name := range offloads {
			if value, ok := features[name]; ok {
				on[short] = value
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read offloads of %q in %q: %w", device, c.ns.Name(), err)
	}
	return on, nil
}

// withFeatures calls do with the features of a device, by the kernel's names.
func (c Conn) withFeatures(device string, do func(*ethtool.Ethtool, map[string]bool) error) error {
	return c.ns.Do(func() error {
		handle, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer handle.Close()
		features, err := handle.Features(device)
		if err != nil {
			return err
		}
		return do(handle, features)
	})
}

// partialPackets are the features with which the kernel hands unfinished packets to a device: without a checksum, or
// longer than the MTU.
var partialPackets = []string{
	"tx-checksum-ip-generic", "tx-checksum-sctp",
	"tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation",
	"tx-udp-segmentation", "tx-sctp-segmentation",
}

// DisableOffloads switches off checksum and segmentation offloads of a device, so that the kernel computes checksums
// and splits packets to the MTU before it sends. A program that reads the packets at the other end, such as a
// user-space switch, needs that.
func (c Conn) DisableOffloads(device string) error {
	err := c.withFeatures(device, func(handle *ethtool.Ethtool, have map[string]bool) error {
		off := map[string]bool{}
		for _, feature := range partialPackets {
			if _, ok := have[feature]; ok {
				off[feature] = false
			}
		}
		return handle.Change(device, off)
	})
	if err != nil {
		return fmt.Errorf("switch off offloads of device %q in %q: %w", device, c.ns.Name(), err)
	}
	return nil
}

const (
	// BigTCPBytes is the size of the largest IPv4 packets with BIG TCP: four times the 64 KiB that the length field of the
	// header allows. Larger ones gain little (Dumazet, "BIG TCP", Netdev 0x15).
	//
	// IPv6 packets have it since Linux 7.0 only: see [TakesBigIPv6].
	BigTCPBytes = 256 << 10
	// PacketBytes is the size of the largest packets without BIG TCP, the kernel's default.
	PacketBytes = 64 << 10
)

// SetUpWithPackets sets a device up, with the size of the largest TCP packets that the kernel passes to it (GSO) and
// merges on it (GRO), in one message; ipv6: of both families. If the kernel or the device refuses the size, nothing
// changes. Kernels before 6.3 ignore it. An ipvlan device takes several messages: the library refuses one without a
// parent, which a pod does not see.
func SetUpWithPackets(handle *netlink.Handle, link netlink.Link, bytes uint32, ipv6 bool) error {
	if link.Type() == "ipvlan" {
		return setUpIPVlanWithPackets(handle, link, bytes, ipv6)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Index, attrs.Flags = link.Attrs().Name, link.Attrs().Index, net.FlagUp
	attrs.GSOIPv4MaxSize, attrs.GROIPv4MaxSize = bytes, bytes
	if ipv6 {
		attrs.GSOMaxSize, attrs.GROMaxSize = bytes, bytes
	}
	if err := handle.LinkModify(&netlink.GenericLink{LinkAttrs: attrs, LinkType: link.Type()}); err != nil {
		return fmt.Errorf("set device %q up with packets of %d bytes: %w", attrs.Name, bytes, err)
	}
	return nil
}

func setUpIPVlanWithPackets(handle *netlink.Handle, link netlink.Link, bytes uint32, ipv6 bool) error {
	limits := []func(netlink.Link, int) error{handle.LinkSetGSOIPv4MaxSize, handle.LinkSetGROIPv4MaxSize}
	if ipv6 {
		limits = append(limits, handle.LinkSetGSOMaxSize, handle.LinkSetGROMaxSize)
	}
	for _, limit := range limits {
		if err := limit(link, int(bytes)); err != nil {
			return fmt.Errorf("set packets of device %q to %d bytes: %w", link.Attrs().Name, bytes, err)
		}
	}
	if err := handle.LinkSetUp(link); err != nil {
		return fmt.Errorf("set device %q up: %w", link.Attrs().Name, err)
	}
	return nil
}

// TakesBigTCP reports for each family whether the kernel passes packets of BIG TCP to a device. The error matches
// fs.ErrNotExist if there is none of that name.
func (c Conn) TakesBigTCP(device string) (ipv4, ipv6 bool, err error) {
	err = c.OnDevice("", device, func(_ *netlink.Handle, link netlink.Link) error {
		ipv4, ipv6 = takesBigTCP(link)
		return nil
	})
	return ipv4, ipv6, err
}

func takesBigTCP(link netlink.Link) (ipv4, ipv6 bool) {
	return link.Attrs().GSOIPv4MaxSize >= BigTCPBytes, link.Attrs().GSOMaxSize >= BigTCPBytes
}

// CutsBigTCP reports for each family whether the kernel has to cut packets of BIG TCP to the MTU before the device.
// Such a device has segmentation offload with smaller limits; a TCP stream is then a quarter as fast. If the device is
// missing, the error matches fs.ErrNotExist.
func (c Conn) CutsBigTCP(device string) (ipv4, ipv6 bool, err error) {
	takes4, takes6, err := c.TakesBigTCP(device)
	if err != nil {
		return false, false, err
	}
	offloads, err := c.Offloads(device)
	return offloads["tso"] && !takes4, offloads["tso"] && !takes6, err
}

// AllowBigTCP lets packets of BIG TCP leave by all devices that match and are up, except where the kernel refuses it;
// ipv6: IPv6 packets too.
func (c Conn) AllowBigTCP(ipv6 bool, match func(device string) bool) error {
	links, err := dump(c, "devices", (*netlink.Handle).LinkList)
	if err != nil {
		return err
	}
	return c.with(func(handle *netlink.Handle) error {
		for _, link := range links {
			takes4, takes6 := takesBigTCP(link)
			if match(link.Attrs().Name) && link.Attrs().RawFlags&unix.IFF_UP != 0 && !(takes4 && (takes6 || !ipv6)) {
				_ = SetUpWithPackets(handle, link, BigTCPBytes, ipv6)
			}
		}
		return nil
	})
}
