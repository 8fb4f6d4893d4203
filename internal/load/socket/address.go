// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"encoding/binary"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Unmapped returns a TCP or UDP address, IPv4 always in its short form.
func Unmapped(addr net.Addr) netip.AddrPort {
	withPort, ok := addr.(interface{ AddrPort() netip.AddrPort })
	if !ok {
		return netip.AddrPort{}
	}
	ap := withPort.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

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

// RawAddrPort converts an address that a raw system call has written, unmapped.
func RawAddrPort(raw *unix.RawSockaddrAny) netip.AddrPort {
	port := func(p *uint16) uint16 { return binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(p))[:]) }
	switch raw.Addr.Family {
	case unix.AF_INET:
		sa := (*unix.RawSockaddrInet4)(unsafe.Pointer(raw))
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), port(&sa.Port))
	case unix.AF_INET6:
		sa := (*unix.RawSockaddrInet6)(unsafe.Pointer(raw))
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), port(&sa.Port))
	}
	return netip.AddrPort{}
}

// RawSockaddr converts an address once for many system calls.
func RawSockaddr(ap netip.AddrPort) *unix.RawSockaddrAny {
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
