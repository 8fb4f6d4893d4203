// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socketFD is a socket, by its file descriptor, that was opened in a place.
type socketFD struct {
	t  testing.TB
	fd int
	v6 bool // the socket's family
}

// open opens a socket whose calls time out after some seconds.
func (p place) open(t testing.TB, v6 bool, kind int) *socketFD {
	t.Helper()
	return p.openAll(t, make([]*socketFD, 1), v6, kind)[0]
}

// openAll fills a list with sockets. It enters the place once, which takes much longer than opening a socket.
func (p place) openAll(t testing.TB, all []*socketFD, v6 bool, kind int) []*socketFD {
	t.Helper()
	domain := unix.AF_INET
	if v6 {
		domain = unix.AF_INET6
	}
	succeed(t, p.do(t, func() error {
		for i := range all {
			fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			all[i] = &socketFD{t: t, fd: fd, v6: v6}
			t.Cleanup(all[i].close)
			for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
				if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &unix.Timeval{Sec: 5}); err != nil {
					return err
				}
			}
		}
		return nil
	}))
	return all
}

func (s *socketFD) close() {
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
		s.fd = -1
	}
}

// addr converts an address to the socket's family: IPv4 on an IPv6 socket is v4-mapped.
func (s *socketFD) addr(a netip.AddrPort) unix.Sockaddr {
	if s.v6 {
		return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

func plainAddr(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

func (s *socketFD) connect(a netip.AddrPort) error {
	err := unix.Connect(s.fd, s.addr(a))
	if !errors.Is(err, unix.EINTR) {
		return err
	}
	// A signal of Go's scheduler interrupted the wait; the kernel still connects.
	for errors.Is(err, unix.EINTR) {
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}, 5000)
	}
	if err != nil {
		return err
	}
	code, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	return err
}

func (s *socketFD) mustConnect(a netip.AddrPort) {
	s.t.Helper()
	if err := s.connect(a); err != nil {
		s.t.Fatalf("connect to %s: %v", a, err)
	}
}

// peer returns the address that getpeername returns.
func (s *socketFD) peer() netip.AddrPort {
	s.t.Helper()
	sa, err := unix.Getpeername(s.fd)
	if err != nil {
		s.t.Fatal(err)
	}
	return plainAddr(sa)
}

// send sends a datagram to a, or to the connected peer if a is zero.
func (s *socketFD) send(text string, a netip.AddrPort) error {
	if !a.IsValid() {
		_, err := unix.Write(s.fd, []byte(text))
		return err
	}
	return unix.Sendto(s.fd, []byte(text), 0, s.addr(a))
}

func (s *socketFD) mustSend(text string, a netip.AddrPort) {
	s.t.Helper()
	if err := s.send(text, a); err != nil {
		s.t.Fatalf("send to %s: %v", a, err)
	}
}

// receive returns a datagram and its source address.
func (s *socketFD) receive() (string, netip.AddrPort) {
	s.t.Helper()
	buffer := make([]byte, 2048)
	var n int
	var from unix.Sockaddr
	err := uninterrupted(func() (err error) { n, from, err = unix.Recvfrom(s.fd, buffer, 0); return err })
	if err != nil {
		s.t.Fatalf("receive: %v", err)
	}
	return string(buffer[:n]), plainAddr(from)
}

// ask sends to an echo server and fails the test unless the echo comes from want.
func (s *socketFD) ask(a, want netip.AddrPort) {
	s.t.Helper()
	text := fmt.Sprintf("for %s", a)
	s.mustSend(text, a)
	if got, from := s.receive(); got != text || from != want {
		s.t.Errorf("received %q from %s, want %q from %s", got, from, text, want)
	}
}

func (s *socketFD) read(buffer []byte) (n int, err error) {
	err = uninterrupted(func() error { n, err = unix.Read(s.fd, buffer); return err })
	return n, err
}

// uninterrupted repeats a call while a signal of Go's scheduler interrupts it: the kernel restarts no call with a timeout.
func uninterrupted(call func() error) error {
	err := call()
	for errors.Is(err, unix.EINTR) {
		err = call()
	}
	return err
}

// exchange checks that the peer of a connected TCP socket is an echo server, and returns the client address that the
// server sees.
func (s *socketFD) exchange() string {
	s.t.Helper()
	s.mustSend("hello", netip.AddrPort{})
	buffer, got := make([]byte, 256), ""
	for !strings.HasSuffix(got, "\nhello") {
		n, err := s.read(buffer)
		if err != nil || n == 0 {
			s.t.Fatalf("read %q, then %v", got, err)
		}
		got += string(buffer[:n])
	}
	return strings.TrimSuffix(got, "\nhello")
}

// disconnect removes the peer of a datagram socket.
func (s *socketFD) disconnect() {
	s.t.Helper()
	to := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(s.fd), uintptr(unsafe.Pointer(&to)), unsafe.Sizeof(to)); errno != 0 {
		s.t.Fatalf("disconnect: %v", errno)
	}
}
