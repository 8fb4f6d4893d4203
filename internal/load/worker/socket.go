// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
)

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

// rawAddress is an address for many system calls.
type rawAddress struct {
	*unix.RawSockaddrAny
	size uintptr
}

func newRawAddress(ap netip.AddrPort) rawAddress {
	raw := new(unix.RawSockaddrAny)
	port := [2]byte{byte(ap.Port() >> 8), byte(ap.Port())}
	if addr := ap.Addr().Unmap(); addr.Is4() {
		to := (*unix.RawSockaddrInet4)(unsafe.Pointer(raw))
		to.Family, to.Addr, to.Port = unix.AF_INET, addr.As4(), *(*uint16)(unsafe.Pointer(&port))
		return rawAddress{raw, unix.SizeofSockaddrInet4}
	}
	to := (*unix.RawSockaddrInet6)(unsafe.Pointer(raw))
	to.Family, to.Addr, to.Port = unix.AF_INET6, ap.Addr().As16(), *(*uint16)(unsafe.Pointer(&port))
	return rawAddress{raw, unix.SizeofSockaddrInet6}
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
		if err := setOption(fd, [2]int{unix.SOL_SOCKET, option}, unsafe.Pointer(&tick),
			int(unsafe.Sizeof(tick))); err != nil {
			return fmt.Errorf("set socket timeout: %w", err)
		}
	}
	return nil
}

// setBuffers sets the size of a socket's buffer in either direction in bytes, and checks it. Without CAP_NET_ADMIN,
// as in a pod, the buffers get at most the kernel's limits (net.core.rmem_max, wmem_max).
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

// defaultCongestion is used if the kernel has it, so that figures of machines with
// different defaults compare.
const defaultCongestion = "cubic"

// setCongestion is called before a socket connects or listens. A later switch is too late: a
// socket that was connected under bbr goes on pacing with a timer. Accepted sockets inherit the
// listener's congestion control.
func setCongestion(fd int) {
	_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, defaultCongestion)
}

func congestion(fd int) (string, error) {
	name, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err != nil {
		return "", fmt.Errorf("read congestion control: %w", err)
	}
	return name, nil
}
