// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"mustang/internal/nl"
)

// wanted is how a device should be.
type wanted struct {
	name, kind string
	mtu        int              // 0 if it does not matter
	mac        net.HardwareAddr // nil if it does not matter
	addrs      []netip.Prefix
	routers    []netip.Addr // whose addresses it must not have
	routes     []route
	settings   []setting
}

// checker gathers deviations. Its error is what kept it from looking.
type checker struct {
	found []string
	err   error
}

func (c *checker) add(format string, args ...any) {
	c.found = append(c.found, fmt.Sprintf(format, args...))
}

// result is the error of a Check.
func (c *checker) result(mode Mode, pod Pod) error {
	if c.err != nil {
		return fmt.Errorf("check %s link of pod %q: %w", mode.Name(), pod.name(), c.err)
	}
	if len(c.found) == 0 {
		return nil
	}
	return &DeviationError{Mode: mode.Name(), Pod: pod.name(), Deviations: c.found}
}

// settings notes which settings are not as they should be.
func (c *checker) settings(ns *nl.Namespace, settings []setting) {
	if c.err != nil {
		return
	}
	found, err := deviations(ns, settings)
	c.found = append(c.found, found...)
	c.err = err
}

// device notes in what a device is not as it should be. It returns the device;
// or nil if it is missing or of another kind, since then nothing fits.
func (c *checker) device(s side, want wanted) netlink.Link {
	if c.err != nil {
		return nil
	}
	device, err := s.ns.Device(want.name)
	if errors.Is(err, fs.ErrNotExist) {
		c.add("device %q is missing in %q", want.name, s.ns.Name())
		return nil
	}
	if err != nil {
		c.err = err
		return nil
	}
	if device.Kind != want.kind {
		c.add("device %q in %q is a %s, not a %s", want.name, s.ns.Name(), device.Kind, want.kind)
		return nil
	}
	if !device.Up {
		c.add("device %q in %q is not up", want.name, s.ns.Name())
	}
	if want.mtu != 0 && device.MTU != want.mtu {
		c.add("device %q in %q has MTU %d, not %d", want.name, s.ns.Name(), device.MTU, want.mtu)
	}
	if want.mac != nil && !slices.Equal(device.MAC, want.mac) {
		c.add("device %q in %q has MAC address %v, not %v", want.name, s.ns.Name(), device.MAC, want.mac)
	}
	for _, addr := range want.addrs {
		if !slices.Contains(device.Addrs, addr) {
			c.add("device %q in %q lacks address %v", want.name, s.ns.Name(), addr)
		}
	}
	c.routes(s, device, want.routes)
	c.settings(s.ns, want.settings)
	link, err := s.link(want.name)
	if err != nil && c.err == nil {
		c.err = err
	}
	if err == nil {
		c.routers(s, link, want.routers)
	}
	return link
}

// routers notes which addresses are the namespace's, and a router's too.
func (c *checker) routers(s side, link netlink.Link, routers []netip.Addr) {
	for _, router := range routers {
		if s.owns(link, router) {
			c.add("%q has address %v, of a router that is not the host", s.ns.Name(), router)
		}
	}
}

func (c *checker) routes(s side, device nl.Device, routes []route) {
	for _, r := range routes {
		has, err := s.hasRoute(device.Index, r)
		if err != nil {
			c.err = err
			return
		}
		if !has {
			c.add("%v by device %q is missing in %q", r, device.Name, s.ns.Name())
		}
	}
}
