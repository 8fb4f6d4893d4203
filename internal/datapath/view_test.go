// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// class is the programs' classification of a frame's headers.
type class int

const (
	classOther      class = iota // left alone
	classMalformed               // a header contradicts itself, or is cut off
	classExtensions              // too many extension headers
	classIP                      // may be translated
)

// view is the headers of a frame, as a parser in Go sees them. It shares no code with the programs.
type view struct {
	class     class
	v6        bool
	l3, l4    int
	proto     uint8
	src, dst  netip.AddrPort // the port is 0 where there is none
	ports     bool           // TCP, UDP or SCTP with its header
	flags     uint8          // of TCP
	first     bool           // a first fragment
	later     bool           // a later fragment
	icmpError bool
	echo      bool   // an ICMP echo request
	id        uint32 // of a fragment
}

// viewFrame parses a frame that has an Ethernet header, or whose ethertype the kernel takes from the same place.
func viewFrame(frame []byte, ethernet bool) view {
	kind := binary.BigEndian.Uint16(frame[12:])
	start := 0
	if ethernet {
		if frame[0]&1 != 0 {
			return view{}
		}
		start = 14
	}
	var v view
	switch kind {
	case 0x0800:
		v = viewIPv4(frame, start)
	case 0x86dd:
		v = viewIPv6(frame, start)
	}
	if v.flags&(flagSYN|flagFIN|flagRST) == flagSYN|flagFIN {
		v.class = classMalformed
	}
	return v
}

func viewIPv4(b []byte, l3 int) view {
	if len(b) < l3+20 {
		return view{class: classMalformed}
	}
	ip := b[l3:]
	words := int(ip[0] & 15)
	if ip[0]>>4 != 4 || words < 5 {
		return view{class: classMalformed}
	}
	v := view{class: classIP, l3: l3, l4: l3 + 4*words, proto: ip[9]}
	v.src = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[12:16])), 0)
	v.dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[16:20])), 0)
	fragment := binary.BigEndian.Uint16(ip[6:])
	v.id = uint32(binary.BigEndian.Uint16(ip[4:]))
	v.later = fragment&0x1fff != 0
	v.first = !v.later && fragment&0x2000 != 0
	size := int(binary.BigEndian.Uint16(ip[2:])) - 4*words
	if v.later && (size < 0 || 8*int(fragment&0x1fff) < v.leastTransport()) || v.first && size < v.leastTransport() {
		return view{class: classMalformed}
	}
	return v.transport(b)
}

// leastTransport is the number of bytes that a first fragment has of the transport protocol, and where a later one may
// begin.
func (v view) leastTransport() int {
	return map[uint8]int{protoTCP: 20, protoSCTP: 13}[v.proto] + map[bool]int{true: 8}[v.proto != protoTCP &&
		v.proto != protoSCTP]
}

func viewIPv6(b []byte, l3 int) view {
	if len(b) < l3+40 || b[l3]>>4 != 6 {
		return view{class: classMalformed}
	}
	ip := b[l3:]
	v := view{class: classIP, v6: true, l3: l3, l4: l3 + 40, proto: ip[6]}
	v.src = netip.AddrPortFrom(netip.AddrFrom16([16]byte(ip[8:24])), 0)
	v.dst = netip.AddrPortFrom(netip.AddrFrom16([16]byte(ip[24:40])), 0)
	for range 8 {
		if !isExtension(v.proto) || v.later {
			break
		}
		if len(b) < v.l4+4 || v.proto == fragmentHeader && len(b) < v.l4+8 {
			return view{class: classMalformed}
		}
		header := b[v.l4:]
		if v.proto == fragmentHeader {
			offset := binary.BigEndian.Uint16(header[2:])
			v.later = v.later || offset&0xfff8 != 0
			v.first = v.first || offset&0xfff8 == 0 && offset&1 != 0
			v.id, v.l4 = binary.BigEndian.Uint32(header[4:]), v.l4+8
			v.proto = header[0]
			if offset&0xfff8 != 0 && int(offset&0xfff8) < v.leastTransport() {
				return view{class: classMalformed}
			}
		} else {
			if v.proto == routing && header[3] != 0 {
				return view{}
			}
			v.l4 += 8 + 8*int(header[1])
		}
		v.proto = header[0]
	}
	if isExtension(v.proto) && !v.later {
		return view{class: classExtensions}
	}
	if end := l3 + 40 + int(binary.BigEndian.Uint16(ip[4:])); v.first && !v.later && end-v.l4 < v.leastTransport() {
		return view{class: classMalformed}
	}
	return v.transport(b)
}

func isExtension(proto uint8) bool {
	return slices.Contains([]uint8{hopByHop, routing, fragmentHeader, destinationOptions}, proto)
}

// transport adds the fields of the header after IP.
func (v view) transport(b []byte) view {
	icmp := uint8(protoICMP)
	if v.v6 {
		icmp = protoICMPv6
	}
	size, known := map[uint8]int{protoTCP: 20, protoUDP: 8, protoSCTP: 12, icmp: 8}[v.proto]
	if v.later || !known {
		return v
	}
	if len(b) < v.l4+size {
		return view{class: classMalformed}
	}
	header := b[v.l4:]
	if v.proto == icmp {
		switch {
		case v.v6 && header[0] >= 133 && header[0] <= 137: // discovery belongs to the link
			return view{}
		case v.v6:
			v.echo = header[0] == 128
			v.icmpError = header[0] >= 1 && header[0] <= 4
		default:
			v.echo = header[0] == 8
			v.icmpError = slices.Contains([]uint8{3, 11, 12}, header[0])
		}
		return v
	}
	if v.proto == protoTCP {
		v.flags = header[13]
	}
	return v.withPorts(header)
}

func (v view) withPorts(header []byte) view {
	v.ports = true
	v.src = netip.AddrPortFrom(v.src.Addr(), binary.BigEndian.Uint16(header[0:]))
	v.dst = netip.AddrPortFrom(v.dst.Addr(), binary.BigEndian.Uint16(header[2:]))
	return v
}

// quote is the packet that an ICMP error is about, up to its ports; false if the error quotes too little of one.
func (v view) quote(b []byte) (view, bool) {
	// Its transport header may be cut off: a longer one is parsed.
	q := v.parser()(append(slices.Clone(b), make([]byte, 20)...), v.l4+8)
	if q.class != classIP || q.later || !slices.Contains([]uint8{protoTCP, protoUDP, protoSCTP}, q.proto) ||
		len(b) < q.l4+8 {
		return view{}, false
	}
	return q.withPorts(b[q.l4:]), true
}

// checksumAt is the offset of the transport checksum; 0 if the packet lacks one, or it is not in these bytes.
func (v view) checksumAt(b []byte) int {
	at := v.l4 + 16
	if v.proto == protoUDP {
		at = v.l4 + 6
	}
	if v.later || !v.ports || v.proto == protoSCTP || len(b) < at+2 || v.proto == protoUDP && b[at] == 0 && b[at+1] == 0 {
		return 0
	}
	return at
}

func (v view) addresses(b []byte) []byte {
	if v.v6 {
		return b[v.l3+8 : v.l3+40]
	}
	return b[v.l3+12 : v.l3+20]
}

// sums are the sums that a translation must not change, modulo 0xffff (RFC 1624). They are: over the IPv4 header;
// over all that the transport checksum covers and the translation may change; over an ICMP error with its quote; and
// the first two for the quote.
func (v view) sums(b []byte) (sums []uint16) {
	if !v.v6 {
		sums = append(sums, sum(b[v.l3:v.l3+20]))
	}
	if at := v.checksumAt(b); at != 0 {
		sums = append(sums, sum(v.addresses(b), b[v.l4:v.l4+4], b[at:at+2]))
	}
	if v.icmpError {
		var pseudo []byte
		if v.v6 {
			pseudo = v.addresses(b)
		}
		sums = append(sums, sum(pseudo, b[v.l4:]))
		if q, ok := v.quote(b); ok {
			sums = append(sums, q.sums(b)...)
		}
	}
	for i := range sums {
		sums[i] %= 0xffff
	}
	return sums
}

// blank returns the bytes from the IP header on, with zeros where a translation may write: addresses, ports, checksums,
// and the same of a quoted packet.
func (v view) blank(b []byte) []byte {
	b = slices.Clone(b)
	v.erase(b)
	if q, ok := v.quote(b); v.icmpError && ok {
		clear(b[v.l4+2 : v.l4+4])
		q.erase(b)
	}
	return b[v.l3:]
}

func (v view) erase(b []byte) {
	at := v.checksumAt(b)
	clear(v.addresses(b))
	if !v.v6 {
		clear(b[v.l3+10 : v.l3+12])
	}
	if v.ports && !v.later {
		clear(b[v.l4 : v.l4+4])
	}
	if at != 0 {
		clear(b[at : at+2])
	}
}
