// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Announce announces that addresses are at the MAC address of a device, which is up, to all neighbours on its
// network. The addresses may belong to others for which the namespace answers.
func (c Conn) Announce(device string, addrs ...netip.Addr) error {
	try := fmt.Sprintf("announce addresses %v on ", addrs)
	return c.OnDevice(try, device, func(handle *netlink.Handle, link netlink.Link) error {
		if err := c.AwaitCarrier(handle, link); err != nil {
			return err
		}
		return c.ns.Do(func() error {
			for _, addr := range addrs {
				send := announceARP
				if addr.Is6() {
					send = announceND
				}
				if err := send(link.Attrs(), addr); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// announceARP broadcasts a gratuitous ARP request (RFC 5227, section 3).
func announceARP(link *netlink.LinkAttrs, addr netip.Addr) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	const request = 1
	packet := binary.BigEndian.AppendUint16(nil, unix.ARPHRD_ETHER)
	packet = binary.BigEndian.AppendUint16(packet, unix.ETH_P_IP)
	packet = append(packet, 6, 4, 0, request) // address lengths, operation
	packet = append(packet, link.HardwareAddr...)
	packet = append(packet, addr.AsSlice()...)
	packet = append(packet, make([]byte, 6)...)
	packet = append(packet, addr.AsSlice()...)
	return unix.Sendto(fd, packet, 0, &unix.SockaddrLinklayer{
		Protocol: binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ARP)),
		Ifindex:  link.Index,
		Halen:    6,
		Addr:     [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
	})
}

// announceND multicasts an unsolicited neighbour advertisement (RFC 4861, section
// 7.2.6). The kernel fills in the checksum.
func announceND(link *netlink.LinkAttrs, addr netip.Addr) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// Receivers drop advertisements that a router may have forwarded.
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, link.Index); err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet6{Addr: addr.As16()}); err != nil {
		return err
	}
	const (
		advertisement   = 136
		override        = 0x20
		targetLinkLayer = 2
	)
	packet := []byte{advertisement, 0, 0, 0, override, 0, 0, 0}
	packet = append(packet, addr.AsSlice()...)
	packet = append(packet, targetLinkLayer, 1) // length in units of 8 bytes
	packet = append(packet, link.HardwareAddr...)

	return unix.Sendto(fd, packet, 0, &unix.SockaddrInet6{Addr: [16]byte(net.IPv6linklocalallnodes),
		ZoneId: uint32(link.Index)})
}
