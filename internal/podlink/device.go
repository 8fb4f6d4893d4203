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

	"github.com/vishvananda/netlink"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// deviceSpec is the wanted state of a device.
type deviceSpec struct {
	name, kind string
	mtu        int              // 0 for any
	mac        net.HardwareAddr // nil for any
	addrs      []netip.Prefix
	routers    []netip.Addr // addresses of others, which the namespace must not have
	routes     []Route
	settings   []rtnl.Sysctl
}

// checker collects deviations, and the first error.
type checker struct {
	found []string
	err   error
}

func (c *checker) fail(err error) { c.err = cmp.Or(c.err, err) }

func (c *checker) add(format string, args ...any) {
	c.found = append(c.found, fmt.Sprintf(format, args...))
}

// result is the error of a Check that has found all deviations.
func (c *checker) result(mode Mode, pod Pod) error {
	if len(c.found) == 0 {
		return nil
	}
	return &DeviationError{Mode: mode.Name(), Pod: pod.name(), Deviations: c.found}
}

// settings adds the settings that have another value.
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

// setUpHostDevice configures the device with the gateways' addresses (a bridge's own, one on the uplink, or the loopback
// device), and enables forwarding. created is true if this Setup created the device.
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

// bridgeSpec is the specification of a bridge's own device.
func (n Network) bridgeSpec(kind string) deviceSpec {
	return deviceSpec{
		name: n.bridge(), kind: kind, addrs: n.Gateways, routers: n.Routers,
		settings: deviceSettings(n.bridge(), n.Gateways),
	}
}

// withForwarding adds the forwarding settings, for Check.
func (s deviceSpec) withForwarding() deviceSpec {
	s.settings = append(forwardingSettings(s.addrs), s.settings...)
	return s
}
