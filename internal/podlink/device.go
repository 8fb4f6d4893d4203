// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

type deviceSpec struct {
	name, kind string
	mtu        int              // 0 for any
	mac        net.HardwareAddr // nil for any
	addrs      []netip.Prefix
	routers    []netip.Addr // addresses of others, which the namespace must not have
	routes     []Route
	settings   []rtnl.Sysctl
}

type checker struct {
	found []string
	err   error
}

func (c *checker) fail(err error) { c.err = cmp.Or(c.err, err) }

func (c *checker) add(format string, args ...any) {
	c.found = append(c.found, fmt.Sprintf(format, args...))
}

func (c *checker) settings(ns *netns.Namespace, settings []rtnl.Sysctl) {
	for _, s := range settings {
		value, err := rtnl.In(ns).Sysctl(s.Key)
		switch {
		case err != nil && isMissingIPv6(s.Key, err):
		case err != nil:
			c.fail(err)
		case value != s.Value:
			c.add("%s in %q is %s, not %s", s.Key, ns.Name(), value, s.Value)
		}
	}
}

// device adds the deviations of a device from its specification. It returns the
// device, or nil if it is missing or of another kind.
func (c *checker) device(h nsHandle, want deviceSpec) netlink.Link {
	device, err := rtnl.In(h.ns).Device(want.name)
	if errors.Is(err, fs.ErrNotExist) {
		c.add("device %q is missing in %q", want.name, h.ns.Name())
		return nil
	}
	if err != nil {
		c.fail(err)
		return nil
	}
	if device.Kind != want.kind {
		c.add("device %q in %q is a %s, not a %s", want.name, h.ns.Name(), device.Kind, want.kind)
		return nil
	}
	if !device.Up {
		c.add("device %q in %q is not up", want.name, h.ns.Name())
	}
	if want.mtu != 0 && device.MTU != want.mtu {
		c.add("device %q in %q has MTU %d, not %d", want.name, h.ns.Name(), device.MTU, want.mtu)
	}
	if want.mac != nil && !slices.Equal(device.MAC, want.mac) {
		c.add("device %q in %q has MAC address %v, not %v", want.name, h.ns.Name(), device.MAC, want.mac)
	}
	for _, addr := range want.addrs {
		if !slices.Contains(device.Addrs, addr) {
			c.add("device %q in %q lacks address %v", want.name, h.ns.Name(), addr)
		}
	}
	for _, r := range want.routes {
		has, err := h.hasRoute(device.Index, r)
		c.fail(err)
		if err == nil && !has {
			c.add("%s through device %q is missing in %q", r.text(), device.Name, h.ns.Name())
		}
	}
	c.settings(h.ns, want.settings)
	link, err := h.link(want.name)
	if err != nil {
		c.fail(err)
		return nil
	}
	for _, router := range want.routers {
		if rtnl.HasLocal(h.Handle, link, router) {
			c.add("%q has address %v of a router other than the host", h.ns.Name(), router)
		}
	}
	return link
}

// setUpHostDevice configures the device with the gateways' addresses (a bridge's own, one on the uplink, or the
// loopback device), and enables forwarding. created is true if this Setup created the device.
func (h nsHandle) setUpHostDevice(link netlink.Link, spec deviceSpec, created bool) error {
	if err := apply(h.ns, spec.settings); err != nil {
		return err
	}
	setUp := h.ensureUp
	if created {
		setUp = h.setUpOwn // others keep their limits: they may be the host's, or of a network without BIG TCP
	}
	if err := setUp(link); err != nil {
		return err
	}
	for _, router := range spec.routers {
		if rtnl.HasLocal(h.Handle, link, router) {
			return fmt.Errorf("address %v of a router other than the host is an address of %q: remove it there (ip addr del)",
				router, h.ns.Name())
		}
	}
	if err := h.addGateways(link, spec.addrs); err != nil {
		return err
	}
	return apply(h.ns, forwardingSettings(spec.addrs))
}

func (n Network) bridgeSpec(kind string) deviceSpec {
	return deviceSpec{
		name: n.bridge(), kind: kind, addrs: n.Gateways, routers: n.Routers,
		settings: deviceSettings(n.bridge(), n.Gateways),
	}
}

func (s deviceSpec) withForwarding() deviceSpec {
	s.settings = append(forwardingSettings(s.addrs), s.settings...)
	return s
}

// Settings that let a host route packets of a family.
const (
	IPv4Forwarding = "net/ipv4/ip_forward"
	IPv6Forwarding = "net/ipv6/conf/all/forwarding"
)

// forwardingSettings let a host route its pods' packets, in the families in which it is their gateway or has an address
// among them; without any address, in both. To forward IPv6 costs a host its routes of router advertisements, unless
// accept_ra is 2.
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

func portSettings(name string) []rtnl.Sysctl {
	return []rtnl.Sysctl{{Key: "net/ipv6/conf/" + name + "/disable_ipv6", Value: "1"}}
}

// apply sets the settings. It omits IPv6 settings on a kernel without IPv6.
func apply(ns *netns.Namespace, settings []rtnl.Sysctl) error {
	return rtnl.In(ns).SetSysctls(settings, func(s rtnl.Sysctl, err error) bool { return isMissingIPv6(s.Key, err) })
}

func isMissingIPv6(key string, err error) bool {
	return errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(key, "net/ipv6/")
}

// QuickCheck reports whether the host still has the gateways' addresses and forwards, which other programs disturb by
// mistake and Setup repairs. It takes a few system calls and no netlink, so that it can precede each Create. It does
// not notice a missing address if the host lets sockets bind to foreign addresses (ip_nonlocal_bind).
func (n Network) QuickCheck() (intact bool, err error) {
	// One visit to the namespace does it all: the visit takes longer than the checks.
	return netns.Get(n.Host, n.quickCheck)
}

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

// canBind reports whether the kernel binds a socket to an address, one of the thread's network namespace.
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
