// SPDX-License-Identifier: Apache-2.0

package load

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Every datagram of a UDP workload begins with:
//
//	magic "MSU1" | kind | 1 if an answer is wanted | 2 bytes zero |
//	flow, 8 bytes | number, 8 bytes
//
// Numbers are big-endian. The flow is drawn at random for each connection, so that late
// datagrams of another one are recognized.
const (
	datagramMagic = "MSU1"
	// MinDatagram and maxDatagram are the bounds of [Spec.Size] in bytes. The upper one
	// is the limit of an IPv4 packet.
	MinDatagram = 24
	maxDatagram = 65507
)

// Kinds of datagrams.
const (
	// From the client.
	datagramHello    = 'h' // a header follows; answered by a welcome or a refusal
	datagramWarmup   = 'w' // load, not counted
	datagramMeasured = 'm' // load, counted
	datagramEnd      = 'e' // answered by a report
	datagramBye      = 'b' // the report has arrived
	// From the server.
	datagramWelcome = 'c'
	datagramRefusal = 'x' // the reason follows
	datagramAnswer  = 'a' // with the number of the datagram that it answers
	datagramAlive   = 'l' // the server receives; sent now and then
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
	if len(b) < MinDatagram || string(b[:len(datagramMagic)]) != datagramMagic {
		return datagram{}, false
	}
	return datagram{
		kind: b[4], answer: b[5] == 1,
		flow: binary.BigEndian.Uint64(b[8:]), number: binary.BigEndian.Uint64(b[16:]),
	}, true
}

// with returns a datagram with this beginning and a body.
func (d datagram) with(body []byte) []byte {
	b := make([]byte, MinDatagram, MinDatagram+len(body))
	d.put(b)
	return append(b, body...)
}

// datagramBuffer is the size of each UDP socket's buffer in either direction, in bytes.
// It bridges the time in which the other end has the CPU.
const datagramBuffer = 8 << 20

// newUDPSession opens a blocking UDP socket of an address's family and prepares it for
// spec.
func newUDPSession(spec Spec, family netip.Addr) (_ *session, err error) {
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
	if err := s.setTimeouts(); err != nil {
		return nil, err
	}
	for _, buffer := range []struct {
		name          string
		option, force int
	}{{"receive", unix.SO_RCVBUF, unix.SO_RCVBUFFORCE}, {"send", unix.SO_SNDBUF, unix.SO_SNDBUFFORCE}} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, buffer.force, datagramBuffer); err != nil {
			return nil, fmt.Errorf("set %s buffer of %d bytes: %w", buffer.name, datagramBuffer, err)
		}
		// The kernel doubles the value for its own overhead.
		if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, buffer.option); err != nil || got < 2*datagramBuffer {
			return nil, errors.Join(fmt.Errorf("%s buffer has %d bytes, want %d", buffer.name, got, 2*datagramBuffer), err)
		}
	}
	return s, nil
}

// connectUDP fixes the other end of the session's socket.
func (s *session) connectUDP(peer netip.AddrPort) error {
	if err := unix.Connect(s.fd, sockaddr(peer)); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	remote, err := unix.Getpeername(s.fd)
	if err != nil {
		return fmt.Errorf("read the peer address: %w", err)
	}
	s.peer = addrPort(remote)
	return s.readLocal()
}

// readLocal sets the socket's own address.
func (s *session) readLocal() error {
	local, err := unix.Getsockname(s.fd)
	if err != nil {
		return fmt.Errorf("read the local address: %w", err)
	}
	s.local = addrPort(local)
	return nil
}

// sockaddr converts an address for system calls.
func sockaddr(ap netip.AddrPort) unix.Sockaddr {
	if addr := ap.Addr().Unmap(); addr.Is4() {
		return &unix.SockaddrInet4{Addr: addr.As4(), Port: int(ap.Port())}
	}
	return &unix.SockaddrInet6{Addr: ap.Addr().As16(), Port: int(ap.Port())}
}

// addrPort converts an address of a system call, unmapped.
func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// send sends a datagram. It counts as sent, and lost, if a queue is full.
func (s *session) send(b []byte) error {
	var to, size uintptr
	if s.to != nil {
		to, size = uintptr(unsafe.Pointer(s.to)), unix.SizeofSockaddrInet6
		if s.to.Addr.Family == unix.AF_INET {
			size = unix.SizeofSockaddrInet4
		}
	}
	var since time.Time
	for {
		if s.stopped.Load() {
			return errCancelled
		}
		_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd),
			uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_NOSIGNAL, to, size)
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
	if !ok || d.flow != s.flow && d.kind != datagramHello {
		return datagram{}, 0, os.ErrDeadlineExceeded
	}
	return d, int(n), nil
}

// overflowed returns the number of datagrams that the socket dropped because its buffer
// was full.
func (s *session) overflowed() uint64 { return max(s.drops(), s.baseDrops) - s.baseDrops }

// drops returns the number of datagrams that the socket dropped, 0 if the kernel does
// not tell.
func (s *session) drops() uint64 {
	var info [9]uint32 // linux/sock_diag.h: SK_MEMINFO_VARS, the last is SK_MEMINFO_DROPS
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0
	}
	return uint64(info[8])
}

// rawSockaddr converts an address once for many system calls.
func rawSockaddr(ap netip.AddrPort) *unix.RawSockaddrAny {
	raw := new(unix.RawSockaddrAny)
	port := [2]byte{byte(ap.Port() >> 8), byte(ap.Port())}
	if addr := ap.Addr().Unmap(); addr.Is4() {
		to := (*unix.RawSockaddrInet4)(unsafe.Pointer(raw))
		to.Family, to.Addr, to.Port = unix.AF_INET, addr.As4(), *(*uint16)(unsafe.Pointer(&port))
		return raw
	}
	to := (*unix.RawSockaddrInet6)(unsafe.Pointer(raw))
	to.Family, to.Addr, to.Port = unix.AF_INET6, ap.Addr().As16(), *(*uint16)(unsafe.Pointer(&port))
	return raw
}
