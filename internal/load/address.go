// SPDX-License-Identifier: Apache-2.0

package load

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// Sockaddr converts an address for system calls.
func Sockaddr(ap netip.AddrPort) unix.Sockaddr {
	if addr := ap.Addr().Unmap(); addr.Is4() {
		return &unix.SockaddrInet4{Addr: addr.As4(), Port: int(ap.Port())}
	}
	return &unix.SockaddrInet6{Addr: ap.Addr().As16(), Port: int(ap.Port())}
}

// AddrPort converts an address of a system call, unmapped.
func AddrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}
