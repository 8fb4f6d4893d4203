// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/nl"
)

// Announce tells all neighbours on the network of a device in a namespace, which
// is up, that addresses are at its MAC address. They may be another's, for which the
// namespace answers.
func Announce(ns *nl.Namespace, device string, addrs ...netip.Addr) error {
	in, err := openSide(ns)
	if err != nil {
		return err
	}
	defer in.Close()
	link, err := in.link(device)
	if err != nil {
		return err
	}
	if err := in.awaitCarrier(link); err != nil {
		return err
	}
	var alone []netip.Prefix
	for _, addr := range addrs {
		alone = append(alone, single(addr))
	}
	return announceByHand(ns, link, alone)
}

// announce tells all neighbours on the device's network that addrs are at its
// MAC address. Otherwise, those that talked to an earlier pod with the same
// address would send to that pod's MAC address until their caches time out.
//
// The kernel does that when the device's MAC address is set, be it to what it was,
// if the device has the settings of announcing. Where it can't be set (ipvlan),
// packets are sent by hand. For ARP that takes a packet socket, and to close one
// the kernel waits for a grace period of RCU (packet_release), some 10 ms.
func (s side) announce(link netlink.Link, addrs []netip.Prefix) error {
	if s.LinkSetHardwareAddr(link, macOf(link)) == nil {
		return nil
	}
	return announceByHand(s.ns, link, addrs)
}

// announceByHand sends what announce has the kernel send.
func announceByHand(ns *nl.Namespace, link netlink.Link, addrs []netip.Prefix) error {
	for _, addr := range addrs {
		send := announceARP
		if addr.Addr().Is6() {
			send = announceND
		}
		err := ns.Do(func() error { return send(link.Attrs(), addr.Addr()) })
		if err != nil {
			return fmt.Errorf("announce address %v on device %q in %q: %w",
				addr.Addr(), link.Attrs().Name, ns.Name(), err)
		}
	}
	return nil
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
	packet = append(packet, 6, 4, 0, request) // length of addresses, operation
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

// announceND multicasts an unsolicited neighbour advertisement (RFC 4861,
// section 7.2.6). The kernel fills in the checksum.
func announceND(link *netlink.LinkAttrs, addr netip.Addr) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// Receivers drop what may have come through a router.
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

	return unix.Sendto(fd, packet, 0, &unix.SockaddrInet6{Addr: [16]byte(net.IPv6linklocalallnodes), ZoneId: uint32(link.Index)})
}
