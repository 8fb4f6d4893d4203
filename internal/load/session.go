// SPDX-License-Identifier: Apache-2.0

package load

import (
	"cmp"
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
)

// socketTick is the timeout of a single blocking call. After it a session notices that
// it was interrupted or that its peer is silent.
const socketTick = 100 * time.Millisecond

// errCancelled ends an interrupted session.
var errCancelled = errors.New("cancelled")

// session is one connection with a workload on it. All but interrupt and close
// belong to the one thread that runs the workload.
type session struct {
	spec        Spec
	fd          int
	local, peer netip.AddrPort
	congestion  string
	// flow is the number of a UDP connection, and to the destination of its datagrams if
	// the socket is not connected.
	flow uint64
	to   *unix.RawSockaddrAny
	// baseDrops is the number of datagrams that a UDP socket dropped before it was
	// connected to the peer.
	baseDrops uint64
	// id is the flow's place in its run, on a client.
	id flowID
	// run is the run on a server, and reported whether its figures are published.
	run      *serverRun
	reported bool

	stopped     atomic.Bool
	interrupted chan struct{} // closed when stopped becomes true
	mu          sync.Mutex    // guards closed, and with it the life of fd
	closed      bool
}

// newSession takes the socket out of conn, which it closes, makes it blocking
// and prepares it for spec.
func newSession(conn *net.TCPConn, spec Spec) (s *session, err error) {
	defer func() { _ = conn.Close() }()
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var dupErr error
	if err := raw.Control(func(orig uintptr) {
		fd, dupErr = unix.FcntlInt(orig, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, fmt.Errorf("duplicate socket: %w", dupErr)
	}
	s = &session{spec: spec, fd: fd, interrupted: make(chan struct{})}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	s.local = unmapped(conn.LocalAddr())
	s.peer = unmapped(conn.RemoteAddr())
	if err := unix.SetNonblock(fd, false); err != nil {
		return nil, fmt.Errorf("make socket blocking: %w", err)
	}
	return s, s.setTimeouts()
}

// setTimeouts makes blocking calls return after a tick.
func (s *session) setTimeouts() error {
	tick := unix.NsecToTimeval(int64(socketTick))
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, option, &tick); err != nil {
			return fmt.Errorf("set socket timeout: %w", err)
		}
	}
	return nil
}

// unmapped returns a TCP address, IPv4 always in its short form.
func unmapped(addr net.Addr) netip.AddrPort {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := tcp.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// defaultCongestion is used if the kernel has it, so that figures of machines with
// different defaults compare.
const defaultCongestion = "cubic"

// withCongestion returns a Control function of net.Dialer and net.ListenConfig, which
// they call before a socket connects or listens. A later switch is too late: a socket
// that was connected under bbr goes on pacing with a timer. Accepted sockets inherit the
// listener's congestion control.
func withCongestion(name string) func(network, address string, c syscall.RawConn) error {
	wanted := cmp.Or(name, defaultCongestion)
	return func(_, _ string, c syscall.RawConn) error {
		var setErr error
		if err := c.Control(func(fd uintptr) {
			setErr = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, wanted)
		}); err != nil {
			return err
		}
		if setErr != nil && name != "" {
			return fmt.Errorf("set congestion control %q: %w", name, setErr)
		}
		return nil
	}
}

// useCongestion reads the socket's congestion control, and switches to another one if
// name is not empty and differs.
func (s *session) useCongestion(name string) (err error) {
	s.congestion, err = unix.GetsockoptString(s.fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err != nil {
		return fmt.Errorf("read congestion control: %w", err)
	}
	if name == "" || s.congestion == name {
		return nil
	}
	if err := unix.SetsockoptString(s.fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name); err != nil {
		return fmt.Errorf("set congestion control %q: %w", name, err)
	}
	s.congestion = name
	return nil
}

// setNoDelay switches Nagle's algorithm off or on.
func (s *session) setNoDelay(off bool) error {
	value := 0
	if off {
		value = 1
	}
	if err := unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, value); err != nil {
		return fmt.Errorf("set TCP_NODELAY: %w", err)
	}
	return nil
}

// retransmits returns the number of segments that the socket retransmitted.
func (s *session) retransmits() uint32 {
	info, err := unix.GetsockoptTCPInfo(s.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0
	}
	return info.Total_retrans
}

// read reads once and waits for data. The error is io.EOF at the end of the stream.
func (s *session) read(b []byte) (int, error) {
	var since time.Time
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s.fd),
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

// write writes once and waits for room. It may write less than b.
func (s *session) write(b []byte) (int, error) {
	var since time.Time
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd),
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
	case time.Since(*since) > s.spec.stall():
		return fmt.Errorf("nothing moved for %v: %w", s.spec.stall(), unix.ETIMEDOUT)
	}
	return nil
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

// Read implements io.Reader, for data outside the measurement.
func (s *session) Read(b []byte) (int, error) { return s.read(b) }

// Write implements io.Writer, for data outside the measurement.
func (s *session) Write(b []byte) (int, error) {
	for done := 0; done < len(b); {
		n, err := s.write(b[done:])
		if err != nil {
			return done, err
		}
		done += n
	}
	return len(b), nil
}

// closeWrite ends the stream to the peer.
func (s *session) closeWrite() error {
	if err := unix.Shutdown(s.fd, unix.SHUT_WR); err != nil {
		return fmt.Errorf("end the stream: %w", err)
	}
	return nil
}

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
