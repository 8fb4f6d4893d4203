// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/rtnl"
)

// Route is a route of a pod through its device, in the main table.
type Route struct {
	Dst netip.Prefix `json:"dst"`
	// Via is the next hop. In an Attachment it can be outside the pod's prefixes; it is invalid in modes with
	// Traits.Layer3, whose routes name only the device. In Pod.Routes, an invalid Via stands for the gateway of Dst's
	// family. Otherwise it is a neighbour's address: only the gateway in modes without Traits.Switched.
	Via netip.Addr `json:"gw,omitzero"`
	// OnLink makes Via a neighbour outside the pod's prefixes or, if Via is invalid, all of Dst neighbours.
	OnLink bool `json:"onlink,omitempty"`
	// MTU and AdvMSS are in bytes; 0 is the device's MTU and the MSS that follows from it.
	MTU    int `json:"mtu,omitempty"`
	AdvMSS int `json:"advmss,omitempty"`
	// Priority is the metric: of several routes to Dst the least counts. 0 is the
	// kernel's choice, 0 for IPv4 and 1024 for IPv6.
	Priority int `json:"priority,omitempty"`

	src netip.Addr // source address of the host's own packets on the host's route to a pod; or invalid
}

// IsDefault reports whether the route is a default route.
func (r Route) IsDefault() bool { return r.Dst.IsValid() && r.Dst.Bits() == 0 }

// The kernel reduces larger values to these (ip_metrics_convert).
const (
	maxAdvMSS   = 65535 - 40
	maxPriority = 1<<32 - 1
)

// ValidateRoutes validates the pod's routes in a link mode with or without
// Traits.Switched. Its error names the key of the route in a CNI configuration.
func (p Pod) ValidateRoutes(network Network, switched bool) error {
	if _, errs := p.UsableRoutes(network, switched); len(errs) > 0 {
		return errs[0]
	}
	return nil
}

// UsableRoutes returns the valid ones of the pod's routes, and for each of the others the error of ValidateRoutes. Of
// two routes to one destination the first is valid.
func (p Pod) UsableRoutes(network Network, switched bool) (usable []Route, errs []error) {
	for i, r := range p.Routes {
		key, err := p.validateRoute(r, network, switched)
		if slices.ContainsFunc(usable, func(o Route) bool { return o.Dst == r.Dst && o.metric() == r.metric() }) {
			key, err = "dst", fmt.Errorf("duplicate route to %v", r.Dst)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("routes[%d].%s: %w", i, key, err))
			continue
		}
		usable = append(usable, r)
	}
	return usable, errs
}

func (p Pod) validateRoute(r Route, network Network, switched bool) (key string, err error) {
	ofFamily := func(addr netip.Addr) bool { return addr.Is4() == r.Dst.Addr().Is4() }
	own, _ := network.gateway(r.Dst.Addr())
	least := minMTU
	if r.Dst.Addr().Is6() {
		least = minMTU6
	}
	switch {
	case !r.Dst.IsValid():
		return "dst", errors.New("missing: want a prefix like 10.9.0.0/16")
	case r.Dst != r.Dst.Masked() || r.Dst.Addr().Is4In6():
		return "dst", fmt.Errorf("invalid network prefix %v: want one like %v", r.Dst, r.Dst.Masked())
	case !slices.ContainsFunc(p.Addresses, ofFamily):
		return "dst", fmt.Errorf("%v: the pod lacks an address of its family", r.Dst)
	case switched && r.Dst == own.Masked():
		return "dst", fmt.Errorf("%v is the pods' own network, in which they reach each other without a route", r.Dst)
	case r.MTU != 0 && (r.MTU < least || r.MTU > network.mtu()):
		return "mtu", fmt.Errorf("%d is not between %d and the %d of the pod's device", r.MTU, least, network.mtu())
	case r.AdvMSS < 0 || r.AdvMSS > maxAdvMSS:
		return "advmss", fmt.Errorf("%d is not between 0 and %d", r.AdvMSS, maxAdvMSS)
	case r.Priority < 0 || r.Priority > maxPriority:
		return "priority", fmt.Errorf("%d is not between 0 and %d", r.Priority, maxPriority)
	case !r.Via.IsValid():
		return "", nil
	case !ofFamily(r.Via):
		return "gw", fmt.Errorf("%v is not of the family of %v", r.Via, r.Dst)
	case switched && r.Via.Is4() && own.Contains(r.Via) && own.Bits() < 31 && !(own.Contains(r.Via.Prev()) &&
		own.Contains(r.Via.Next())):
		return "gw", fmt.Errorf("%v is not a host's address in %v", r.Via, own.Masked())
	case slices.Contains(p.Addresses, r.Via):
		return "gw", fmt.Errorf("%v is the pod's own address", r.Via)
	case !switched && r.Via != own.Addr():
		return "gw", fmt.Errorf("%v is unreachable: the pod's only neighbour is the host, %v", r.Via, own.Addr())
	case switched && !own.Contains(r.Via) && r.Via != network.nextHop(own) && (!IsRouter(r.Via) || !r.OnLink &&
		(r.Via.Is4() || !r.Via.IsLinkLocalUnicast())):
		return "gw", fmt.Errorf("%v is unreachable: it is not in the pods' network, %v", r.Via, own.Masked())
	}
	return "", nil
}

// destinations are the prefixes that a pod needs routes to: the default prefixes, or the network's own if its default
// routes are elsewhere. With Traits.Switched the latter are on the device anyway.
func (p Pod) destinations(network Network, switched bool) (out []netip.Prefix) {
	for _, addr := range p.Addresses {
		dst := defaultPrefix(addr)
		if p.Secondary {
			gateway, ok := network.gateway(addr)
			if !ok || switched {
				continue
			}
			dst = gateway.Masked()
		}
		if !slices.Contains(out, dst) {
			out = append(out, dst)
		}
	}
	return out
}

func defaultPrefix(addr netip.Addr) netip.Prefix {
	if addr.Is6() {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// hostRoutes are the host's routes to a pod, one for each address. The source of the
// host's own packets is its gateway address.
func (p Pod) hostRoutes(network Network) (routes []Route) {
	for _, addr := range p.Addresses {
		gateway, _ := network.gateway(addr)
		routes = append(routes, Route{Dst: hostPrefix(addr), src: gateway.Addr()})
	}
	return routes
}

// linkNextHops returns the next hops of a pod on Ethernet, one for each family of its
// addresses. They are the same on all hosts and links.
func linkNextHops(pod Pod) []netip.Addr {
	hops := map[bool]netip.Addr{
		true:  netip.AddrFrom4([4]byte{169, 254, 1, 1}),
		false: netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 15: 1}),
	}
	var out []netip.Addr
	for _, addr := range pod.Addresses {
		if hop := hops[addr.Is4()]; !slices.Contains(out, hop) {
			out = append(out, hop)
		}
	}
	return out
}

func (r Route) text() string {
	text := "route to " + r.Dst.String()
	if r.Dst.Bits() == 0 {
		text = "default route"
	}
	if r.Via.IsValid() {
		text += " via " + r.Via.String()
	}
	for _, more := range []struct {
		name  string
		value int
	}{{"metric", r.Priority}, {"mtu", r.MTU}, {"advmss", r.AdvMSS}} {
		if more.value != 0 {
			text += fmt.Sprintf(" %s %d", more.name, more.value)
		}
	}
	return text
}

func (r Route) netlink(index int) *netlink.Route {
	out := &netlink.Route{
		LinkIndex: index, Dst: rtnl.DeviceAddress(r.Dst).IPNet, Scope: netlink.SCOPE_LINK,
		MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority,
	}
	if r.Via.IsValid() {
		out.Gw = r.Via.AsSlice()
		out.Flags = int(netlink.FLAG_ONLINK)
		out.Scope = netlink.SCOPE_UNIVERSE
	}
	if r.src.IsValid() {
		out.Src = r.src.AsSlice()
	}
	return out
}

// metric is the priority in the kernel's answers (IP6_RT_PRIO_USER).
func (r Route) metric() int {
	if r.Priority == 0 && r.Dst.Addr().Is6() {
		return 1024
	}
	return r.Priority
}

// addRoute adds a route through the device, which must be up. A route of any device to the same prefix is an error.
func (h nsHandle) addRoute(link netlink.Link, r Route) error {
	err := h.RouteAdd(r.netlink(link.Attrs().Index))
	if errors.Is(err, unix.EEXIST) {
		err = fmt.Errorf("the destination has a route already: %w", err)
	}
	return h.failed(err, link.Attrs().Name, "add "+r.text()+" through %s")
}

func (h nsHandle) addRoutes(link netlink.Link, routes []Route) error {
	for _, r := range routes {
		if err := h.addRoute(link, r); err != nil {
			return err
		}
		h.undo.add(func() error { return h.removeRoutes(link, []Route{r}) })
	}
	return nil
}

func (h nsHandle) addMissingRoutes(link netlink.Link, routes []Route) error {
	var missing []Route
	for _, r := range routes {
		has, err := h.hasRoute(link.Attrs().Index, r)
		if err != nil {
			return err
		}
		if !has {
			missing = append(missing, r)
		}
	}
	return h.addRoutes(link, missing)
}

func (h nsHandle) removeRoutes(link netlink.Link, routes []Route) error {
	var errs []error
	for _, r := range routes {
		if err := h.RouteDel(r.netlink(link.Attrs().Index)); !errors.Is(err, unix.ESRCH) {
			errs = append(errs, h.failed(err, link.Attrs().Name, "remove "+r.text()+" through %s"))
		}
	}
	return errors.Join(errs...)
}

func (h nsHandle) hasRoute(index int, want Route) (bool, error) {
	family := unix.AF_INET
	if want.Dst.Addr().Is6() {
		family = unix.AF_INET6
	}
	routes, err := rtnl.Dump(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(family, &netlink.Route{LinkIndex: index}, netlink.RT_FILTER_OIF)
	})
	if err != nil {
		return false, fmt.Errorf("list routes in %q: %w", h.ns.Name(), err)
	}
	for _, have := range routes {
		dst := netip.PrefixFrom(want.Dst.Addr(), 0) // no Dst means the default route
		if have.Dst != nil {
			addr, _ := netip.AddrFromSlice(have.Dst.IP)
			ones, _ := have.Dst.Mask.Size()
			dst = netip.PrefixFrom(addr.Unmap(), ones)
		}
		via, _ := netip.AddrFromSlice(have.Gw)
		if dst == want.Dst && via.Unmap() == want.Via &&
			have.MTU == want.MTU && have.AdvMSS == want.AdvMSS && have.Priority == want.metric() {
			return true, nil
		}
	}
	return false, nil
}
