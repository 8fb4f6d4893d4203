// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

func hexBytes(t testing.TB, digits string) []byte {
	t.Helper()
	data := testkit.Must(hex.DecodeString(strings.Join(strings.Fields(digits), "")))(t)
	return data
}

// Headers as they are on a wire. The checksums are right where it matters.
const (
	addresses4 = "0a090001 0a090002"
	addresses6 = "fd000009 00000000 00000000 00000001 fd000009 00000000 00000000 00000002"
	syn        = "9d780050 00000001 00000000 a002ffff 00000000 020405b4 0402080a 00000000 00000000 01030307"
)

var decodeTests = []struct{ name, packet, want string }{
	{"tcp4", "4500003c 00004000 40060000" + addresses4 + syn, "60 IPv4 10.9.0.1:40312 > 10.9.0.2:80 TCP SYN"},
	{"tcp6", "60000000 00280640" + addresses6 + syn, "80 IPv6 [fd00:9::1]:40312 > [fd00:9::2]:80 TCP SYN"},
	{"tcp all flags", "45000028 00004000 40060000" + addresses4 + "9d780050 00000001 00000000 50ffffff 00000000",
		"40 IPv4 10.9.0.1:40312 > 10.9.0.2:80 TCP FIN,SYN,RST,PSH,ACK,URG,ECE,CWR"},
	{"tcp no flags", "45000028 00004000 40060000" + addresses4 + "9d780050 00000001 00000000 5000ffff 00000000",
		"40 IPv4 10.9.0.1:40312 > 10.9.0.2:80 TCP no flags"},
	{"tcp with options of IP", "4700 0030 00004000 40060000" + addresses4 +
		"01010101 01010101 9d780050 00000001 00000000 5010ffff 00000000",
		"48 IPv4 10.9.0.1:40312 > 10.9.0.2:80 TCP ACK"},
	{"udp4", "4500001e 00000000 40110000" + addresses4 + "0035ffff 000a0000 6869",
		"30 IPv4 10.9.0.1:53 > 10.9.0.2:65535 UDP"},
	{"udp6", "60000000 000a1140" + addresses6 + "0035ffff 000a0000 6869",
		"50 IPv6 [fd00:9::1]:53 > [fd00:9::2]:65535 UDP"},
	{"echo request", "4500001c 00000000 40010000" + addresses4 + "0800f7f5 00070003",
		"28 IPv4 10.9.0.1 > 10.9.0.2 ICMP echo id 7 seq 3"},
	{"echo reply", "4500001c 00000000 40010000" + addresses4 + "0000fff5 00070003",
		"28 IPv4 10.9.0.1 > 10.9.0.2 ICMP echo reply id 7 seq 3"},
	{"unreachable", "4500001c 00000000 40010000" + addresses4 + "0304f7f5 00000578",
		"28 IPv4 10.9.0.1 > 10.9.0.2 ICMP destination unreachable code 4"},
	{"unknown icmp", "4500001c 00000000 40010000" + addresses4 + "c800f7f5 00000000",
		"28 IPv4 10.9.0.1 > 10.9.0.2 ICMP type 200 code 0"},
	{"echo request 6", "60000000 00083a40" + addresses6 + "80000000 00070003",
		"48 IPv6 fd00:9::1 > fd00:9::2 ICMPv6 echo request id 7 seq 3"},
	{"router solicitation", "60000000 00083aff" + addresses6 + "85000000 00000000",
		"48 IPv6 fd00:9::1 > fd00:9::2 ICMPv6 router solicitation code 0"},
	{"icmp of the other family", "60000000 00080140" + addresses6 + "08000000 00070003",
		"48 IPv6 fd00:9::1 > fd00:9::2 ICMP"},
	{"extension headers", "60000000 00220040" + addresses6 +
		"2b000502 00000000 3c000000 00000000 11000104 00000000 0035ffff 000a0000 6869",
		"74 IPv6 [fd00:9::1]:53 > [fd00:9::2]:65535 UDP"},
	{"authentication header", "60000000 00163340" + addresses6 + "11010000 00000001 00000001 0035ffff 000a0000 6869",
		"62 IPv6 [fd00:9::1]:53 > [fd00:9::2]:65535 UDP"},
	{"unknown protocol", "45000014 00000000 40630000" + addresses4, "20 IPv4 10.9.0.1 > 10.9.0.2 protocol 99"},
	{"no next header", "60000000 00003b40" + addresses6, "40 IPv6 fd00:9::1 > fd00:9::2 no payload"},
	{"first fragment 4", "4500001e 00002000 40110000" + addresses4 + "0035ffff 05dc0000 6869",
		"30 IPv4 10.9.0.1:53 > 10.9.0.2:65535 UDP fragment at 0"},
	{"later fragment 4", "45000016 000000b9 40110000" + addresses4 +
		"6869", "22 IPv4 10.9.0.1 > 10.9.0.2 UDP fragment at 1480"},
	{"first fragment 6", "60000000 00122c40" + addresses6 + "11000001 00000001 0035ffff 05dc0000 6869",
		"58 IPv6 [fd00:9::1]:53 > [fd00:9::2]:65535 UDP fragment at 0"},
	{"later fragment 6", "60000000 000a2c40" + addresses6 + "110005a8 00000001 6869",
		"50 IPv6 fd00:9::1 > fd00:9::2 UDP fragment at 1448"},
	{"padding", "45000014 00000000 40630000" + addresses4 + "00000000", "24 IPv4 10.9.0.1 > 10.9.0.2 protocol 99"},

	{"empty", "", "0 malformed"},
	{"version 0", "00", "1 malformed"},
	{"version 15", "ffffff", "3 malformed"},
	{"short 4", "450000", "3 IPv4 malformed"},
	{"short 6", "600000", "3 IPv6 malformed"},
	{"header length 4", "44000014 00000000 40060000" + addresses4, "20 IPv4 10.9.0.1 > 10.9.0.2 TCP malformed"},
	{"header beyond packet", "4f000014 00000000 40060000" + addresses4, "20 IPv4 10.9.0.1 > 10.9.0.2 TCP malformed"},
	{"total length 0", "45000000 00000000 40060000" + addresses4, "20 IPv4 10.9.0.1 > 10.9.0.2 TCP malformed"},
	{"truncated 4", "450005dc 00000000 40060000" + addresses4, "20 IPv4 10.9.0.1 > 10.9.0.2 TCP malformed"},
	{"truncated 6", "60000000 05b40640" + addresses6, "40 IPv6 fd00:9::1 > fd00:9::2 TCP malformed"},
	{"short tcp", "45000018 00000000 40060000" + addresses4 + "9d780050", "24 IPv4 10.9.0.1 > 10.9.0.2 TCP malformed"},
	{"tcp data offset 4", "45000028 00004000 40060000" + addresses4 + "9d780050 00000001 00000000 4002ffff 00000000",
		"40 IPv4 10.9.0.1:40312 > 10.9.0.2:80 TCP malformed"},
	{"tcp data offset 15", "45000028 00004000 40060000" + addresses4 + "9d780050 00000001 00000000 f002ffff 00000000",
		"40 IPv4 10.9.0.1:40312 > 10.9.0.2:80 TCP malformed"},
	{"short udp", "45000018 00000000 40110000" + addresses4 + "0035ffff", "24 IPv4 10.9.0.1 > 10.9.0.2 UDP malformed"},
	{"udp length", "4500001c 00000000 40110000" + addresses4 + "0035ffff 00640000",
		"28 IPv4 10.9.0.1:53 > 10.9.0.2:65535 UDP malformed"},
	{"short icmp", "45000016 00000000 40010000" + addresses4 + "0800", "22 IPv4 10.9.0.1 > 10.9.0.2 ICMP malformed"},
	{"short extension", "60000000 00043c40" + addresses6 +
		"11000000", "44 IPv6 fd00:9::1 > fd00:9::2 protocol 60 malformed"},
	{"long extension", "60000000 00083c40" + addresses6 + "11ff0000 00000000",
		"48 IPv6 fd00:9::1 > fd00:9::2 protocol 60 malformed"},
	{"endless extensions", "60000000 00183c40" + addresses6 + strings.Repeat("3c000000 00000000", 3),
		"64 IPv6 fd00:9::1 > fd00:9::2 protocol 60 malformed"},
}

func TestFormatPacket(t *testing.T) {
	for _, test := range decodeTests {
		t.Run(test.name, func(t *testing.T) {
			got := FormatPacket(hexBytes(t, test.packet))
			testkit.Check(t, got == test.want, "got  %s\nwant %s", got, test.want)
		})
	}
}

func TestFormatFrame(t *testing.T) {
	const macs = "ffffffffffff 020000000001"
	for _, test := range []struct{ frame, want string }{
		{"", "0 malformed"},
		{macs, "12 malformed"},
		{macs + "0806 0001", "16 02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff ARP"},
		{macs + "88cc", "14 02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff type 0x88cc"},
		{macs + "0800 4500001e 00000000 40110000" + addresses4 + "0035ffff 000a0000 6869",
			"44 02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff 30 IPv4 10.9.0.1:53 > 10.9.0.2:65535 UDP"},
		{macs + "86dd 60", "15 02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff 1 IPv6 malformed"},
	} {
		got := FormatFrame(hexBytes(t, test.frame))
		testkit.Check(t, got == test.want, "got  %s\nwant %s", got, test.want)
	}
}

// sum writes the checksums of a packet, whose headers must be without options: RFC 1071's sum, in its simplest form.
func sum(packet []byte) {
	p, size, length := headers{}, sizeIPv6, len(packet)-sizeIPv6
	if packet[0]>>4 == 6 {
		p.readIPv6(packet)
	} else {
		p.readIPv4(packet)
		size, length = sizeIPv4, len(packet)-sizeIPv4
		binary.BigEndian.PutUint16(packet[10:], ^internetSum(packet[:size]))
	}
	pseudo := append(append(p.source.AsSlice(), p.destination.AsSlice()...), 0, p.protocol, byte(length>>8), byte(length))
	if p.protocol == 1 {
		pseudo = nil
	}
	if at := map[uint8]int{1: 2, 58: 2, 17: 6, 6: 16}[p.protocol]; length > at+1 {
		binary.BigEndian.PutUint16(packet[size+at:], 0)
		binary.BigEndian.PutUint16(packet[size+at:], ^internetSum(append(pseudo, packet[size:]...)))
	}
}

func internetSum(data []byte) uint16 {
	var sum uint32
	for i, b := range data {
		sum += uint32(b) << (8 - i%2*8)
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// TestAnswers has packets that are answered, and others that are not. Kernels check the answers in the tests of Echo.
func TestAnswers(t *testing.T) {
	for name, test := range map[string]struct{ packet, want string }{
		"echo 4": {"4500001d 00000000 05010000" + addresses4 + "08000000 00070003 61",
			"29 IPv4 10.9.0.2 > 10.9.0.1 ICMP echo reply id 7 seq 3"},
		"echo 6": {"60000000 00093a05" + addresses6 + "80000000 00070003 61",
			"49 IPv6 fd00:9::2 > fd00:9::1 ICMPv6 echo reply id 7 seq 3"},
		"udp 4": {"4500001e 00000000 05110000" + addresses4 + "0035ffff 000a0000 6869",
			"30 IPv4 10.9.0.2:65535 > 10.9.0.1:53 UDP"},
		"udp 6": {"60000000 000a1105" + addresses6 + "0035ffff 000a0000 6869",
			"50 IPv6 [fd00:9::2]:65535 > [fd00:9::1]:53 UDP"},

		"echo reply":        {packet: "4500001c 00000000 40010000" + addresses4 + "0000fff5 00070003"},
		"icmp error":        {packet: "4500001c 00000000 40010000" + addresses4 + "0304f7f5 00000578"},
		"echo of IPv4 in 6": {packet: "60000000 00083a40" + addresses6 + "08000000 00070003"},
		"to multicast":      {packet: "4500001e 00000000 40110000 0a090001 e00000fb 0035ffff 000a0000 6869"},
		"to broadcast":      {packet: "4500001e 00000000 40110000 0a090001 ffffffff 0035ffff 000a0000 6869"},
		"echo to broadcast": {packet: "4500001c 00000000 40010000 0a090001 ffffffff 08000000 00070003"},
		"from unspecified":  {packet: "4500001e 00000000 40110000 00000000 0a090002 0035ffff 000a0000 6869"},
		"from multicast":    {packet: "4500001e 00000000 40110000 e0000001 0a090002 0035ffff 000a0000 6869"},
		"from port 0":       {packet: "4500001e 00000000 40110000" + addresses4 + "0000ffff 000a0000 6869"},
		"to all nodes": {packet: "60000000 00083a40 fd000009 00000000 00000000 00000001 ff020000 00000000 00000000 " +
			"00000001 80000000 00070003"},
		"truncated":         {packet: "450005dc 00000000 40110000" + addresses4},
		"bad length of UDP": {packet: "4500001c 00000000 40110000" + addresses4 + "0035ffff 00640000"},
		"empty":             {},
		"garbage":           {packet: "ffffff"},
	} {
		t.Run(name, func(t *testing.T) {
			e := testkit.Must(newEcho(1500))(t)
			defer e.close()
			packet := hexBytes(t, test.packet)
			if len(packet) > sizeIPv4 {
				sum(packet)
			}
			e.receive(packet)
			got := ""
			if answer := e.endpoint.Read(); answer != nil {
				got = FormatPacket(answer.ToView().AsSlice())
				answer.DecRef()
			}
			testkit.Check(t, got == test.want, "got  %q\nwant %q", got, test.want)
		})
	}
}

// FuzzFormatPacket looks for panics, and for lines that would garble a terminal.
func FuzzFormatPacket(f *testing.F) {
	for _, test := range decodeTests {
		f.Add(hexBytes(f, test.packet))
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		for _, line := range []string{FormatPacket(packet), FormatFrame(packet)} {
			testkit.Check(t, strings.IndexFunc(line, func(r rune) bool { return r < ' ' || r > '~' }) < 0,
				"% x: %q", packet, line)
		}
	})
}
