// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/nl"
)

// route is a route by one device, in the main table.
type route struct {
	dst netip.Prefix
	via netip.Addr // next hop, taken as directly reachable; or invalid
	src netip.Addr // source address for the host's own packets; or invalid
	// mtu and advMSS in bytes, and the metric; 0 is up to the kernel
	mtu, advMSS, priority int
}

func (r route) String() string {
	text := "route to " + r.dst.String()
	if r.dst.Bits() == 0 {
		text = "default route"
	}
	if r.via.IsValid() {
		text += " via " + r.via.String()
	}
	for _, more := range []struct {
		name  string
		value int
	}{{"metric", r.priority}, {"mtu", r.mtu}, {"advmss", r.advMSS}} {
		if more.value != 0 {
			text += fmt.Sprintf(" %s %d", more.name, more.value)
		}
	}
	return text
}

func (r route) netlink(index int) *netlink.Route {
	out := &netlink.Route{
		LinkIndex: index, Dst: ipNet(r.dst), Scope: netlink.SCOPE_LINK, MTU: r.mtu, AdvMSS: r.advMSS, Priority: r.priority,
	}
	if r.via.IsValid() {
		out.Gw = r.via.AsSlice()
		out.Flags = int(netlink.FLAG_ONLINK)
		out.Scope = netlink.SCOPE_UNIVERSE
	}
	if r.src.IsValid() {
		out.Src = r.src.AsSlice()
	}
	return out
}

// addRoute adds a route by the device, which must be up. It is an error if there
// is a route to that destination already, by this or another device.
func (s side) addRoute(link netlink.Link, r route) error {
	err := s.RouteAdd(r.netlink(link.Attrs().Index))
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add %v by device %q in %q: the destination has a route already: %w",
			r, link.Attrs().Name, s.ns.Name(), err)
	}
	if err != nil {
		return fmt.Errorf("add %v by device %q in %q: %w", r, link.Attrs().Name, s.ns.Name(), err)
	}
	return nil
}

// addRoutes adds routes by the device. If it fails, it has removed those that it
// added.
func (s side) addRoutes(link netlink.Link, routes []route) error {
	for i, r := range routes {
		if err := s.addRoute(link, r); err != nil {
			return errors.Join(err, s.removeRoutes(link, routes[:i]))
		}
	}
	return nil
}

// removeRoutes removes those of the routes by the device that are there.
func (s side) removeRoutes(link netlink.Link, routes []route) error {
	var errs []error
	for _, r := range routes {
		err := s.RouteDel(r.netlink(link.Attrs().Index))
		if err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("remove %v by device %q in %q: %w", r, link.Attrs().Name, s.ns.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// hasRoute reports whether the device has the route.
func (s side) hasRoute(index int, want route) (bool, error) {
	family := unix.AF_INET
	if want.dst.Addr().Is6() {
		family = unix.AF_INET6
	}
	routes, err := nl.Dump(func() ([]netlink.Route, error) {
		return s.RouteListFiltered(family, &netlink.Route{LinkIndex: index}, netlink.RT_FILTER_OIF)
	})
	if err != nil {
		return false, fmt.Errorf("list routes in %q: %w", s.ns.Name(), err)
	}
	for _, have := range routes {
		dst := netip.PrefixFrom(want.dst.Addr(), 0) // no Dst means the default route
		if have.Dst != nil {
			addr, _ := netip.AddrFromSlice(have.Dst.IP)
			ones, _ := have.Dst.Mask.Size()
			dst = netip.PrefixFrom(addr.Unmap(), ones)
		}
		via, _ := netip.AddrFromSlice(have.Gw)
		if dst == want.dst && via.Unmap() == want.via && have.MTU == want.mtu && have.AdvMSS == want.advMSS && have.Priority == want.metric() {
			return true, nil
		}
	}
	return false, nil
}

// metric is the priority that the kernel tells (IP6_RT_PRIO_USER).
func (r route) metric() int {
	if r.priority == 0 && r.dst.Addr().Is6() {
		return 1024
	}
	return r.priority
}

// defaultRoute is the default route of hop's family by hop.
func defaultRoute(hop netip.Addr) route { return route{dst: everywhere(hop), via: hop} }

// everywhere is the prefix that contains all addresses of addr's family.
func everywhere(addr netip.Addr) netip.Prefix {
	if addr.Is6() {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}
