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

func addresses(fd int) (local, peer netip.AddrPort, err error) {
	near, nearErr := unix.Getsockname(fd)
	far, farErr := unix.Getpeername(fd)
	return load.AddrPort(near), load.AddrPort(far), errors.Join(nearErr, farErr)
}

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

func setOption(fd int, option [2]int, value unsafe.Pointer, size int) error {
	if _, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(option[0]), uintptr(option[1]),
		uintptr(value), uintptr(size), 0); errno != 0 {
		return errno
	}
	return nil
}

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

// setBuffers sets the size of a socket's buffer in either direction in bytes. Without CAP_NET_ADMIN, as in a pod, the
// buffers get at most the kernel's limits (net.core.rmem_max, wmem_max).
func setBuffers(fd, size int) error {
	for _, option := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option[0], size)
		if errors.Is(err, unix.EPERM) {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, option[1], size)
		}
		if err != nil {
			return fmt.Errorf("set buffers of %d bytes: %w", size, err)
		}
	}
	return nil
}

// keepAlive makes the kernel notice that the peer of an idle connection has vanished: it probes a peer that is silent
// for a minute three times.
func keepAlive(fd int) error {
	for _, o := range [][3]int{
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1}, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 60},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 10}, {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3},
	} {
		if err := unix.SetsockoptInt(fd, o[0], o[1], o[2]); err != nil {
			return fmt.Errorf("keep the connection alive: %w", err)
		}
	}
	return nil
}

func congestion(fd int) string {
	name, _ := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	return name
}
