// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// Intact reports whether the host still has the gateways' addresses and forwards:
// what other programs take away from it by mistake. It is Setup that puts it right. It
// asks by a few system calls and not over netlink, so that it can be called before each
// Create. Where the host lets sockets have addresses that are not its own
// (ip_nonlocal_bind), an address that is gone is not noticed.
func (n Network) Intact() (intact bool, err error) {
	err = n.Host.Do(func() (err error) {
		intact, err = n.intactHere()
		return err
	})
	return intact, err
}

// intactHere asks in the thread's network namespace, the host's, for all at once: it
// takes longer to enter than to ask.
func (n Network) intactHere() (bool, error) {
	for _, s := range forwarding() {
		value, err := readShort("/proc/sys/" + s.key)
		if err != nil && withoutIPv6(s.key, err) {
			continue
		}
		if err != nil || strings.TrimSpace(value) != s.value {
			return false, err
		}
	}
	for _, gateway := range n.Gateways {
		if here, err := bindable(gateway.Addr()); err != nil || !here {
			return false, err
		}
	}
	return true, nil
}

// readShort reads a file of a few bytes, by three system calls.
func readShort(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var data [16]byte
	n, err := unix.Read(fd, data[:])
	return string(data[:max(n, 0)]), err
}

// bindable reports whether an address is one of the thread's network namespace: the
// kernel gives a socket no other.
func bindable(addr netip.Addr) (bool, error) {
	family, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: addr.As16()})
	if addr.Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Addr: addr.As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	err = unix.Bind(fd, to)
	if err == unix.EADDRNOTAVAIL {
		return false, nil
	}
	return err == nil, err
}
