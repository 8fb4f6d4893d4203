// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"mustang/internal/podlink"
)

// parseRoutes reads key routes of the addresses that are built in.
func parseRoutes(o *object) (routes []podlink.Route) {
	o.each("routes", func(r *object) {
		var out podlink.Route
		r.read("dst", "a prefix like 10.9.0.0/16", &out.Dst)
		r.read("gw", "an address", &out.Via)
		r.read("mtu", "a number of bytes", &out.MTU)
		r.read("advmss", "a number of bytes", &out.AdvMSS)
		r.read("priority", "a number", &out.Priority)
		routes = append(routes, out)
	})
	return routes
}

// validateRoutes judges the routes by the ranges, before there is a pod. With link auto
// it is ADD that knows who can be reached.
func (c Config) validateRoutes() error {
	if len(c.IPAM.Routes) == 0 {
		return nil
	}
	var subnets []address
	for _, set := range c.IPAM.Sets {
		subnets = append(subnets, address{set[0].Subnet, gatewayOf(set[0])})
	}
	if i := slices.IndexFunc(c.IPAM.Routes, podlink.Route.IsDefault); i >= 0 && c.NoDefaultRoute {
		return invalid("ipam.routes[%d].dst: %v is a default route, and defaultRoute is false", i, c.IPAM.Routes[i].Dst)
	}
	own, routers, err := c.ends(subnets)
	if err != nil {
		return err
	}
	pod := podlink.Pod{Addresses: addressesOf(subnets), Routes: c.IPAM.Routes}
	mode, err := podlink.Lookup(c.Link)
	switched := err != nil || mode.Switched()
	if err := pod.ValidateRoutes(podlink.Network{Gateways: own, Routers: routers, MTU: c.MTU}, switched); err != nil {
		return invalid("ipam.%v", err)
	}
	return nil
}

// judgeRoutes judges the pod's routes by its addresses and the link mode.
func (a *attachment) judgeRoutes(pod podlink.Pod) error {
	err := pod.ValidateRoutes(a.network, a.mode.Switched())
	switch {
	case err == nil:
		return nil
	case a.config.IPAM.builtIn():
		return invalid("ipam.%v", err)
	}
	return invalid("ipam: what plugin %s gave: %v", a.config.IPAM.Type, err)
}

// givenRoutes are the routes that another plugin gave the pod, without default routes
// where there are to be none.
func (c Config) givenRoutes(routes []*types.Route) (out []podlink.Route, err error) {
	for i, r := range routes {
		if r.Table != nil || r.Scope != nil {
			return nil, fmt.Errorf("IPAM plugin %s: routes[%d]: table and scope are not supported", c.IPAM.Type, i)
		}
		via, _ := netip.AddrFromSlice(r.GW)
		route := podlink.Route{Dst: prefixOf(r.Dst), Via: via.Unmap(), MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority}
		if !route.IsDefault() || !c.NoDefaultRoute {
			out = append(out, route)
		}
	}
	return out, nil
}

// toldRoutes are a pod's routes as a runtime is told of them.
func toldRoutes(routes []podlink.Route) (out []*types.Route) {
	for _, r := range routes {
		told := &types.Route{Dst: ipNet(r.Dst), MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority}
		if r.Via.IsValid() {
			told.GW = r.Via.AsSlice()
		}
		out = append(out, told)
	}
	return out
}

// prefixOf keeps the address of a network, not only its prefix.
func prefixOf(n net.IPNet) netip.Prefix {
	addr, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits)
}
