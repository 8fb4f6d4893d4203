// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/lab"
	"mustang/internal/nl"
	"mustang/internal/podlink"
)

// seenOnWire is what a capture saw of IP packets.
type seenOnWire struct {
	bytes   int // of frames
	wrapped int // packets in VXLAN
	plain   int // packets between two addresses as they are
}

// capture is a socket that keeps what crosses a host's uplink.
type capture struct{ fd int }

func startCapture(t *testing.T, host *nl.Namespace) (c capture) {
	t.Helper()
	uplink, err := host.Device(lab.Uplink)
	if err != nil {
		t.Fatal(err)
	}
	err = host.Do(func() (err error) {
		if c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		return errors.Join(
			unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
			unix.Bind(c.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: uplink.Index}))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(c.fd) })
	return c
}

// seen adds up what was kept, of which two addresses are of interest.
func (c capture) seen(a, b netip.Addr) seenOnWire {
	var seen seenOnWire
	frame := make([]byte, 1<<17)
	for {
		n, _, err := unix.Recvfrom(c.fd, frame, unix.MSG_DONTWAIT)
		if err != nil {
			return seen
		}
		seen.add(frame[:n], a, b)
	}
}

// add counts a frame. First fragments are enough to tell.
func (s *seenOnWire) add(frame []byte, a, b netip.Addr) {
	const ethernet, ipv4, ipv6 = 14, 20, 40
	if len(frame) < ethernet+ipv6+4 {
		return
	}
	packet := frame[ethernet:]
	protocol, addrs, transport := packet[9], packet[12:ipv4], packet[ipv4:]
	switch [2]byte(frame[12:]) {
	case [2]byte{0x08, 0x00}:
	case [2]byte{0x86, 0xdd}:
		protocol, addrs, transport = packet[6], packet[8:ipv6], packet[ipv6:]
	default:
		return
	}
	s.bytes += len(frame)
	src, _ := netip.AddrFromSlice(addrs[:len(addrs)/2])
	dst, _ := netip.AddrFromSlice(addrs[len(addrs)/2:])
	switch {
	case protocol == unix.IPPROTO_UDP && binary.BigEndian.Uint16(transport[2:]) == podlink.VXLANPort:
		s.wrapped++
	case src == a && dst == b || src == b && dst == a:
		s.plain++
	}
}
