// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// String is the packet on one line: length, family, addresses with ports,
// protocol, and what the protocol's header says.
//
//	60 IPv4 10.9.0.1:40312 > 10.9.0.2:80 TCP SYN
//	84 IPv4 10.9.0.1 > 10.9.0.2 ICMP echo id 7 seq 1
//	3 IPv4 malformed: header ends after 3 bytes
func (p Packet) String() string {
	var line strings.Builder
	fmt.Fprintf(&line, "%d", p.Length)
	if p.Family != 0 {
		fmt.Fprintf(&line, " IPv%d", p.Family)
	}
	if p.Source.IsValid() {
		fmt.Fprintf(&line, " %s > %s %s", p.end(p.Source, p.SourcePort), p.end(p.Destination, p.DestinationPort),
			protocolName(p.Protocol))
	}
	if details := p.details(); details != "" {
		line.WriteString(" " + details)
	}
	if p.Fragment {
		fmt.Fprintf(&line, " fragment at %d", p.Offset)
	}
	if p.Malformed != "" {
		line.WriteString(" malformed: " + p.Malformed)
	}
	return line.String()
}

// end is an address, with its port if the packet has any.
func (p Packet) end(addr netip.Addr, port uint16) string {
	if p.SourcePort == 0 && p.DestinationPort == 0 {
		return addr.String()
	}
	return netip.AddrPortFrom(addr, port).String()
}

// details is what the transport's header says.
func (p Packet) details() string {
	switch {
	case p.Malformed != "" || p.Offset > 0:
		return ""
	case p.Protocol == unix.IPPROTO_TCP:
		return flagNames(p.TCPFlags)
	case !p.isICMP():
		return ""
	}
	name := ipv6.ICMPType(p.ICMPType).String()
	if p.Family == 4 {
		name = ipv4.ICMPType(p.ICMPType).String()
	}
	if strings.HasPrefix(name, "<") { // the library does not know it
		name = fmt.Sprintf("type %d", p.ICMPType)
	}
	if p.isEcho() {
		return fmt.Sprintf("%s id %d seq %d", name, p.EchoID, p.EchoSequence)
	}
	return fmt.Sprintf("%s code %d", name, p.ICMPCode)
}

// protocolName is the name of an IP protocol that people know, or its number.
func protocolName(protocol uint8) string {
	switch protocol {
	case unix.IPPROTO_TCP:
		return "TCP"
	case unix.IPPROTO_UDP:
		return "UDP"
	case unix.IPPROTO_ICMP:
		return "ICMP"
	case unix.IPPROTO_ICMPV6:
		return "ICMPv6"
	case unix.IPPROTO_SCTP:
		return "SCTP"
	case unix.IPPROTO_GRE:
		return "GRE"
	case unix.IPPROTO_ESP:
		return "ESP"
	case unix.IPPROTO_NONE:
		return "no payload"
	}
	return fmt.Sprintf("protocol %d", protocol)
}

// sizeEthernet is the size of an Ethernet header in bytes.
const sizeEthernet = 14

// Frame is what the header of an Ethernet frame says, and of the packet in it.
type Frame struct {
	Length              int // in bytes
	Source, Destination net.HardwareAddr
	EtherType           uint16
	// Packet is set if the EtherType is that of IPv4 or IPv6.
	Packet *Packet
	// Malformed says what is wrong with the frame; it is empty if nothing is.
	Malformed string
}

// DecodeFrame reads the headers of an Ethernet frame. It takes any bytes.
func DecodeFrame(frame []byte) Frame {
	f := Frame{Length: len(frame)}
	if len(frame) < sizeEthernet {
		f.Malformed = fmt.Sprintf("header ends after %d bytes", len(frame))
		return f
	}
	f.Destination, f.Source = net.HardwareAddr(frame[:6]), net.HardwareAddr(frame[6:12])
	f.EtherType = binary.BigEndian.Uint16(frame[12:])
	if f.EtherType == unix.ETH_P_IP || f.EtherType == unix.ETH_P_IPV6 {
		packet := Decode(frame[sizeEthernet:])
		f.Packet = &packet
	}
	return f
}

// String is the frame on one line: length, addresses, and the packet in it.
//
//	42 02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff ARP
//	74 02:00:00:00:00:01 > 02:00:00:00:00:02 60 IPv4 10.9.0.1:40312 > 10.9.0.2:80 TCP SYN
func (f Frame) String() string {
	if f.Malformed != "" {
		return fmt.Sprintf("%d malformed: %s", f.Length, f.Malformed)
	}
	line := fmt.Sprintf("%d %s > %s ", f.Length, f.Source, f.Destination)
	switch {
	case f.Packet != nil:
		return line + f.Packet.String()
	case f.EtherType == unix.ETH_P_ARP:
		return line + "ARP"
	}
	return line + fmt.Sprintf("type %#04x", f.EtherType)
}
