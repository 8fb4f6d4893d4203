// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
)

// hideTransport makes a first fragment of the packet that ends within its transport header, and leaves the rest of that
// behind it in the frame: there it says what the sender likes.
func hideTransport(p *packet) {
	p.fragment = &fragmentPart{id: 7, more: true, whole: p.payload}
	v6 := p.v6()
	p.mangle = func(ip []byte) {
		if v6 {
			binary.BigEndian.PutUint16(ip[4:], 8+7)
			return
		}
		binary.BigEndian.PutUint16(ip[2:], 20+7)
	}
}

// withoutLength sets the length field to 0, as in packets that are too large for it: in both families while the kernel
// has them whole, in IPv6 also with a jumbo option (RFC 2675).
func withoutLength(p *packet) {
	p.payload = strings.Repeat("mustang ", 180)
	v6, jumbo := p.v6(), len(p.extensions) > 0
	p.mangle = func(ip []byte) {
		if v6 {
			binary.BigEndian.PutUint16(ip[4:], 0)
			if jumbo {
				ip[42], ip[43] = 0xc2, 4
				binary.BigEndian.PutUint32(ip[44:], uint32(len(ip)-40))
			}
			return
		}
		binary.BigEndian.PutUint16(ip[2:], 0)
		binary.BigEndian.PutUint16(ip[10:], 0)
		binary.BigEndian.PutUint16(ip[10:], ^sum(ip[:20]))
	}
}

// icmp returns a message of type4 in IPv4 and of type6 in IPv6.
func (w *world) icmp(src, dst netip.Addr, type4, type6 uint8) packet {
	p := packet{src: netip.AddrPortFrom(src, 0), dst: netip.AddrPortFrom(dst, 0), proto: protoICMP, icmpType: type4}
	if w.v6 {
		p.proto, p.icmpType = protoICMPv6, type6
	}
	return p
}

// parts splits a packet into two fragments.
func (w *world) parts(p packet) (first, later packet) {
	p.payload = strings.Repeat("fragment", 10)
	return p.part(0, 32), p.part(32, 80)
}

// part returns the fragment with payload bytes from..to.
func (p packet) part(from, to int) packet {
	header := len(p.with(func(p *packet) { p.payload = "" }).transport())
	f := &fragmentPart{id: 77, whole: p.payload, more: to < len(p.payload)}
	if from > 0 {
		f.offset = (from + header + 7) / 8
	}
	p.payload, p.fragment = p.payload[from:to], f
	return p
}

// open opens a connection of the client to the service.
func (w *world) open(t *testing.T, backend netip.AddrPort) {
	t.Helper()
	w.serve(t, w.service, backend)
	w.send(t, fromHost, w.first(w.client, w.service))
}

// about returns the ICMP error with another quoted packet.
func (p packet) about(quote packet) packet {
	p.quote = &quote
	return p
}
