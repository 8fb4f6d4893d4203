// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// answerTTL is the TTL or hop limit of answers.
const answerTTL = 64

// answer turns an ICMP echo request or a UDP datagram into its echo, in place.
// It returns false if the packet is neither, and then leaves it as it is.
//
// It keeps no state: addresses and ports change places, which leaves the UDP
// checksum right, and all fragments of a datagram go back as they came.
func answer(packet []byte) bool {
	p := Decode(packet)
	if p.Malformed != "" || p.routed || !hostAddress(p.Source) || !hostAddress(p.Destination) {
		return false
	}
	udp := p.Protocol == unix.IPPROTO_UDP
	switch transport := packet[p.transport:]; {
	case !udp && !p.isICMP():
		return false
	case p.Offset > 0: // the transport's header went before
	case udp && (p.SourcePort == 0 || p.DestinationPort == 0):
		return false
	case udp:
		swap(transport[:2], transport[2:4])
	default:
		reply, ok := echoReply(&p)
		if !ok {
			return false
		}
		setWord(transport, 0, uint16(reply)<<8|uint16(p.ICMPCode), 2)
	}
	if p.Family == 4 {
		swap(packet[12:16], packet[16:20])
		setWord(packet, 8, answerTTL<<8|uint16(packet[9]), 10)
	} else {
		swap(packet[8:24], packet[24:40])
		packet[7] = answerTTL
	}
	return true
}

// echoReply is the ICMP type that answers an echo request.
func echoReply(p *Packet) (reply uint8, ok bool) {
	switch {
	case p.Family == 4 && p.ICMPType == uint8(ipv4.ICMPTypeEcho):
		return uint8(ipv4.ICMPTypeEchoReply), true
	case p.Family == 6 && p.ICMPType == uint8(ipv6.ICMPTypeEchoRequest):
		return uint8(ipv6.ICMPTypeEchoReply), true
	}
	return 0, false
}

// hostAddress is whether an address can be that of one host, to be answered from
// or to.
func hostAddress(addr netip.Addr) bool {
	broadcast := netip.AddrFrom4([4]byte{255, 255, 255, 255})
	return addr.IsValid() && !addr.IsUnspecified() && !addr.IsMulticast() && addr != broadcast
}

// swap exchanges the contents of two slices of one length.
func swap(a, b []byte) {
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}

// setWord sets the 16 bits at an offset, and keeps the checksum at another right
// (RFC 1624, equation 3).
func setWord(header []byte, at int, value uint16, checksumAt int) {
	old := binary.BigEndian.Uint16(header[at:])
	sum := uint32(^binary.BigEndian.Uint16(header[checksumAt:])) + uint32(^old) + uint32(value)
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(header[at:], value)
	binary.BigEndian.PutUint16(header[checksumAt:], ^uint16(sum))
}
