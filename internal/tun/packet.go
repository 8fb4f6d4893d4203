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
	sizeEthernet = 14
	sizeIPv4     = 20
	sizeIPv6     = 40
)

// sizeTransport are the sizes of transport headers, by protocol.
var sizeTransport = map[uint8]int{
	unix.IPPROTO_TCP: 20, unix.IPPROTO_UDP: 8, unix.IPPROTO_ICMP: 4, unix.IPPROTO_ICMPV6: 4,
}

// protocolNames are the names of common IP protocols.
var protocolNames = map[uint8]string{
	unix.IPPROTO_TCP: "TCP", unix.IPPROTO_UDP: "UDP", unix.IPPROTO_ICMP: "ICMP", unix.IPPROTO_ICMPV6: "ICMPv6",
	unix.IPPROTO_SCTP: "SCTP", unix.IPPROTO_GRE: "GRE", unix.IPPROTO_ESP: "ESP", unix.IPPROTO_NONE: "no payload",
}

// tcpFlags are the names of the TCP flags from the lowest bit (RFC 9293).
var tcpFlags = [...]string{"FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"}

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
		return line + FormatPacket(frame[sizeEthernet:])
	case unix.ETH_P_ARP:
		return line + "ARP"
	default:
		return line + fmt.Sprintf("type %#04x", kind)
	}
}

// FormatPacket formats an IP packet on one line: length, family, addresses with ports, protocol, and fields of the
// transport header. It accepts any input.
//
//	60 IPv4 10.9.0.1:40312 > 10.9.0.2:80 TCP SYN
//	84 IPv4 10.9.0.1 > 10.9.0.2 ICMP echo id 7 seq 1
//	3 IPv4 malformed: header ends after 3 bytes
func FormatPacket(packet []byte) string {
	if len(packet) == 0 {
		return "0 malformed: empty"
	}
	h := headers{family: int(packet[0] >> 4)}
	switch h.family {
	case 4:
		h.readIPv4(packet)
	case 6:
		h.readIPv6(packet)
	default:
		return fmt.Sprintf("%d malformed: IP version %d", len(packet), h.family)
	}
	if h.malformed == "" && h.offset == 0 {
		h.readTransport()
	}
	line := fmt.Sprintf("%d IPv%d", len(packet), h.family)
	if h.source.IsValid() {
		source, destination := h.source.String(), h.destination.String()
		if h.ports != [2]uint16{} {
			source = netip.AddrPortFrom(h.source, h.ports[0]).String()
			destination = netip.AddrPortFrom(h.destination, h.ports[1]).String()
		}
		line += fmt.Sprintf(" %s > %s %s", source, destination, protocolName(h.protocol))
	}
	if h.details != "" && h.malformed == "" {
		line += " " + h.details
	}
	if h.fragment {
		line += fmt.Sprintf(" fragment at %d", h.offset)
	}
	if h.malformed != "" {
		line += " malformed: " + h.malformed
	}
	return line
}

// headers are the headers of an IP packet, as far as they can be read.
type headers struct {
	family              int
	source, destination netip.Addr
	protocol            uint8
	fragment            bool
	offset              int // of a fragment in bytes; only that at 0 has the transport header
	payload             []byte
	ports               [2]uint16
	details             string // of the transport header
	malformed           string // the fault; empty without one
}

func (h *headers) fail(format string, args ...any) { h.malformed = fmt.Sprintf(format, args...) }

func (h *headers) readIPv4(packet []byte) {
	if len(packet) < sizeIPv4 {
		h.fail("header ends after %d bytes", len(packet))
		return
	}
	h.source, h.destination = netip.AddrFrom4([4]byte(packet[12:])), netip.AddrFrom4([4]byte(packet[16:]))
	h.protocol = packet[9]
	fragment := binary.BigEndian.Uint16(packet[6:])
	h.offset = int(fragment&0x1fff) * 8
	switch size, total := int(packet[0]&0xf)*4, int(binary.BigEndian.Uint16(packet[2:])); {
	case size < sizeIPv4 || size > total:
		h.fail("header of %d bytes, packet of %d", size, total)
	case total > len(packet):
		h.fail("%d bytes of %d", len(packet), total)
	default:
		h.fragment, h.payload = h.offset > 0 || fragment&0x2000 != 0, packet[size:total]
	}
}

// readIPv6 reads the header and the extension headers (RFC 8200, section 4).
func (h *headers) readIPv6(packet []byte) {
	if len(packet) < sizeIPv6 {
		h.fail("header ends after %d bytes", len(packet))
		return
	}
	h.source, h.destination = netip.AddrFrom16([16]byte(packet[8:])), netip.AddrFrom16([16]byte(packet[24:]))
	h.protocol = packet[6]
	end := sizeIPv6 + int(binary.BigEndian.Uint16(packet[4:]))
	if end == sizeIPv6 && h.protocol == unix.IPPROTO_HOPOPTS { // a jumbogram (RFC 2675)
		end = len(packet)
	}
	if end > len(packet) {
		h.fail("%d bytes of %d", len(packet), end)
		return
	}
	for h.payload = packet[sizeIPv6:end]; h.offset == 0; {
		least, unit := 8, 8
		switch h.protocol {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS, unix.IPPROTO_MH:
		case unix.IPPROTO_FRAGMENT:
			unit = 0
		case unix.IPPROTO_AH: // its length is in other units, without its first two
			least, unit = 12, 4
		default:
			return
		}
		size := least
		if len(h.payload) >= least {
			size = 8 + int(h.payload[1])*unit
		}
		if len(h.payload) < size {
			h.fail("extension header %d ends after %d bytes", h.protocol, len(h.payload))
			return
		}
		if h.protocol == unix.IPPROTO_FRAGMENT {
			fragment := binary.BigEndian.Uint16(h.payload[2:])
			h.offset = int(fragment &^ 7)
			h.fragment = h.fragment || h.offset > 0 || fragment&1 != 0
		}
		h.protocol, h.payload = h.payload[0], h.payload[size:]
	}
}

func (h *headers) readTransport() {
	least, known := sizeTransport[h.protocol]
	icmp := h.protocol == unix.IPPROTO_ICMP || h.protocol == unix.IPPROTO_ICMPV6
	switch {
	case !known || icmp && (h.protocol == unix.IPPROTO_ICMP) != (h.family == 4):
		return
	case len(h.payload) < least:
		h.fail("%s header ends after %d bytes", protocolName(h.protocol), len(h.payload))
		return
	case icmp:
		h.details = h.icmp()
		return
	}
	h.ports = [2]uint16{binary.BigEndian.Uint16(h.payload), binary.BigEndian.Uint16(h.payload[2:])}
	size, fault := int(binary.BigEndian.Uint16(h.payload[4:])), "UDP datagram of %d bytes in %d"
	if h.protocol == unix.IPPROTO_TCP {
		size, fault = int(h.payload[12]>>4)*4, "TCP header of %d bytes in %d"
		var names []string
		for bit, name := range tcpFlags {
			if h.payload[13]&(1<<bit) != 0 {
				names = append(names, name)
			}
		}
		h.details = cmp.Or(strings.Join(names, ","), "no flags")
	}
	if size < least || size > len(h.payload) && !h.fragment {
		h.fail(fault, size, len(h.payload))
	}
}

// icmp formats an ICMP message, or one of ICMPv6 in IPv6.
func (h *headers) icmp() string {
	kind, code := int(h.payload[0]), h.payload[1]
	name := ipv6.ICMPType(kind).String()
	echo := kind == int(ipv6.ICMPTypeEchoRequest) || kind == int(ipv6.ICMPTypeEchoReply)
	if h.family == 4 {
		name = ipv4.ICMPType(kind).String()
		echo = kind == int(ipv4.ICMPTypeEcho) || kind == int(ipv4.ICMPTypeEchoReply)
	}
	if strings.HasPrefix(name, "<") { // unknown to the library
		name = fmt.Sprintf("type %d", kind)
	}
	if !echo {
		return fmt.Sprintf("%s code %d", name, code)
	}
	var id, sequence uint16
	if len(h.payload) >= 8 {
		id, sequence = binary.BigEndian.Uint16(h.payload[4:]), binary.BigEndian.Uint16(h.payload[6:])
	}
	return fmt.Sprintf("%s id %d seq %d", name, id, sequence)
}

// protocolName returns the name of a protocol, or "protocol" and its number.
func protocolName(protocol uint8) string {
	return cmp.Or(protocolNames[protocol], fmt.Sprintf("protocol %d", protocol))
}
