// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"encoding/binary"
	"errors"
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
	plain   int // all other TCP and UDP packets
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

// seen adds up what was kept.
func (c capture) seen() seenOnWire {
	var seen seenOnWire
	frame := make([]byte, 1<<17)
	for {
		n, _, err := unix.Recvfrom(c.fd, frame, unix.MSG_DONTWAIT)
		if err != nil {
			return seen
		}
		seen.add(frame[:n])
	}
}

// add counts a frame. First fragments are enough to tell.
func (s *seenOnWire) add(frame []byte) {
	const ethernet, ipv4, ipv6 = 14, 20, 40
	var protocol byte
	var transport []byte
	switch {
	case len(frame) < ethernet+ipv6+4:
		return
	case frame[12] == 0x08 && frame[13] == 0x00:
		protocol, transport = frame[ethernet+9], frame[ethernet+ipv4:]
	case frame[12] == 0x86 && frame[13] == 0xdd:
		protocol, transport = frame[ethernet+6], frame[ethernet+ipv6:]
	default:
		return
	}
	s.bytes += len(frame)
	switch {
	case protocol == unix.IPPROTO_UDP && binary.BigEndian.Uint16(transport[2:]) == podlink.VXLANPort:
		s.wrapped++
	case protocol == unix.IPPROTO_UDP || protocol == unix.IPPROTO_TCP:
		s.plain++
	}
}
