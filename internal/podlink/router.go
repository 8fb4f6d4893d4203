// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hop is the next hop of the default route of pods on a gateway's prefix: a router,
// or else the host.
func (n Network) hop(gateway netip.Prefix) netip.Addr {
	for _, router := range n.Routers {
		if router.Is4() == gateway.Addr().Is4() {
			return router
		}
	}
	return gateway.Addr()
}

// validateRouters reports what is wrong with the routers that are not the host.
func (n Network) validateRouters() error {
	for i, router := range n.Routers {
		plain := isHostAddress(router) || router.IsLinkLocalUnicast() && router.Zone() == "" && !router.Is4In6()
		own, ok := n.gateway(router)
		switch {
		case !plain:
			return fmt.Errorf("router %v is not the address of a host", router)
		case !ok:
			return fmt.Errorf("router %v: the host has no gateway of its family, by which pods reach it", router)
		case own.Addr() == router:
			return fmt.Errorf("router %v is the host's own address", router)
		case slices.ContainsFunc(n.Routers[:i], func(other netip.Addr) bool { return other.Is4() == router.Is4() }):
			return fmt.Errorf("router %v is the second one of its family", router)
		}
	}
	return nil
}

// hasNoRouters is an error for the modes in which all passes the host.
func (n Network) hasNoRouters(mode string) error {
	if len(n.Routers) > 0 {
		return fmt.Errorf("router %v: pods of link mode %s have no neighbour but the host", n.Routers[0], mode)
	}
	return nil
}

// leaveRouters is an error if the host has the address of a router, which would
// then have two owners.
func (s side) leaveRouters(link netlink.Link, network Network) error {
	for _, router := range network.Routers {
		if s.owns(link, router) {
			return fmt.Errorf("address %v, of a router that is not the host, is an address of %q: remove it there (ip addr del)",
				router, s.ns.Name())
		}
	}
	return nil
}

// owns reports whether an address is the namespace's, and one of the device if it
// is a link's.
func (s side) owns(link netlink.Link, addr netip.Addr) bool {
	options := &netlink.RouteGetOptions{}
	if addr.IsLinkLocalUnicast() {
		options.OifIndex = link.Attrs().Index
	}
	routes, err := s.RouteGetWithOptions(addr.AsSlice(), options)
	return err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL
}
