// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
)

// socketTick is the timeout of a single blocking call. After it a session notices that
// it was interrupted or that its peer is silent.
const socketTick = 100 * time.Millisecond

// errCancelled ends an interrupted session.
var errCancelled = errors.New("cancelled")

// session is one connection with a workload on it. All but interrupt and close
// belong to the one thread that runs the workload.
type session struct {
	spec        load.Spec
	fd          int
	local, peer netip.AddrPort
	congestion  string
	number      uint64         // of a UDP flow
	polled      [1]unix.PollFd // of park
	acceptor    *acceptor      // that accepted it

	stopped     atomic.Bool
	interrupted chan struct{} // closed when stopped becomes true
	mu          sync.Mutex    // guards closed, and with it the life of fd
	closed      bool
}

// newSession takes the socket out of conn, which it closes, makes it blocking
// and prepares it for spec.
func newSession(conn *net.TCPConn, spec load.Spec) (*session, error) {
	s, err := newSocketSession(conn, spec)
	if err != nil {
		return nil, err
	}
	if s.local, s.peer, err = addresses(s.fd); err == nil {
		s.congestion, err = congestion(s.fd)
	}
	if err != nil {
		s.close()
	}
	return s, err
}

// netSocket is a socket of package net.
type netSocket interface {
	io.Closer
	syscall.Conn
}

// newSocketSession is newSession for any socket, without addresses.
func newSocketSession(conn netSocket, spec load.Spec) (s *session, err error) {
	defer func() { _ = conn.Close() }()
	fd, err := duplicate(conn)
	if err != nil {
		return nil, err
	}
	s = &session{spec: spec, fd: fd, interrupted: make(chan struct{})}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := unix.SetNonblock(fd, false); err != nil {
		return nil, fmt.Errorf("make socket blocking: %w", err)
	}
	return s, setTimeouts(s.fd, socketTick)
}

// read reads once and waits for data. The error is io.EOF at the end of the stream.
func (s *session) read(b []byte) (int, error) { return s.recv(s.fd, b) }

// recv is read on any socket with timeouts.
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

// transmit writes once to any socket with timeouts, and waits for room. It may write less
// than b.
func (s *session) transmit(fd int, b []byte) (int, error) {
	var since time.Time
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd),
			uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
		if errno == 0 {
			return int(n), nil
		}
		if err := s.wait(errno, &since); err != nil {
			return 0, err
		}
	}
}

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

// readFull reads until b is full. The error is io.EOF only if the stream ends before b.
func (s *session) readFull(b []byte) error { return s.recvAll(s.fd, b) }

// recvAll is readFull on any socket with timeouts.
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

func (s *session) transmitAll(fd int, b []byte) error {
	for done := 0; done < len(b); {
		n, err := s.transmit(fd, b[done:])
		if err != nil {
			return err
		}
		done += n
	}
	return nil
}

// park waits until there is something to read, for as long as it takes. It leaves the Go
// scheduler meanwhile, and does not wake up before. A deadline of 0 is none.
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
			return fmt.Errorf("nothing heard for %v: %w", deadline, unix.ETIMEDOUT)
		}
		return nil
	}
}

// readable reports whether a read would return without waiting.
func (s *session) readable() (bool, error) {
	var b [1]byte
	_, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s.fd),
		uintptr(unsafe.Pointer(&b[0])), 1, unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
	switch {
	case s.stopped.Load():
		return false, errCancelled
	case errno == 0:
		return true, nil
	case errno == unix.EAGAIN || errno == unix.EINTR:
		return false, nil
	}
	return false, errno
}

// Write implements io.Writer.
func (s *session) Write(b []byte) (int, error) { return len(b), s.transmitAll(s.fd, b) }

// interrupt ends the session from another goroutine: blocked calls return
// errCancelled.
func (s *session) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped.Swap(true) {
		close(s.interrupted)
	}
	if !s.closed {
		// Close with a reset: a peer that waits for room in a full window may
		// not get a FIN for a minute.
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
