// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
)

// socketTick is the timeout of a blocking call. After it a session notices an interrupt or a silent peer.
const socketTick = 100 * time.Millisecond

var errCancelled = errors.New("cancelled")

// session is a blocking socket with a workload on it. All methods except interrupt and close belong to the one
// thread that runs the workload. Methods with an fd drive any socket with timeouts.
type session struct {
	load.Served // of this end
	spec        load.Spec
	fd          int
	usual       string         // congestion control of new sockets
	number      uint64         // of a UDP flow
	polled      [1]unix.PollFd // of park
	acceptor    *acceptor      // that accepted it

	stopped atomic.Bool
	mu      sync.Mutex // guards closed, and with it the life of fd
	closed  bool
}

// openSession opens a socket. A congestion control, if one is named, is set if the kernel has it.
func openSession(kind int, family netip.Addr, spec load.Spec, congestionControl string) (*session, error) {
	domain := unix.AF_INET6
	if family.Unmap().Is4() {
		domain = unix.AF_INET
	}
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	s := &session{spec: spec, fd: fd}
	switch err = setTimeouts(fd, socketTick); {
	case err != nil:
	case kind == unix.SOCK_DGRAM:
		err = setBuffers(fd, datagramBuffer)
	default:
		s.usual = congestion(fd)
		if congestionControl != "" { // later is too late: a socket that was connected under bbr goes on pacing with a timer
			_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestionControl)
		}
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("set socket options: %w", err)
	}
	return s, nil
}

// Local ports of the client's TCP connections, below the ports that the kernel assigns in a lab. A short connection
// to another, translated address of the same server must not look like a persistent one to the server.
const (
	firstOwnPort = 2000
	ownPorts     = 8000
	portAttempts = 100
)

// dial opens the client's socket of a flow. A missing UDP server is noticed in the handshake.
func dial(ctx context.Context, kind int, spec load.Spec, congestionControl string) (s *session, err error) {
	for range portAttempts {
		if s, err = openSession(kind, spec.Target.Addr(), spec, congestionControl); err != nil {
			return nil, err
		}
		s.number = rand.Uint64()
		if err = s.dial(ctx, kind); err == nil {
			return s, nil
		}
		s.close()
		if !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EADDRNOTAVAIL) {
			break
		}
	}
	return nil, fmt.Errorf("connect: %w", err)
}

func (s *session) dial(ctx context.Context, kind int) error {
	if kind == unix.SOCK_STREAM {
		from := netip.IPv6Unspecified()
		if s.spec.Target.Addr().Unmap().Is4() {
			from = netip.IPv4Unspecified()
		}
		port := firstOwnPort + rand.IntN(ownPorts)
		if err := unix.Bind(s.fd, load.Sockaddr(netip.AddrPortFrom(from, uint16(port)))); err != nil {
			return err
		}
	}
	defer context.AfterFunc(ctx, s.interrupt)()
	if err := s.connect(s.fd, newRawAddress(s.spec.Target)); err != nil {
		return err
	}
	return s.identify()
}

func (s *session) connect(fd int, to rawAddress) error {
	var since time.Time
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(to.RawSockaddrAny)), to.size)
		switch errno {
		case 0, unix.EISCONN:
			return nil
		case unix.EINPROGRESS, unix.EALREADY: // the timeout of a blocking socket
			errno = unix.EAGAIN
		}
		if err := s.wait(errno, &since); err != nil {
			return err
		}
	}
}

func (s *session) identify() (err error) {
	s.Congestion = congestion(s.fd)
	s.Local, s.Peer, err = addresses(s.fd)
	return err
}

// Read implements io.Reader.
func (s *session) Read(b []byte) (int, error) { return s.recv(s.fd, b) }

// recv reads once and waits for data. The error is io.EOF at the end of the stream.
func (s *session) recv(fd int, b []byte) (int, error) {
	var since time.Time
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd),
			uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
		if errno == 0 && n > 0 {
			return int(n), nil
		}
		if errno == 0 && !s.stopped.Load() {
			return 0, io.EOF
		}
		if err := s.wait(errno, &since); err != nil {
			return 0, err
		}
	}
}

// recvAll reads until b is full. The error is io.EOF only if the stream ends before b.
func (s *session) recvAll(fd int, b []byte) error {
	for done := 0; done < len(b); {
		n, err := s.recv(fd, b[done:])
		if errors.Is(err, io.EOF) && done > 0 {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		done += n
	}
	return nil
}

func (s *session) readFull(b []byte) error { return s.recvAll(s.fd, b) }

// transmit writes all of b and waits for buffer space. The flags are flags of send(2).
func (s *session) transmit(fd int, b []byte, flags uintptr) error {
	var since time.Time
	for done := 0; done < len(b); {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd),
			uintptr(unsafe.Pointer(&b[done])), uintptr(len(b)-done), unix.MSG_NOSIGNAL|flags, 0, 0)
		if errno == 0 {
			done, since = done+int(n), time.Time{}
		} else if err := s.wait(errno, &since); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) write(b []byte) error { return s.transmit(s.fd, b, 0) }

// wait decides after a call without progress whether to try again (nil). It reads a
// clock instead of counting ticks, since a signal can shorten each tick.
func (s *session) wait(errno unix.Errno, since *time.Time) error {
	switch {
	case s.stopped.Load():
		return errCancelled
	case errno != unix.EAGAIN && errno != unix.EINTR:
		return errno
	case since.IsZero():
		*since = time.Now()
	case time.Since(*since) > s.spec.StallTime():
		return fmt.Errorf("nothing moved for %v: %w", s.spec.StallTime(), unix.ETIMEDOUT)
	}
	return nil
}

// park waits until there is something to read, without a limit if deadline is 0. It leaves the Go scheduler
// meanwhile, and does not wake up before.
func (s *session) park(deadline time.Duration) error {
	until := -1
	if deadline > 0 {
		until = int(deadline.Milliseconds())
	}
	s.polled[0] = unix.PollFd{Fd: int32(s.fd), Events: unix.POLLIN}
	for {
		n, err := unix.Poll(s.polled[:], until)
		switch {
		case s.stopped.Load():
			return errCancelled
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("wait for the peer: %w", err)
		case n == 0:
			return fmt.Errorf("no message for %v: %w", deadline, unix.ETIMEDOUT)
		}
		return nil
	}
}

// interrupt ends the session from another goroutine: blocked calls return errCancelled.
func (s *session) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped.Store(true)
	if !s.closed {
		// Close with a reset: a peer that waits for space in a full window may not get a FIN for a minute.
		_ = unix.SetsockoptLinger(s.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		_ = unix.Shutdown(s.fd, unix.SHUT_RDWR)
	}
}

// close closes the socket; a second call does nothing.
func (s *session) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		_ = unix.Close(s.fd)
	}
}
