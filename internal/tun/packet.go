// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

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

var sizeTransport = map[uint8]int{
	unix.IPPROTO_TCP: 20, unix.IPPROTO_UDP: 8, unix.IPPROTO_ICMP: 4, unix.IPPROTO_ICMPV6: 4,
}

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
		return fmt.Sprintf("%d malformed", len(frame))
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
//	3 IPv4 malformed
func FormatPacket(packet []byte) string {
	var h headers
	ok, line := false, fmt.Sprint(len(packet))
	switch {
	case len(packet) == 0:
	case packet[0]>>4 == 4:
		ok, line = h.readIPv4(packet), line+" IPv4"
	case packet[0]>>4 == 6:
		ok, line = h.readIPv6(packet), line+" IPv6"
	}
	var ports [2]uint16
	details := ""
	if ok && h.offset == 0 {
		ports, details, ok = h.transport()
	}
	if h.source.IsValid() {
		source, destination := h.source.String(), h.destination.String()
		if ports != [2]uint16{} {
			source = netip.AddrPortFrom(h.source, ports[0]).String()
			destination = netip.AddrPortFrom(h.destination, ports[1]).String()
		}
		line += fmt.Sprintf(" %s > %s %s", source, destination,
			cmp.Or(protocolNames[h.protocol], fmt.Sprintf("protocol %d", h.protocol)))
	}
	if h.fragment {
		details = fmt.Sprintf("%s fragment at %d", details, h.offset)
	}
	if !ok {
		details = " malformed"
	}
	return line + details
}

type headers struct {
	source, destination netip.Addr
	protocol            uint8
	fragment            bool
	offset              int // of a fragment in bytes; only that at 0 has the transport header
	payload             []byte
}

func (h *headers) readIPv4(packet []byte) bool {
	if len(packet) < sizeIPv4 {
		return false
	}
	h.source, h.destination = netip.AddrFrom4([4]byte(packet[12:])), netip.AddrFrom4([4]byte(packet[16:]))
	h.protocol = packet[9]
	fragment := binary.BigEndian.Uint16(packet[6:])
	h.offset, h.fragment = int(fragment&0x1fff)*8, fragment&0x3fff != 0
	size, total := int(packet[0]&0xf)*4, int(binary.BigEndian.Uint16(packet[2:]))
	if size < sizeIPv4 || size > total || total > len(packet) {
		return false
	}
	h.payload = packet[size:total]
	return true
}

// readIPv6 reads the header and the extension headers (RFC 8200, section 4).
func (h *headers) readIPv6(packet []byte) bool {
	if len(packet) < sizeIPv6 {
		return false
	}
	h.source, h.destination = netip.AddrFrom16([16]byte(packet[8:])), netip.AddrFrom16([16]byte(packet[24:]))
	h.protocol = packet[6]
	end := sizeIPv6 + int(binary.BigEndian.Uint16(packet[4:]))
	if end == sizeIPv6 && h.protocol == unix.IPPROTO_HOPOPTS { // a jumbogram (RFC 2675)
		end = len(packet)
	}
	if end > len(packet) {
		return false
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
			return true
		}
		if len(h.payload) < least || len(h.payload) < 8+int(h.payload[1])*unit {
			return false
		}
		if h.protocol == unix.IPPROTO_FRAGMENT {
			fragment := binary.BigEndian.Uint16(h.payload[2:])
			h.offset = int(fragment &^ 7)
			h.fragment = h.fragment || h.offset > 0 || fragment&1 != 0
		}
		h.protocol, h.payload = h.payload[0], h.payload[8+int(h.payload[1])*unit:]
	}
	return true
}

// transport reads the transport header. ok is false if it is cut off, or its sizes are wrong.
func (h *headers) transport() (ports [2]uint16, details string, ok bool) {
	least, known := sizeTransport[h.protocol]
	isICMP := h.protocol == unix.IPPROTO_ICMP || h.protocol == unix.IPPROTO_ICMPV6
	switch {
	case !known || isICMP && (h.protocol == unix.IPPROTO_ICMP) != h.source.Is4():
		return ports, "", true
	case len(h.payload) < least:
		return ports, "", false
	case isICMP:
		return ports, " " + h.icmp(), true
	}
	ports = [2]uint16{binary.BigEndian.Uint16(h.payload), binary.BigEndian.Uint16(h.payload[2:])}
	size := int(binary.BigEndian.Uint16(h.payload[4:]))
	if h.protocol == unix.IPPROTO_TCP {
		size = int(h.payload[12]>>4) * 4
		var names []string
		for bit, name := range tcpFlags {
			if h.payload[13]&(1<<bit) != 0 {
				names = append(names, name)
			}
		}
		details = " " + cmp.Or(strings.Join(names, ","), "no flags")
	}
	return ports, details, size >= least && (size <= len(h.payload) || h.fragment)
}

func (h *headers) icmp() string {
	kind, code := int(h.payload[0]), h.payload[1]
	name := ipv6.ICMPType(kind).String()
	echo := kind == int(ipv6.ICMPTypeEchoRequest) || kind == int(ipv6.ICMPTypeEchoReply)
	if h.source.Is4() {
		name = ipv4.ICMPType(kind).String()
		echo = kind == int(ipv4.ICMPTypeEcho) || kind == int(ipv4.ICMPTypeEchoReply)
	}
	if strings.HasPrefix(name, "<") { // unknown to the library
		name = fmt.Sprintf("type %d", kind)
	}
	if !echo || len(h.payload) < 8 {
		return fmt.Sprintf("%s code %d", name, code)
	}
	id, sequence := binary.BigEndian.Uint16(h.payload[4:]), binary.BigEndian.Uint16(h.payload[6:])
	return fmt.Sprintf("%s id %d seq %d", name, id, sequence)
}

// Printer prints packets, or rates, with the seconds since it was created.
type Printer struct {
	out   io.Writer
	kind  Kind
	start time.Time
}

// NewPrinter returns a printer for the packets of devices of a kind.
func NewPrinter(out io.Writer, kind Kind) *Printer { return &Printer{out, kind, time.Now()} }

// Packet prints a packet on one line, in one write. It is a [Watch].
func (p *Printer) Packet(direction Direction, packet []byte) error {
	format := FormatFrame
	if p.kind == TUN {
		format = FormatPacket
	}
	_, err := fmt.Fprintf(p.out, "%.6f %s %s\n", time.Since(p.start).Seconds(), direction, format(packet))
	return err
}

// Flow is a direction of traffic with its counters.
type Flow struct {
	label string
	count *flowCount
}

// Flows returns the two directions of a device, in and out.
func (d *Device) Flows() []Flow { return []Flow{d.ReadFlow("in"), {"out", &d.written}} }

// ReadFlow returns the direction from the kernel with a label.
func (d *Device) ReadFlow(label string) Flow { return Flow{label, &d.read} }

// Rates prints a line with the rate of each flow every second until ctx ends.
func (p *Printer) Rates(ctx context.Context, flows []Flow) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	last, lastTime := make([][2]uint64, len(flows)), time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now := time.Now()
		seconds := now.Sub(lastTime).Seconds()
		var parts []string
		for i, f := range flows {
			packets, bytes := f.count.packets.Load(), f.count.bytes.Load()
			parts = append(parts, fmt.Sprintf("%s %.0f packets/s %.3f Mbit/s", f.label,
				float64(packets-last[i][0])/seconds, float64(bytes-last[i][1])*8/seconds/1e6))
			last[i] = [2]uint64{packets, bytes}
		}
		if _, err := fmt.Fprintf(p.out, "%.1f %s\n", now.Sub(p.start).Seconds(), strings.Join(parts, ", ")); err != nil {
			return err
		}
		lastTime = now
	}
}
