// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"net/netip"

	"github.com/vishvananda/netlink"
)

// interior is how a pod's own device is configured; what is created from it is
// also checked by it.
type interior struct {
	kind  string
	mtu   int
	addrs []netip.Prefix
	hops  []netip.Addr // next hops of the default routes, at most one per family
	// shared is whether neighbours keep the pod's MAC address in their caches.
	shared bool
}

// prepare configures a device that is down, and sets it up. Routes come with
// finish, when the device has a carrier.
func (i interior) prepare(s side, link netlink.Link) error {
	if err := apply(s.ns, device(link.Attrs().Name, i.addrs)); err != nil {
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

// finish waits until the device can send, adds the pod's default
// routes, and tells the neighbours where the pod is.
func (i interior) finish(s side, link netlink.Link) error {
	if err := s.awaitCarrier(link); err != nil {
		return err
	}
	for _, hop := range i.hops {
		if err := s.addRoute(link, defaultRoute(hop)); err != nil {
			return err
		}
	}
	if i.shared {
		return announce(s.ns, link, i.addrs)
	}
	return nil
}

// wanted is what check compares a pod's device with.
func (i interior) wanted(pod Pod) wanted {
	want := wanted{name: pod.IfName, kind: i.kind, mtu: i.mtu, addrs: i.addrs, settings: device(pod.IfName, i.addrs)}
	for _, hop := range i.hops {
		want.routes = append(want.routes, defaultRoute(hop))
	}
	return want
}
