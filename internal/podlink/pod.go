// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// interior is how a pod's own device is configured; what is created from it is
// also checked by it.
type interior struct {
	kind  string
	mtu   int
	addrs []netip.Prefix
	// hops are the next hops of routes without one of their own, at most one per family.
	// In layer 3 there are none: such routes are by the device alone.
	hops   []netip.Addr
	routes []route
	layer3 bool
	// shared is whether neighbours keep the pod's MAC address in their caches.
	shared bool
	// relayed is whether the device has no carrier until a program opens it.
	relayed bool
}

// settings are those of the device.
func (i interior) settings(name string) []setting {
	if i.layer3 {
		return layer3Device(name, i.addrs)
	}
	if i.shared {
		return append(device(name, i.addrs), announcing(name)...)
	}
	return device(name, i.addrs)
}

// complete adds to an attachment how the pod's device is configured.
func (i interior) complete(out Attachment) Attachment {
	out.Prefixes, out.MTU = slices.Clone(i.addrs), i.mtu
	for _, r := range i.routes {
		out.Routes = append(out.Routes, Route{Dst: r.dst, Via: r.via, MTU: r.mtu, AdvMSS: r.advMSS, Priority: r.priority})
	}
	return out
}

// prepare configures a device that is down, and sets it up. Routes come with
// finish, when the device has a carrier.
func (i interior) prepare(s side, link netlink.Link) error {
	if err := apply(s.ns, i.settings(link.Attrs().Name)); err != nil {
		return err
	}
	if err := s.up(link); err != nil {
		return err
	}
	for _, addr := range i.addrs {
		if _, err := s.addAddress(link, addr, netlink.SCOPE_UNIVERSE); err != nil {
			return err
		}
	}
	return nil
}

// finish waits until the device can send, unless that is up to a program, adds
// the pod's routes, and tells the neighbours where the pod is.
func (i interior) finish(s side, link netlink.Link) error {
	if !i.relayed {
		if err := s.awaitCarrier(link); err != nil {
			return err
		}
	}
	if err := s.awaitLocal(link, i.addrs); err != nil {
		return err
	}
	if err := s.addRoutes(link, i.routes); err != nil {
		return err
	}
	if i.shared && !i.relayed {
		return s.announce(link, i.addrs)
	}
	return nil
}

// wanted is what check compares a pod's device with.
func (i interior) wanted(pod Pod) wanted {
	return wanted{
		name: pod.IfName, kind: i.kind, mtu: i.mtu, mac: pod.MAC, addrs: i.addrs, routes: i.routes,
		settings: i.settings(pod.IfName),
	}
}
