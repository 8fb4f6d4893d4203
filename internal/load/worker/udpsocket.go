// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
)

// Every datagram of a UDP workload begins with:
//
//	magic "MSU1" | kind | 1 if an answer is wanted | 2 bytes zero |
//	flow, 8 bytes | number, 8 bytes
//
// Numbers are big-endian. The flow is drawn at random for each connection, so that late
// datagrams of another one are recognized.
//
// That makes load.MinDatagram bytes.
const datagramMagic = "MSU1"

// Kinds of datagrams.
const (
	// From the client.
	datagramHello    = 'h' // a header follows; answered by a welcome or a refusal
	datagramWarmup   = 'w' // load, not counted
	datagramMeasured = 'm' // load, counted
	datagramIdle     = 'p' // the burst is over; answered by sums with its number
	datagramEnd      = 'e' // answered by a report
	datagramBye      = 'b' // the report has arrived
	// From the server.
	datagramWelcome = 'c' // a report in JSON follows
	datagramRefusal = 'x' // the reason follows
	datagramAnswer  = 'a' // with the number of the datagram that it answers
	datagramAlive   = 'l' // the server receives; sent now and then
	datagramSums    = 's' // [datagramCounts] follow
	datagramReport  = 'r' // a report in JSON follows
)

// datagram is the beginning of a datagram.
type datagram struct {
	kind   byte
	answer bool
	flow   uint64
	number uint64
}

// put writes it to the beginning of b.
func (d datagram) put(b []byte) {
	copy(b, datagramMagic)
	b[4], b[5], b[6], b[7] = d.kind, 0, 0, 0
	if d.answer {
		b[5] = 1
	}
	binary.BigEndian.PutUint64(b[8:], d.flow)
	binary.BigEndian.PutUint64(b[16:], d.number)
}

// parseDatagram reads it. It returns false if b is no datagram of a workload.
func parseDatagram(b []byte) (d datagram, ok bool) {
	if len(b) < load.MinDatagram || string(b[:len(datagramMagic)]) != datagramMagic {
		return datagram{}, false
	}
	return datagram{
		kind: b[4], answer: b[5] == 1,
		flow: binary.BigEndian.Uint64(b[8:]), number: binary.BigEndian.Uint64(b[16:]),
	}, true
}

// with returns a datagram with this beginning and a body.
func (d datagram) with(body []byte) []byte {
	b := make([]byte, load.MinDatagram, load.MinDatagram+len(body))
	d.put(b)
	return append(b, body...)
}

// datagramBuffer is the size of each UDP socket's buffer in either direction, in bytes.
// It bridges the time in which the other end has the CPU.
const datagramBuffer = 8 << 20

// newUDPSession opens a blocking UDP socket of an address's family and prepares it for
// spec.
func newUDPSession(spec load.Spec, family netip.Addr) (_ *session, err error) {
	domain := unix.AF_INET6
	if family.Unmap().Is4() {
		domain = unix.AF_INET
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open UDP socket: %w", err)
	}
	s := &session{spec: spec, fd: fd, interrupted: make(chan struct{})}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := setTimeouts(s.fd, socketTick); err != nil {
		return nil, err
	}
	return s, setBuffers(fd, datagramBuffer)
}

// connectUDP fixes the other end of the session's socket.
func (s *session) connectUDP(peer netip.AddrPort) (err error) {
	if err := unix.Connect(s.fd, load.Sockaddr(peer)); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	s.local, s.peer, err = addresses(s.fd)
	return err
}

// send sends a datagram. It counts as sent, and lost, if a queue is full.
func (s *session) send(b []byte) error {
	var since time.Time
	for {
		if s.stopped.Load() {
			return errCancelled
		}
		_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd),
			uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
		if errno == 0 || errno == unix.ENOBUFS {
			return nil
		}
		if err := s.wait(errno, &since); err != nil {
			return err
		}
	}
}

// receive waits for a datagram of this session's flow, or until none has come for the
// spec's stall time. It ignores others.
func (s *session) receive(b []byte) (d datagram, n int, err error) {
	var since time.Time
	for {
		d, n, err = s.receiveOnce(b)
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return d, n, err
		}
		if err := s.wait(unix.EAGAIN, &since); err != nil {
			return datagram{}, 0, err
		}
	}
}

// receiveOnce is receive with the timeout of a single call. Its error is
// os.ErrDeadlineExceeded if nothing came.
func (s *session) receiveOnce(b []byte) (datagram, int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s.fd),
		uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
	switch {
	case s.stopped.Load():
		return datagram{}, 0, errCancelled
	case errno == unix.EAGAIN || errno == unix.EINTR:
		return datagram{}, 0, os.ErrDeadlineExceeded
	case errno != 0:
		return datagram{}, 0, errno
	}
	d, ok := parseDatagram(b[:n])
	if !ok || d.flow != s.number && d.kind != datagramHello {
		return datagram{}, 0, os.ErrDeadlineExceeded
	}
	return d, int(n), nil
}
