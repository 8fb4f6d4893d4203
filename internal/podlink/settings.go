// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// Settings that let a host route packets of a family.
const (
	IPv4Forwarding = "net/ipv4/ip_forward"
	IPv6Forwarding = "net/ipv6/conf/all/forwarding"
)

// forwardingSettings let a host route its pods' packets, in the families in which it is their gateway or has an address
// among them; without any address, in both. To forward IPv6 costs a host its routes of router advertisements, unless accept_ra is 2.
func forwardingSettings(host []netip.Prefix) (settings []rtnl.Sysctl) {
	for _, family := range []struct {
		key string
		is  func(netip.Addr) bool
	}{{IPv4Forwarding, netip.Addr.Is4}, {IPv6Forwarding, netip.Addr.Is6}} {
		if len(host) == 0 || slices.ContainsFunc(host, func(p netip.Prefix) bool { return family.is(p.Addr()) }) {
			settings = append(settings, rtnl.Sysctl{Key: family.key, Value: "1"})
		}
	}
	return settings
}

// deviceSettings are the settings of a device that gets addresses: no router advertisements, and a link-local address
// that is usable at once. IPv6 is enabled if the device gets IPv6 addresses, and otherwise unchanged.
func deviceSettings(name string, addrs []netip.Prefix) []rtnl.Sysctl {
	conf := "net/ipv6/conf/" + name
	settings := []rtnl.Sysctl{{Key: conf + "/accept_dad", Value: "0"}, {Key: conf + "/accept_ra", Value: "0"}}
	if slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		settings = append(settings, rtnl.Sysctl{Key: conf + "/disable_ipv6", Value: "0"})
	}
	return settings
}

// layer3Settings are the settings of a device without neighbours. It gets no link-local address, which nothing would
// use: without MAC addresses the kernel would give both ends of a link the same.
func layer3Settings(name string, addrs []netip.Prefix) []rtnl.Sysctl {
	return append(deviceSettings(name, addrs), rtnl.Sysctl{Key: "net/ipv6/conf/" + name + "/addr_gen_mode", Value: "1"})
}

// announceSettings make the kernel announce a device's addresses to its neighbours whenever the MAC address is set.
func announceSettings(name string) []rtnl.Sysctl {
	return []rtnl.Sysctl{{Key: "net/ipv4/conf/" + name + "/arp_notify", Value: "1"}, {Key: "net/ipv6/conf/" + name + "/ndisc_notify", Value: "1"}}
}

// portSettings keep a switch's port from having addresses of its own.
func portSettings(name string) []rtnl.Sysctl {
	return []rtnl.Sysctl{{Key: "net/ipv6/conf/" + name + "/disable_ipv6", Value: "1"}}
}

// apply sets the settings. It leaves those of IPv6 out on a kernel without IPv6.
func apply(ns *netns.Namespace, settings []rtnl.Sysctl) error {
	return rtnl.In(ns).SetSysctls(settings, func(s rtnl.Sysctl, err error) bool { return isMissingIPv6(s.Key, err) })
}

// isMissingIPv6 reports whether err is due to a kernel without IPv6.
func isMissingIPv6(key string, err error) bool {
	return errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(key, "net/ipv6/")
}

// QuickCheck reports whether the host still has the gateways' addresses and forwards, which other programs disturb by
// mistake and Setup repairs. It takes a few system calls and no netlink, so that it can precede each Create. It does
// not notice a missing address if the host lets sockets bind to foreign addresses (ip_nonlocal_bind).
func (n Network) QuickCheck() (intact bool, err error) {
	// One visit to the namespace does it all: the visit takes longer than the checks.
	err = n.Host.Do(func() (err error) {
		intact, err = n.quickCheck()
		return err
	})
	return intact, err
}

// quickCheck checks the thread's network namespace.
func (n Network) quickCheck() (bool, error) {
	for _, s := range forwardingSettings(n.Gateways) {
		value, err := readShort("/proc/sys/" + s.Key)
		if err != nil && isMissingIPv6(s.Key, err) {
			continue
		}
		if err != nil || strings.TrimSpace(value) != s.Value {
			return false, err
		}
	}
	for _, gateway := range n.Gateways {
		if ok, err := canBind(gateway.Addr()); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

// readShort reads a file of a few bytes with three system calls.
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

// canBind reports whether the kernel binds a socket to an address, which has to be
// one of the thread's network namespace.
func canBind(addr netip.Addr) (bool, error) {
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
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return false, nil
	}
	return err == nil, err
}
