// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"mustang/internal/rtnl"
)

// podConfig is the configuration of a pod's own device, for Create and for Check.
type podConfig struct {
	kind  string
	mtu   int
	addrs []netip.Prefix
	// nextHops are those of routes without one of their own, at most one per family. In
	// layer 3 there are none: the routes name only the device.
	nextHops []netip.Addr
	routes   []Route
	layer3   bool
	// switched is true if neighbours cache the pod's MAC address.
	switched bool
	// relayed is true if the device has no carrier until a program opens it.
	relayed bool
}

// addGateways adds the pod's addresses with the prefix lengths of their gateways, and its next hops. Each address must be in
// a gateway's prefix, unless that is a single address.
func (c *podConfig) addGateways(network Network, pod Pod) error {
	for _, addr := range pod.Addresses {
		gateway, ok := network.gateway(addr)
		switch {
		case !ok:
			continue
		case gateway.IsSingleIP():
			c.routes = append(c.routes, Route{Dst: gateway})
		case !gateway.Contains(addr):
			return fmt.Errorf("pod's address %v is not in the prefix of gateway %v", addr, gateway)
		}
		c.addrs = append(c.addrs, netip.PrefixFrom(addr, gateway.Bits()))
		if hop := network.nextHop(gateway); !slices.Contains(c.nextHops, hop) {
			c.nextHops = append(c.nextHops, hop)
		}
	}
	return nil
}

// addRoutes adds the pod's routes. Those of Pod.Routes replace the mode's own to the same destinations.
func (c *podConfig) addRoutes(network Network, pod Pod) {
	custom := slices.DeleteFunc(slices.Clone(pod.Routes), func(r Route) bool {
		return pod.Secondary && r.IsDefault() && r.Priority == 0
	})
	for _, dst := range pod.destinations(network, c.switched) {
		if !slices.ContainsFunc(custom, func(r Route) bool { return r.Dst == dst }) {
			c.routes = append(c.routes, Route{Dst: dst, Via: c.nextHop(dst)})
		}
	}
	for _, r := range custom {
		if !r.Via.IsValid() && !r.OnLink || !c.switched {
			r.Via = c.nextHop(r.Dst)
		}
		r.OnLink = false // the kernel takes each next hop as a neighbour
		c.routes = append(c.routes, r)
	}
}

// nextHop returns the next hop of dst's family; invalid in layer 3.
func (c podConfig) nextHop(dst netip.Prefix) netip.Addr {
	for _, hop := range c.nextHops {
		if hop.Is4() == dst.Addr().Is4() {
			return hop
		}
	}
	return netip.Addr{}
}

// settings are those of the device.
func (c podConfig) settings(name string) []rtnl.Sysctl {
	if c.layer3 {
		return layer3Settings(name, c.addrs)
	}
	if c.switched {
		return append(deviceSettings(name, c.addrs), announceSettings(name)...)
	}
	return deviceSettings(name, c.addrs)
}

// spec is the specification for Check.
func (c podConfig) spec(pod Pod) deviceSpec {
	return deviceSpec{
		name: pod.IfName, kind: c.kind, mtu: c.mtu, mac: pod.MAC, addrs: c.addrs, routes: c.routes,
		settings: c.settings(pod.IfName),
	}
}

// prepare configures a device that is down, and sets it up. Routes follow in finish, when the device has a carrier.
func (c podConfig) prepare(h nsHandle, link netlink.Link) error {
	if err := apply(h.ns, c.settings(link.Attrs().Name)); err != nil {
		return err
	}
	if err := h.setUpOwn(link); err != nil {
		return err
	}
	for _, addr := range c.addrs {
		if err := h.addAddress(link, addr, netlink.SCOPE_UNIVERSE); err != nil {
			return err
		}
	}
	return nil
}

// finish waits until the device can send, unless that depends on a relay, adds the
// pod's routes and announces its addresses.
func (c podConfig) finish(h nsHandle, link netlink.Link) error {
	if !c.relayed {
		if err := h.awaitCarrier(link); err != nil {
			return err
		}
	}
	if err := h.awaitLocal(link, c.addrs); err != nil {
		return err
	}
	if err := h.addRoutes(link, c.routes); err != nil {
		return err
	}
	if c.switched && !c.relayed && len(c.addrs) > 0 {
		return h.announce(link, c.addrs)
	}
	return nil
}

// announce announces that addrs are at the device's MAC address to all neighbours on its network. Otherwise,
// neighbours of an earlier pod with the same address would send to that pod's MAC address until their caches expire.
//
// The kernel does so when the device's MAC address is set, even to the same value, if the device has
// announceSettings. Where it can't be set (ipvlan), rtnl sends the packets. For ARP that takes a packet socket, and
// to close one the kernel waits for an RCU grace period (packet_release), some 10 ms.
func (h nsHandle) announce(link netlink.Link, addrs []netip.Prefix) error {
	if h.LinkSetHardwareAddr(link, macOf(link)) == nil {
		return nil
	}
	var all []netip.Addr
	for _, addr := range addrs {
		all = append(all, addr.Addr())
	}
	return rtnl.In(h.ns).Announce(link.Attrs().Name, all...)
}
