// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// Sizes of headers in bytes.
const (
	sizeIPv4 = 20
	sizeIPv6 = 40
	sizeUDP  = 8
	sizeTCP  = 20
	sizeICMP = 4
	sizeEcho = 8
)

// Packet contains the fields of the headers of an IP packet.
type Packet struct {
	Length int // in bytes, of the buffer
	Family int // 4 or 6; 0 for other versions
	// Source and Destination are invalid if the packet is too short for them.
	Source, Destination netip.Addr
	Protocol            uint8
	// Fragment is true for a fragment; Offset is its offset in bytes. Only the fragment at 0 has the transport header.
	Fragment bool
	Offset   int
	// SourcePort and DestinationPort are those of TCP and UDP.
	SourcePort, DestinationPort uint16
	TCPFlags                    uint8
	ICMPType, ICMPCode          uint8
	// EchoID and EchoSequence are those of ICMP echo requests and replies.
	EchoID, EchoSequence uint16
	// Malformed describes the fault of a malformed packet; empty for others. The fields
	// above contain as much as could be read.
	Malformed string
}

// Decode decodes the headers of an IP packet. It accepts any input.
func Decode(packet []byte) Packet {
	p := Packet{Length: len(packet)}
	if len(packet) == 0 {
		p.Malformed = "empty"
		return p
	}
	var payload []byte
	switch version := packet[0] >> 4; version {
	case 4:
		payload = p.decodeIPv4(packet)
	case 6:
		payload = p.decodeIPv6(packet)
	default:
		p.fail("IP version %d", version)
	}
	if p.Malformed == "" && p.Offset == 0 {
		p.decodeTransport(payload)
	}
	return p
}

// fail describes the fault of a packet.
func (p *Packet) fail(format string, args ...any) []byte {
	p.Malformed = fmt.Sprintf(format, args...)
	return nil
}

func (p *Packet) decodeIPv4(packet []byte) (payload []byte) {
	p.Family = 4
	if len(packet) < sizeIPv4 {
		return p.fail("header ends after %d bytes", len(packet))
	}
	p.Source, p.Destination = netip.AddrFrom4([4]byte(packet[12:16])), netip.AddrFrom4([4]byte(packet[16:20]))
	p.Protocol = packet[9]
	switch header, total := int(packet[0]&0xf)*4, int(binary.BigEndian.Uint16(packet[2:])); {
	case header < sizeIPv4 || header > total:
		return p.fail("header of %d bytes, packet of %d", header, total)
	case total > len(packet):
		return p.fail("%d bytes of %d", len(packet), total)
	default:
		fragment := binary.BigEndian.Uint16(packet[6:])
		p.Offset = int(fragment&0x1fff) * 8
		p.Fragment = p.Offset > 0 || fragment&0x2000 != 0
		return packet[header:total]
	}
}

func (p *Packet) decodeIPv6(packet []byte) (payload []byte) {
	p.Family = 6
	if len(packet) < sizeIPv6 {
		return p.fail("header ends after %d bytes", len(packet))
	}
	p.Source, p.Destination = netip.AddrFrom16([16]byte(packet[8:24])), netip.AddrFrom16([16]byte(packet[24:40]))
	p.Protocol = packet[6]
	end := sizeIPv6 + int(binary.BigEndian.Uint16(packet[4:]))
	if end == sizeIPv6 && p.Protocol == unix.IPPROTO_HOPOPTS { // a jumbogram (RFC 2675)
		end = len(packet)
	}
	if end > len(packet) {
		return p.fail("%d bytes of %d", len(packet), end)
	}
	return p.skipExtensions(packet[sizeIPv6:end])
}

// skipExtensions skips the IPv6 extension headers (RFC 8200, section 4).
func (p *Packet) skipExtensions(payload []byte) []byte {
	for p.Offset == 0 {
		size := 8
		switch p.Protocol {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS, unix.IPPROTO_MH, unix.IPPROTO_FRAGMENT:
		case unix.IPPROTO_AH:
			size = 12
		default:
			return payload
		}
		switch {
		case len(payload) < size:
		case p.Protocol == unix.IPPROTO_FRAGMENT:
			fragment := binary.BigEndian.Uint16(payload[2:])
			p.Offset = int(fragment &^ 7)
			p.Fragment = p.Fragment || p.Offset > 0 || fragment&1 != 0
		case p.Protocol == unix.IPPROTO_AH:
			size = (int(payload[1]) + 2) * 4
		default:
			size = (int(payload[1]) + 1) * 8
		}
		if len(payload) < size {
			return p.fail("extension header %d ends after %d bytes", p.Protocol, len(payload))
		}
		p.Protocol = payload[0]
		payload = payload[size:]
	}
	return payload
}

func (p *Packet) decodeTransport(payload []byte) {
	tcp, udp := p.Protocol == unix.IPPROTO_TCP, p.Protocol == unix.IPPROTO_UDP
	switch {
	case tcp && len(payload) < sizeTCP, udp && len(payload) < sizeUDP, p.isICMP() && len(payload) < sizeICMP:
		p.fail("%s header ends after %d bytes", protocolName(p.Protocol), len(payload))
		return
	case tcp || udp:
		p.SourcePort, p.DestinationPort = binary.BigEndian.Uint16(payload), binary.BigEndian.Uint16(payload[2:])
	case p.isICMP():
		p.ICMPType, p.ICMPCode = payload[0], payload[1]
		if p.isEcho() && len(payload) >= sizeEcho {
			p.EchoID, p.EchoSequence = binary.BigEndian.Uint16(payload[4:]), binary.BigEndian.Uint16(payload[6:])
		}
	}
	fits := func(size, least int) bool { return size >= least && (size <= len(payload) || p.Fragment) }
	switch {
	case tcp:
		p.TCPFlags = payload[13]
		if size := int(payload[12]>>4) * 4; !fits(size, sizeTCP) {
			p.fail("TCP header of %d bytes in %d", size, len(payload))
		}
	case udp:
		if size := int(binary.BigEndian.Uint16(payload[4:])); !fits(size, sizeUDP) {
			p.fail("UDP datagram of %d bytes in %d", size, len(payload))
		}
	}
}

// isICMP reports whether the packet is ICMP, or ICMPv6 in IPv6.
func (p *Packet) isICMP() bool {
	return p.Family == 4 && p.Protocol == unix.IPPROTO_ICMP || p.Family == 6 && p.Protocol == unix.IPPROTO_ICMPV6
}

// isEcho reports whether an ICMP message is an echo request or reply.
func (p *Packet) isEcho() bool {
	if p.Family == 4 {
		return p.ICMPType == uint8(ipv4.ICMPTypeEcho) || p.ICMPType == uint8(ipv4.ICMPTypeEchoReply)
	}
	return p.ICMPType == uint8(ipv6.ICMPTypeEchoRequest) || p.ICMPType == uint8(ipv6.ICMPTypeEchoReply)
}

// tcpFlags are the names of the TCP flags from the lowest bit (RFC 9293).
var tcpFlags = [...]string{"FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"}

// String formats the packet on one line: length, family, addresses with ports,
// protocol, and fields of the transport header.
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
		fmt.Fprintf(&line, " %s > %s %s", p.endpoint(p.Source, p.SourcePort), p.endpoint(p.Destination, p.DestinationPort),
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

// endpoint formats an address, with its port if the packet has ports.
func (p Packet) endpoint(addr netip.Addr, port uint16) string {
	if p.SourcePort == 0 && p.DestinationPort == 0 {
		return addr.String()
	}
	return netip.AddrPortFrom(addr, port).String()
}

// details formats fields of the transport header.
func (p Packet) details() string {
	switch {
	case p.Malformed != "" || p.Offset > 0:
		return ""
	case p.Protocol == unix.IPPROTO_TCP && p.TCPFlags == 0:
		return "no flags"
	case p.Protocol == unix.IPPROTO_TCP:
		var names []string
		for bit, name := range tcpFlags {
			if p.TCPFlags&(1<<bit) != 0 {
				names = append(names, name)
			}
		}
		return strings.Join(names, ",")
	case !p.isICMP():
		return ""
	}
	name := ipv6.ICMPType(p.ICMPType).String()
	if p.Family == 4 {
		name = ipv4.ICMPType(p.ICMPType).String()
	}
	if strings.HasPrefix(name, "<") { // unknown to the library
		name = fmt.Sprintf("type %d", p.ICMPType)
	}
	if p.isEcho() {
		return fmt.Sprintf("%s id %d seq %d", name, p.EchoID, p.EchoSequence)
	}
	return fmt.Sprintf("%s code %d", name, p.ICMPCode)
}

// protocolNames are the names of common IP protocols.
var protocolNames = map[uint8]string{
	unix.IPPROTO_TCP: "TCP", unix.IPPROTO_UDP: "UDP", unix.IPPROTO_ICMP: "ICMP", unix.IPPROTO_ICMPV6: "ICMPv6",
	unix.IPPROTO_SCTP: "SCTP", unix.IPPROTO_GRE: "GRE", unix.IPPROTO_ESP: "ESP", unix.IPPROTO_NONE: "no payload",
}

// protocolName returns the name of a protocol, or "protocol" and its number.
func protocolName(protocol uint8) string {
	return cmp.Or(protocolNames[protocol], fmt.Sprintf("protocol %d", protocol))
}

// sizeEthernet is the size of an Ethernet header in bytes.
const sizeEthernet = 14

// FormatFrame formats an Ethernet frame on one line: length, addresses, and its packet. It accepts any input.
//
//	42 02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff ARP
//	74 02:00:00:00:00:01 > 02:00:00:00:00:02 60 IPv4 10.9.0.1:40312 > 10.9.0.2:80 TCP SYN
func FormatFrame(frame []byte) string {
	if len(frame) < sizeEthernet {
		return fmt.Sprintf("%d malformed: header ends after %[1]d bytes", len(frame))
	}
	line := fmt.Sprintf("%d %s > %s ", len(frame), net.HardwareAddr(frame[6:12]), net.HardwareAddr(frame[:6]))
	switch kind := binary.BigEndian.Uint16(frame[12:]); kind {
	case unix.ETH_P_IP, unix.ETH_P_IPV6:
		return line + Decode(frame[sizeEthernet:]).String()
	case unix.ETH_P_ARP:
		return line + "ARP"
	default:
		return line + fmt.Sprintf("type %#04x", kind)
	}
}
