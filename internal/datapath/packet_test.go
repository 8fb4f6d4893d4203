// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"slices"
	"testing"
)

// Protocol numbers, extension headers and TCP flags.
const (
	protoICMP, protoTCP, protoUDP, protoICMPv6, protoSCTP, protoGRE = 1, 6, 17, 58, 132, 47

	hopByHop, routing, fragmentHeader, destinationOptions = 0, 43, 44, 60

	flagFIN, flagSYN, flagRST, flagPSH, flagACK = 0x01, 0x02, 0x04, 0x08, 0x10

	chunkData, chunkInit, chunkInitAck, chunkAbort, chunkCookieEcho, chunkShutdownComplete = 0, 1, 2, 6, 10, 14
)

// packet describes a frame. The zero value of each field is the common case. Checksums are correct.
type packet struct {
	noEthernet     bool   // without an Ethernet header
	ethDst, ethSrc string // one hex digit pair, repeated: "02" is 02:02:02:02:02:02
	ethType        uint16 // if not IP's
	src, dst       netip.AddrPort
	proto          uint8
	flags          uint8  // of TCP; of SCTP: the type of the first chunk
	seq, ack       uint32 // of SCTP: the tags of the header and of an INIT
	payload        string
	options        int           // 4-byte words of IPv4 options
	extensions     []extension   // of IPv6
	fragment       *fragmentPart // set if this is a fragment
	zeroChecksum   bool          // UDP without
	icmpType       uint8         // with proto ICMP or ICMPv6
	icmpCode       uint8
	word           uint16          // the last two bytes of the header of ICMP
	hops           uint8           // of IPv6; 0: 64
	quote          *packet         // the packet that an ICMP error is about
	quoteBytes     int             // bytes of its transport that are quoted; 0: all
	mangle         func(ip []byte) // changes the packet after the checksums are computed
}

type extension struct {
	kind         uint8
	words        int // of 8 bytes, after the first
	segmentsLeft uint8
}

type fragmentPart struct {
	id     uint32
	offset int // in units of 8 bytes
	more   bool
	whole  string // the payload of the whole packet, for the first fragment's checksum
}

func (p packet) v6() bool { return p.src.Addr().Is6() }

func (p packet) with(change func(*packet)) packet {
	p.extensions = slices.Clone(p.extensions)
	change(&p)
	return p
}

func (p packet) frame() []byte {
	ip := p.ip()
	if p.mangle != nil {
		p.mangle(ip)
	}
	if p.noEthernet {
		return ip
	}
	kind := p.ethType
	if kind == 0 {
		kind = 0x0800
		if p.v6() {
			kind = 0x86dd
		}
	}
	frame := append(mac(p.ethDst), mac(p.ethSrc)...)
	return append(binary.BigEndian.AppendUint16(frame, kind), ip...)
}

func mac(pair string) []byte {
	if pair == "" {
		pair = "0e"
	}
	digits := "0123456789abcdef"
	b := byte(slices.Index([]byte(digits), pair[0])<<4 | slices.Index([]byte(digits), pair[1]))
	return slices.Repeat([]byte{b}, 6)
}

func (p packet) ip() []byte {
	body := p.transport()
	if p.v6() {
		return append(p.ipv6Header(len(body)), body...)
	}
	ip := make([]byte, 20+4*p.options)
	ip[0], ip[8], ip[9] = byte(0x40|len(ip)/4), 64, p.proto
	for i := 20; i < len(ip); i++ {
		ip[i] = 1 // no operation
	}
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(body)))
	if f := p.fragment; f != nil {
		binary.BigEndian.PutUint16(ip[4:], uint16(f.id))
		binary.BigEndian.PutUint16(ip[6:], uint16(f.offset))
		if f.more {
			ip[6] |= 0x20
		}
	}
	copy(ip[12:], p.src.Addr().AsSlice())
	copy(ip[16:], p.dst.Addr().AsSlice())
	binary.BigEndian.PutUint16(ip[10:], ^sum(ip))
	return append(ip, body...)
}

func (p packet) ipv6Header(body int) []byte {
	kinds := make([]uint8, 0, 10)
	for _, e := range p.extensions {
		kinds = append(kinds, e.kind)
	}
	if p.fragment != nil {
		kinds = append(kinds, fragmentHeader)
	}
	kinds = append(kinds, p.proto)
	ip := make([]byte, 40)
	ip[0], ip[6], ip[7] = 0x60, kinds[0], cmp.Or(p.hops, 64)
	copy(ip[8:], p.src.Addr().AsSlice())
	copy(ip[24:], p.dst.Addr().AsSlice())
	for i, e := range p.extensions {
		header := make([]byte, 8+8*e.words)
		header[0], header[1], header[3] = kinds[i+1], byte(e.words), e.segmentsLeft
		if e.kind == fragmentHeader {
			header[1] = 0
		}
		ip = append(ip, header...)
	}
	if f := p.fragment; f != nil {
		header := make([]byte, 8)
		header[0] = p.proto
		binary.BigEndian.PutUint16(header[2:], uint16(f.offset<<3))
		if f.more {
			header[3] |= 1
		}
		binary.BigEndian.PutUint32(header[4:], f.id)
		ip = append(ip, header...)
	}
	binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-40+body))
	return ip
}

func (p packet) transport() []byte {
	if p.fragment != nil && p.fragment.offset > 0 {
		return []byte(p.payload)
	}
	var b []byte
	check := -1
	switch p.proto {
	case protoTCP:
		b = make([]byte, 20)
		binary.BigEndian.PutUint32(b[4:], p.seq)
		binary.BigEndian.PutUint32(b[8:], p.ack)
		b[12], b[13] = 0x50, p.flags
		check = 16
	case protoUDP:
		b = make([]byte, 8)
		check = 6
	case protoSCTP:
		b = p.sctp()
	case protoICMP, protoICMPv6:
		b = make([]byte, 8)
		b[0], b[1] = p.icmpType, p.icmpCode
		binary.BigEndian.PutUint16(b[6:], p.word)
		check = 2
		if p.quote != nil {
			b = append(b, p.quoted()...)
		}
	}
	if p.proto == protoTCP || p.proto == protoUDP || p.proto == protoSCTP {
		binary.BigEndian.PutUint16(b[0:], p.src.Port())
		binary.BigEndian.PutUint16(b[2:], p.dst.Port())
	}
	header := len(b)
	whole := append(slices.Clone(b), p.payload...)
	b = append(b, p.payload...)
	if p.fragment != nil {
		whole = append(whole[:header], p.fragment.whole...)
	}
	if p.proto == protoUDP {
		binary.BigEndian.PutUint16(b[4:], uint16(len(whole)))
		binary.BigEndian.PutUint16(whole[4:], uint16(len(whole)))
	}
	if check >= 0 && !p.zeroChecksum {
		value := ^sum(p.pseudo(len(whole)), whole)
		if p.proto == protoUDP && value == 0 {
			value = 0xffff
		}
		binary.BigEndian.PutUint16(b[check:], value)
	}
	if p.proto == protoSCTP {
		copy(whole, b[:header])
		binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(whole, crc32.MakeTable(crc32.Castagnoli)))
	}
	return b
}

func (p packet) sctp() []byte {
	b := make([]byte, 16)
	binary.BigEndian.PutUint32(b[4:], p.seq)
	b[12], b[15] = p.flags, 4
	if p.flags == chunkInit {
		b = append(b, make([]byte, 16)...)
		binary.BigEndian.PutUint32(b[16:], p.ack)
	}
	return b
}

// quoted returns the packet that an ICMP error is about, up to quoteBytes of its transport.
func (p packet) quoted() []byte {
	ip := p.quote.ip()
	if p.quoteBytes == 0 {
		return ip
	}
	return ip[:len(ip)-len(p.quote.transport())+p.quoteBytes]
}

func (p packet) pseudo(length int) []byte {
	if p.proto == protoICMP {
		return nil
	}
	pseudo := append(p.src.Addr().AsSlice(), p.dst.Addr().AsSlice()...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(length))
	return binary.BigEndian.AppendUint32(pseudo, uint32(p.proto))
}

// sum returns the ones' complement sum (RFC 1071) over parts; all but the last have an even length.
func sum(parts ...[]byte) uint16 {
	var total uint32
	for _, part := range parts {
		for i, b := range part {
			if i%2 == 0 {
				total += uint32(b) << 8
			} else {
				total += uint32(b)
			}
		}
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}

// TestPacketBuilder compares the builder with a published sum, and checks that a correct packet sums to all ones.
func TestPacketBuilder(t *testing.T) {
	// The example of RFC 1071.
	equal(t, sum([]byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}), 0xddf2)
	p := packet{proto: protoUDP, payload: "odd",
		src: netip.MustParseAddrPort("192.168.10.11:1000"), dst: netip.MustParseAddrPort("10.96.0.100:53")}
	ip := p.frame()[14:]
	failIf(t, sum(ip[:20]) != 0xffff, "the header's checksum is wrong")
	failIf(t, sum(p.pseudo(11), ip[20:]) != 0xffff, "the datagram's checksum is wrong")
}
