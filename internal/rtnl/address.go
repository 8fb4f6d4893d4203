// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Address is an address of a device at which other hosts reach it.
type Address struct {
	Index int // of the device
	Addr  netip.Addr
	// Lasting is whether packets may come from the address for good: it is not secondary, temporary, or deprecated, and
	// not a duplicate of another host's.
	Lasting bool
}

// Addresses lists the addresses of the namespace except loopback and link-local ones, in the kernel's order.
func (c Conn) Addresses() ([]Address, error) {
	addrs, err := dump(c, "addresses", allAddresses)
	const passing = unix.IFA_F_SECONDARY | unix.IFA_F_DEPRECATED | unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED
	var all []Address
	for _, a := range addrs {
		if addr := Prefix(a.IPNet).Addr().Unmap(); addr.IsGlobalUnicast() {
			all = append(all, Address{Index: a.LinkIndex, Addr: addr, Lasting: a.Flags&passing == 0})
		}
	}
	return all, err
}

// Every returns all addresses of the namespace, of loopback devices and link-local ones too. Several devices may have
// one.
func (c Conn) Every() ([]netip.Addr, error) {
	addrs, err := dump(c, "addresses", allAddresses)
	all := make([]netip.Addr, len(addrs))
	for i, a := range addrs {
		all[i] = Prefix(a.IPNet).Addr().Unmap()
	}
	return all, err
}

// Addrs returns the addresses of prefixes.
func Addrs(prefixes []netip.Prefix) (addrs []netip.Addr) {
	for _, prefix := range prefixes {
		addrs = append(addrs, prefix.Addr())
	}
	return addrs
}

// FirstLocal returns the first of some addresses that is one of the namespace; the zero value if none is.
func (c Conn) FirstLocal(addrs []netip.Addr) (first netip.Addr, err error) {
	err = c.with(func(handle *netlink.Handle) error {
		local := func(addr netip.Addr) bool { return isLocal(handle.RouteGet(addr.AsSlice())) }
		if i := slices.IndexFunc(addrs, local); i >= 0 {
			first = addrs[i]
		}
		return nil
	})
	return first, err
}

// ownProtocol marks the addresses that AddOwnAddress has added (IFA_PROTO of if_addr.h, Linux 5.18). iproute2 shows
// this number as "proto 0x6d". The kernel stores it with the address, so it stays right after a kill or a lost file.
const (
	ownProtocol = 109
	ifaProto    = 11
)

// AddOwnAddress adds an address to a device, usable at once, and marks it as Mustang's. If the device has it already,
// added is false, and its mark stays.
func (c Conn) AddOwnAddress(device netlink.Link, address netip.Prefix) (added bool, err error) {
	ip, family := address.Addr(), unix.AF_INET6
	if ip.Is4() {
		family = unix.AF_INET
	}
	message := vnl.NewIfAddrmsg(family)
	message.Index, message.Prefixlen = uint32(device.Attrs().Index), uint8(address.Bits())
	request := vnl.NewNetlinkRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	request.AddData(message)
	request.AddData(vnl.NewRtAttr(unix.IFA_LOCAL, ip.AsSlice()))
	request.AddData(vnl.NewRtAttr(unix.IFA_ADDRESS, ip.AsSlice()))
	request.AddData(vnl.NewRtAttr(ifaProto, []byte{ownProtocol}))
	if ip.Is6() {
		message.Flags = unix.IFA_F_NODAD
	} else if address.Bits() < 31 { // RFC 3021
		request.AddData(vnl.NewRtAttr(unix.IFA_BROADCAST, LastAddress(address).AsSlice()))
	}
	_, err = c.request(request, unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	return err == nil, c.failed(err, "add address %s to device %q", address, device.Attrs().Name)
}

// LastAddress returns the last address of a prefix: in IPv4 the broadcast address.
func LastAddress(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for i := p.Bits(); i < len(bytes)*8; i++ {
		bytes[i/8] |= 0x80 >> (i % 8)
	}
	addr, _ := netip.AddrFromSlice(bytes)
	return addr
}

// RemoveOwnAddresses removes addresses from a device, if AddOwnAddress has added them. Missing devices and addresses
// are ignored. Other addresses in the same subnet stay: the kernel would remove them with the first one.
func (c Conn) RemoveOwnAddresses(device string, addresses []netip.Prefix) error {
	err := c.OnDevice("remove addresses of ", device, func(handle *netlink.Handle, link netlink.Link) (err error) {
		own, err := c.ownAddresses(link.Attrs().Index)
		if err != nil {
			return err
		}
		key := "net/ipv4/conf/" + device + "/promote_secondaries"
		before, err := c.Sysctl(key)
		if err == nil {
			err = c.SetSysctl(key, "1")
		}
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.SetSysctl(key, before)) }()
		for _, address := range addresses {
			if !slices.Contains(own, address) {
				continue
			}
			if err := handle.AddrDel(link, DeviceAddress(address)); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
				return fmt.Errorf("remove address %s: %w", address, err)
			}
		}
		return nil
	})
	if errors.Is(err, noDevice{}) {
		return nil
	}
	return err
}

func (c Conn) ownAddresses(device int) (own []netip.Prefix, err error) {
	messages, err := Dump(func() ([][]byte, error) {
		request := vnl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
		request.AddData(vnl.NewIfAddrmsg(unix.AF_UNSPEC))
		return c.request(request, unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
	})
	if err != nil {
		return nil, fmt.Errorf("list addresses in network namespace %q: %w", c.ns.Name(), err)
	}
	for _, message := range messages {
		header := vnl.DeserializeIfAddrmsg(message)
		attrs, err := vnl.ParseRouteAttr(message[header.Len():])
		if err != nil {
			return nil, fmt.Errorf("parse address in network namespace %q: %w", c.ns.Name(), err)
		}
		var ip netip.Addr
		marked := false
		for _, attr := range attrs {
			switch {
			case attr.Attr.Type == unix.IFA_ADDRESS:
				ip, _ = netip.AddrFromSlice(attr.Value)
			case attr.Attr.Type == ifaProto:
				marked = slices.Equal(attr.Value, []byte{ownProtocol})
			}
		}
		if marked && int(header.Index) == device {
			own = append(own, netip.PrefixFrom(ip, int(header.Prefixlen)))
		}
	}
	return own, nil
}

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
