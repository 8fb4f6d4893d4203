// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"mustang/internal/cni/netconf"
	"mustang/internal/ipam"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

func (a *attachment) reserveAddresses(ctx context.Context) (addresses []netconf.PodAddress, err error) {
	c := a.config
	if !c.IPAM.BuiltIn() {
		// A missing plugin has reserved nothing, and cannot release it either.
		if _, err := findPlugin(c.IPAM.Type, a.request.Path); err != nil {
			return nil, err
		}
	}
	a.record.Leased = true
	if err := a.save(); err != nil {
		return nil, err
	}
	if c.IPAM.BuiltIn() {
		leases, err := a.plugin.addresses(c.Name).Reserve(a.record.Owner, c.IPAM.Sets, c.Runtime.IPs)
		if err != nil {
			return nil, err
		}
		addresses, a.record.Routes = podAddresses(leases), c.IPAM.Routes
	} else if addresses, err = a.delegate(ctx); err != nil {
		return nil, err
	}
	a.record.Addresses = addrsOf(addresses)
	if err := a.save(); err != nil {
		return nil, err
	}
	own, err := rtnl.In(a.host).FirstLocal(a.record.Addresses)
	if err == nil && own.IsValid() {
		err = fmt.Errorf("%v is an address of the host: exclude it", own)
	}
	return addresses, err
}

func (a *attachment) delegate(ctx context.Context) (addresses []netconf.PodAddress, err error) {
	versioned, err := runPlugin(ctx, a.config.IPAM.Type, "ADD", a.request)
	if err != nil {
		return nil, err
	}
	result, err := types100.NewResultFromResult(versioned)
	if err != nil {
		return nil, err
	}
	if addresses, a.record.Routes, err = leaseOf(a.config, result); err != nil {
		return nil, fmt.Errorf("IPAM plugin %s: %w", a.config.IPAM.Type, err)
	}
	return addresses, a.checkMasks(addresses)
}

func addrsOf(addresses []netconf.PodAddress) (out []netip.Addr) {
	for _, a := range addresses {
		out = append(out, a.Addr())
	}
	return out
}

func (a *attachment) releaseAddresses(ctx context.Context) error {
	if !a.record.Leased {
		return nil
	}
	if a.record.IPAM != netconf.IPAMType {
		_, err := runPlugin(ctx, a.record.IPAM, "DEL", a.request)
		// A plugin that does not support the version refused ADD too.
		if old := (*types.Error)(nil); err != nil && !(errors.As(err, &old) && len(a.record.Addresses) == 0 &&
			old.Code == types.ErrIncompatibleCNIVersion) {
			return err
		}
	} else if err := a.plugin.addresses(a.config.Name).Release(a.record.Owner); err != nil {
		return err
	}
	a.record.Leased = false
	return nil
}

// leasedAddresses returns the reserved addresses; none with another IPAM plugin.
func (a *attachment) leasedAddresses() ([]netconf.PodAddress, error) {
	if a.record.IPAM != netconf.IPAMType {
		return nil, nil
	}
	leases, err := a.plugin.addresses(a.config.Name).Get(a.record.Owner)
	return podAddresses(leases), err
}

func podAddresses(leases []ipam.Lease) (out []netconf.PodAddress) {
	for _, l := range leases {
		prefix := netip.PrefixFrom(l.Address, l.Subnet.Bits())
		out = append(out, netconf.PodAddress{Prefix: prefix, Gateway: l.Gateway})
	}
	return out
}

func findPlugin(name, path string) (string, error) {
	found, err := invoke.FindInPath(name, filepath.SplitList(path))
	if err != nil {
		return "", fmt.Errorf("ipam.type %q: %w", name, err)
	}
	return found, nil
}

// runPlugin runs a verb of an IPAM plugin. The result is nil for verbs other than ADD.
func runPlugin(ctx context.Context, name, verb string, r Request) (types.Result, error) {
	path, err := findPlugin(name, r.Path)
	if err != nil {
		return nil, err
	}
	args := &invoke.Args{Command: verb, ContainerID: r.ContainerID, NetNS: r.Netns, IfName: r.IfName,
		PluginArgsStr: r.Args, Path: r.Path}
	if verb == "ADD" {
		return invoke.ExecPluginWithResult(ctx, path, r.Config, args, nil)
	}
	return nil, invoke.ExecPluginWithoutResult(ctx, path, r.Config, args, nil)
}

// checkDaemon returns an error if the daemon of the DHCP plugin does not run.
func checkDaemon(i netconf.IPAM) error {
	if !i.NeedsDevice() {
		return nil
	}
	conn, err := net.Dial("unix", i.Daemon)
	if err != nil {
		return fmt.Errorf("ipam.type %s: its daemon does not run: %w", i.Type, err)
	}
	return conn.Close()
}

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
