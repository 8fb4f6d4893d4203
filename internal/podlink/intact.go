// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// Intact reports whether the host still has the gateways' addresses and forwards:
// what other programs take away from it by mistake. It is Setup that puts it right. It
// asks by a few system calls and not over netlink, so that it can be called before each
// Create. Where the host lets sockets have addresses that are not its own
// (ip_nonlocal_bind), an address that is gone is not noticed.
func (n Network) Intact() (bool, error) {
	lost, err := deviations(n.Host, forwarding())
	if err != nil || len(lost) > 0 {
		return false, err
	}
	for _, gateway := range n.Gateways {
		var here bool
		err := n.Host.Do(func() (err error) {
			here, err = bindable(gateway.Addr())
			return err
		})
		if err != nil || !here {
			return false, err
		}
	}
	return true, nil
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
