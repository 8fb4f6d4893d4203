// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"mustang/internal/cni/netconf"
	"mustang/internal/podlink"
)

// checkMasks refuses prefixes that are shorter than 8 bits, or than the prefix of the host in that network: the host
// would route addresses elsewhere to the pods.
func (a *attachment) checkMasks(addresses []netconf.PodAddress) error {
	have, _ := a.plugin.records().Network(a.config.Name)
	for _, lease := range addresses {
		least := 0
		for _, p := range have.Gateways {
			if !p.IsSingleIP() && lease.Contains(p.Addr()) && slices.Contains(a.config.HostAddresses, p.Addr()) &&
				(least == 0 || p.Bits() < least) {
				least = p.Bits()
			}
		}
		if least = cmp.Or(least, 8); lease.Bits() < least {
			return fmt.Errorf("lease %v: want a prefix of %d bits at least", lease.Prefix, least)
		}
	}
	return nil
}

// leaseOf returns the addresses and routes of a result, which may come from a DHCP server. Routes without a next hop
// are on-link if their scope is link (RFC 3442).
func leaseOf(c netconf.Config, result *types100.Result) (addresses []netconf.PodAddress, routes []podlink.Route,
	err error) {
	own := func(addr netip.Addr) bool { return slices.Contains(addrsOf(addresses), addr) }
	if slices.Contains(result.IPs, nil) || slices.Contains(result.Routes, nil) {
		return nil, nil, errors.New("null among the addresses or routes of the result")
	}
	for _, ip := range result.IPs {
		prefix := prefixOf(ip.Address)
		if !prefix.IsValid() {
			return nil, nil, fmt.Errorf("invalid address %v in the result", ip)
		}
		if !own(prefix.Addr()) {
			addresses = append(addresses, netconf.PodAddress{Prefix: prefix, Gateway: addrOf(ip.Gateway)})
		}
	}
	if len(addresses) == 0 {
		return nil, nil, errors.New("no address in the result")
	}
	for i, r := range result.Routes {
		if r.Table != nil && *r.Table != unix.RT_TABLE_MAIN {
			return nil, nil, fmt.Errorf("routes[%d]: table %d is not supported", i, *r.Table)
		}
		route := podlink.Route{Dst: prefixOf(r.Dst).Masked(), Via: addrOf(r.GW), OnLink: true, MTU: r.MTU, AdvMSS: r.AdvMSS,
			Priority: r.Priority}
		if route.Via.IsUnspecified() || own(route.Via) {
			route.Via = netip.Addr{}
		} else if !route.Via.IsValid() {
			route.OnLink = r.Scope != nil && *r.Scope == unix.RT_SCOPE_LINK
		}
		routes = append(routes, route)
	}
	for i := range addresses {
		lease := &addresses[i]
		same := func(addr netip.Addr) bool { return addr.Is4() == lease.Addr().Is4() }
		routed := slices.ContainsFunc(c.HostAddresses, same)
		can := func(addr netip.Addr) bool {
			return podlink.IsRouter(addr) && same(addr) && !own(addr) && (routed || !addr.IsLinkLocalUnicast())
		}
		if can(lease.Gateway) {
			continue
		}
		lease.Gateway = netip.Addr{}
		// Where the host has its own address, the first default route names the missing gateway.
		at := slices.IndexFunc(routes, func(r podlink.Route) bool { return r.IsDefault() && can(r.Via) })
		if routed && at >= 0 {
			lease.Gateway = routes[at].Via
		}
	}
	if c.NoDefaultRoute {
		routes = slices.DeleteFunc(routes, podlink.Route.IsDefault)
	}
	return addresses, routes, nil
}

func addrOf(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// prefixOf converts a network. The prefix is invalid if the address is.
func prefixOf(n net.IPNet) netip.Prefix {
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addrOf(n.IP), bits)
}

func prefixesOf(result *types100.Result) (out []netip.Prefix) {
	for _, ip := range result.IPs {
		if prefix := prefixOf(ip.Address); prefix.Addr().IsValid() {
			out = append(out, prefix)
		}
	}
	return out
}
