// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
)

// unmapped returns a TCP or UDP address, IPv4 always in its short form.
func unmapped(addr net.Addr) netip.AddrPort {
	withPort, ok := addr.(interface{ AddrPort() netip.AddrPort })
	if !ok {
		return netip.AddrPort{}
	}
	ap := withPort.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// addresses returns the addresses of both ends of a connected socket.
func addresses(fd int) (local, peer netip.AddrPort, err error) {
	near, err := unix.Getsockname(fd)
	if err != nil {
		return local, peer, fmt.Errorf("read the local address: %w", err)
	}
	far, err := unix.Getpeername(fd)
	if err != nil {
		return local, peer, fmt.Errorf("read the peer address: %w", err)
	}
	return load.AddrPort(near), load.AddrPort(far), nil
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

// duplicate returns a descriptor of a socket of package net.
func duplicate(conn syscall.Conn) (fd int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return -1, err
	}
	if controlErr := raw.Control(func(orig uintptr) { fd, err = unix.FcntlInt(orig, unix.F_DUPFD_CLOEXEC, 0) }); controlErr != nil {
		return -1, controlErr
	}
	return fd, err
}

// setOption sets a socket's option, {level, name}, without leaving the thread.
func setOption(fd int, option [2]int, value unsafe.Pointer, size int) error {
	if _, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(option[0]), uintptr(option[1]),
		uintptr(value), uintptr(size), 0); errno != 0 {
		return errno
	}
	return nil
}

// setTimeouts makes blocking calls on a socket return after a time.
func setTimeouts(fd int, after time.Duration) error {
	tick := unix.NsecToTimeval(int64(after))
	for _, option := range [...]int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := setOption(fd, [2]int{unix.SOL_SOCKET, option}, unsafe.Pointer(&tick), int(unsafe.Sizeof(tick))); err != nil {
			return fmt.Errorf("set socket timeout: %w", err)
		}
	}
	return nil
}

// setBuffers sets the size of a socket's buffer in either direction in bytes, and checks
// it. Without CAP_NET_ADMIN, as in a pod, the buffers get what the kernel gives anyone
// (net.core.rmem_max, wmem_max), if that is less.
func setBuffers(fd, size int) error {
	for _, buffer := range []struct {
		name          string
		option, force int
	}{{"receive", unix.SO_RCVBUF, unix.SO_RCVBUFFORCE}, {"send", unix.SO_SNDBUF, unix.SO_SNDBUFFORCE}} {
		err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, buffer.force, size)
		if errors.Is(err, unix.EPERM) {
			if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, buffer.option, size); err == nil {
				continue
			}
		}
		if err != nil {
			return fmt.Errorf("set %s buffer of %d bytes: %w", buffer.name, size, err)
		}
		// The kernel doubles the value for its own overhead.
		if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, buffer.option); err != nil || got < 2*size {
			return errors.Join(fmt.Errorf("%s buffer has %d bytes, want %d", buffer.name, got, 2*size), err)
		}
	}
	return nil
}

func setNoDelay(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return fmt.Errorf("set TCP_NODELAY: %w", err)
	}
	return nil
}

// Times of idle connections. No packet is sent in less.
const (
	keepAliveIdle     = 60 // seconds until a silent TCP peer is probed
	keepAliveInterval = 10 // seconds between two of keepAliveProbes
	keepAliveProbes   = 3
)

// keepAlive makes the kernel notice that the peer of an idle connection has vanished.
func keepAlive(fd int) error {
	for _, o := range [][3]int{
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1}, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepAliveIdle},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, keepAliveInterval}, {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAliveProbes},
	} {
		if err := unix.SetsockoptInt(fd, o[0], o[1], o[2]); err != nil {
			return fmt.Errorf("keep the connection alive: %w", err)
		}
	}
	return nil
}

// reuseAddress lets each client have a socket of its own on the server's address. The
// kernel delivers a datagram to the socket that is connected to its sender.
func reuseAddress(_, _ string, c syscall.RawConn) (err error) {
	controlErr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
	return errors.Join(err, controlErr)
}

func attachDropFilter(fd int) error {
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K} // keeps 0 bytes
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: 1, Filter: &drop}); err != nil {
		return fmt.Errorf("attach filter: %w", err)
	}
	return nil
}

// defaultCongestion is used if the kernel has it, so that figures of machines with
// different defaults compare.
const defaultCongestion = "cubic"

// setCongestion is a Control function of net.Dialer and net.ListenConfig, which they call
// before a socket connects or listens. A later switch is too late: a socket that was
// connected under bbr goes on pacing with a timer. Accepted sockets inherit the listener's
// congestion control.
func setCongestion(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, defaultCongestion)
	})
}

func congestion(fd int) (string, error) {
	name, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err != nil {
		return "", fmt.Errorf("read congestion control: %w", err)
	}
	return name, nil
}
