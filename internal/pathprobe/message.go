// SPDX-License-Identifier: Apache-2.0

package pathprobe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/netstat"
)

// A message is a UDP datagram: magic, kind, nonce of the asking end, value, and zeros up to the wanted size. An answer
// is at most a header longer than its request, so a listener amplifies nothing.
const (
	magic      = "mstpath1"
	headerSize = len(magic) + 1 + 8 + 8
	// Smallest is the size in bytes of the smallest probe, IP header included: all IPv4 hosts take it (RFC 791).
	Smallest = 576
)

type kind byte

const (
	kindProbe kind = iota + 1 // its value is its size; the answers are kindThere and kindBack
	kindThere                 // a short answer, with the size of the probe
	kindBack                  // an answer of the size of the probe
	kindCount                 // asks for wrong checksums in the tunnel; the answer is kindWrong
	kindWrong                 // the number of them
)

type message struct {
	kind         kind
	nonce, value uint64
}

// encode returns the message in a payload of at least size bytes.
func (m message) encode(size int) []byte {
	out := append([]byte(magic), byte(m.kind))
	out = binary.BigEndian.AppendUint64(out, m.nonce)
	out = binary.BigEndian.AppendUint64(out, m.value)
	return append(out, make([]byte, max(0, size-len(out)))...)
}

func decode(payload []byte) (m message, ok bool) {
	if len(payload) < headerSize || string(payload[:len(magic)]) != magic {
		return m, false
	}
	rest := payload[len(magic):]
	return message{kind(rest[0]), binary.BigEndian.Uint64(rest[1:]), binary.BigEndian.Uint64(rest[9:])}, true
}

// open opens a UDP socket that never fragments and ignores the known path MTU. If remote is valid, it is connected, and
// local may be invalid.
func open(ns *netns.Namespace, local, remote netip.AddrPort) (conn *net.UDPConn, err error) {
	err = ns.Do(func() (err error) {
		if remote.IsValid() {
			conn, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(local), net.UDPAddrFromAddrPort(remote))
		} else {
			conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(local))
		}
		return err
	})
	if errors.Is(err, unix.EADDRINUSE) {
		err = fmt.Errorf("%w (by preflight --listen, or an agent with --path-check?)", err)
	}
	if err != nil {
		return nil, err
	}
	level, option, value := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE
	if local.Addr().Is6() || remote.Addr().Is6() {
		level, option, value = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE
	}
	var raw syscall.RawConn
	if raw, err = conn.SyscallConn(); err == nil {
		control := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, value) })
		err = errors.Join(control, err)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("forbid fragments: %w", err)
	}
	return conn, nil
}

// wrongChecksums counts packets of the tunnel with a wrong checksum: a wrong outer one ends a packet on the host, and a
// wrong inner one in the tunnel.
func wrongChecksums(host, tunnel *netns.Namespace) (uint64, error) {
	_, outer, err := netstat.ReadWrongChecksums(host)
	if err != nil {
		return 0, err
	}
	inner, _, err := netstat.ReadWrongChecksums(tunnel)
	return outer + inner, err
}
