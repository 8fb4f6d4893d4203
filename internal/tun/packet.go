// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"encoding/binary"
	"fmt"
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

// Packet is what the headers of an IP packet say.
type Packet struct {
	Length int // in bytes, as it was read
	Family int // 4 or 6; 0 if it is neither
	// Source and Destination are invalid if the packet is too short for them.
	Source, Destination netip.Addr
	Protocol            uint8
	// Fragment is whether this is a part of a packet, Offset where in the packet it
	// belongs. Only the part at 0 has the transport's header.
	Fragment bool
	Offset   int
	// SourcePort and DestinationPort are those of TCP and UDP.
	SourcePort, DestinationPort uint16
	TCPFlags                    uint8
	ICMPType, ICMPCode          uint8
	// EchoID and EchoSequence are those of ICMP echo requests and replies.
	EchoID, EchoSequence uint16
	// Malformed says what is wrong with the packet; it is empty if nothing is. The
	// fields above hold what could be read.
	Malformed string

	transport int  // where the transport's header begins
	routed    bool // by a header for source routing, so Destination isn't the last
}

// Decode reads the headers of an IP packet. It takes any bytes.
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
		p.Malformed = fmt.Sprintf("IP version %d", version)
	}
	if p.Malformed == "" && p.Offset == 0 {
		p.decodeTransport(payload)
	}
	return p
}

func (p *Packet) decodeIPv4(packet []byte) (payload []byte) {
	p.Family = 4
	if len(packet) < sizeIPv4 {
		p.Malformed = fmt.Sprintf("header ends after %d bytes", len(packet))
		return nil
	}
	p.Source = netip.AddrFrom4([4]byte(packet[12:16]))
	p.Destination = netip.AddrFrom4([4]byte(packet[16:20]))
	p.Protocol = packet[9]
	header, total := int(packet[0]&0xf)*4, int(binary.BigEndian.Uint16(packet[2:]))
	if header < sizeIPv4 || header > total {
		p.Malformed = fmt.Sprintf("header of %d bytes, packet of %d", header, total)
		return nil
	}
	if total > len(packet) {
		p.Malformed = fmt.Sprintf("%d bytes of %d", len(packet), total)
		return nil
	}
	fragment := binary.BigEndian.Uint16(packet[6:])
	p.Offset = int(fragment&0x1fff) * 8
	p.Fragment = p.Offset > 0 || fragment&0x2000 != 0
	p.transport = header
	return packet[header:total]
}

func (p *Packet) decodeIPv6(packet []byte) (payload []byte) {
	p.Family = 6
	if len(packet) < sizeIPv6 {
		p.Malformed = fmt.Sprintf("header ends after %d bytes", len(packet))
		return nil
	}
	p.Source = netip.AddrFrom16([16]byte(packet[8:24]))
	p.Destination = netip.AddrFrom16([16]byte(packet[24:40]))
	p.Protocol = packet[6]
	length := int(binary.BigEndian.Uint16(packet[4:]))
	if length == 0 && p.Protocol == unix.IPPROTO_HOPOPTS { // a jumbogram (RFC 2675)
		length = len(packet) - sizeIPv6
	}
	if sizeIPv6+length > len(packet) {
		p.Malformed = fmt.Sprintf("%d bytes of %d", len(packet), sizeIPv6+length)
		return nil
	}
	p.transport = sizeIPv6
	return p.skipExtensions(packet[sizeIPv6 : sizeIPv6+length])
}

// skipExtensions walks over IPv6's extension headers (RFC 8200, section 4).
func (p *Packet) skipExtensions(payload []byte) []byte {
	for p.Offset == 0 {
		size := 0
		switch p.Protocol {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS, unix.IPPROTO_MH:
			size = 8
		case unix.IPPROTO_FRAGMENT:
			size = 8
		case unix.IPPROTO_AH:
			size = 12
		default:
			return payload
		}
		if len(payload) >= size {
			switch p.Protocol {
			case unix.IPPROTO_FRAGMENT:
				fragment := binary.BigEndian.Uint16(payload[2:])
				p.Offset = int(fragment &^ 7)
				p.Fragment = p.Fragment || p.Offset > 0 || fragment&1 != 0
			case unix.IPPROTO_AH:
				size = (int(payload[1]) + 2) * 4
			default:
				size = (int(payload[1]) + 1) * 8
			}
		}
		if len(payload) < size {
			p.Malformed = fmt.Sprintf("extension header %d ends after %d bytes", p.Protocol, len(payload))
			return nil
		}
		p.routed = p.routed || p.Protocol == unix.IPPROTO_ROUTING
		p.Protocol = payload[0]
		p.transport += size
		payload = payload[size:]
	}
	return payload
}

func (p *Packet) decodeTransport(payload []byte) {
	need := 0
	switch {
	case p.Protocol == unix.IPPROTO_TCP:
		need = sizeTCP
	case p.Protocol == unix.IPPROTO_UDP:
		need = sizeUDP
	case p.isICMP():
		need = sizeICMP
	}
	if len(payload) < need {
		p.Malformed = fmt.Sprintf("%s header ends after %d bytes", protocolName(p.Protocol), len(payload))
		return
	}
	switch {
	case p.Protocol == unix.IPPROTO_TCP:
		p.SourcePort = binary.BigEndian.Uint16(payload)
		p.DestinationPort = binary.BigEndian.Uint16(payload[2:])
		p.TCPFlags = payload[13]
		if size := int(payload[12]>>4) * 4; size < sizeTCP || size > len(payload) && !p.Fragment {
			p.Malformed = fmt.Sprintf("TCP header of %d bytes in %d", size, len(payload))
		}
	case p.Protocol == unix.IPPROTO_UDP:
		p.SourcePort = binary.BigEndian.Uint16(payload)
		p.DestinationPort = binary.BigEndian.Uint16(payload[2:])
		if size := int(binary.BigEndian.Uint16(payload[4:])); size < sizeUDP || size > len(payload) && !p.Fragment {
			p.Malformed = fmt.Sprintf("UDP datagram of %d bytes in %d", size, len(payload))
		}
	case p.isICMP():
		p.ICMPType, p.ICMPCode = payload[0], payload[1]
		if p.isEcho() && len(payload) >= sizeEcho {
			p.EchoID = binary.BigEndian.Uint16(payload[4:])
			p.EchoSequence = binary.BigEndian.Uint16(payload[6:])
		}
	}
}

// isICMP is whether the packet is of its family's ICMP.
func (p *Packet) isICMP() bool {
	return p.Family == 4 && p.Protocol == unix.IPPROTO_ICMP || p.Family == 6 && p.Protocol == unix.IPPROTO_ICMPV6
}

// isEcho is whether an ICMP message is an echo request or reply.
func (p *Packet) isEcho() bool {
	if p.Family == 4 {
		return p.ICMPType == uint8(ipv4.ICMPTypeEcho) || p.ICMPType == uint8(ipv4.ICMPTypeEchoReply)
	}
	return p.ICMPType == uint8(ipv6.ICMPTypeEchoRequest) || p.ICMPType == uint8(ipv6.ICMPTypeEchoReply)
}

// tcpFlags are the names of TCP's flags, from the lowest bit on (RFC 9293).
var tcpFlags = [...]string{"FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"}

// flagNames lists the names of TCP flags.
func flagNames(flags uint8) string {
	var names []string
	for bit, name := range tcpFlags {
		if flags&(1<<bit) != 0 {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "no flags"
	}
	return strings.Join(names, ",")
}
