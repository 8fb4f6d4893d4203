// SPDX-License-Identifier: Apache-2.0

package cni

import (
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

// reserveAddresses reserves the pod's addresses, or runs the IPAM plugin.
func (a *attachment) reserveAddresses(ctx context.Context) (addresses []netconf.PodAddress, err error) {
	if !a.config.IPAM.BuiltIn() {
		// A missing plugin has reserved nothing, and cannot release it either.
		if _, err := findPlugin(a.config.IPAM.Type, a.request.Path); err != nil {
			return nil, err
		}
	}
	a.record.Leased = true
	if err := a.save(); err != nil {
		return nil, err
	}
	if a.config.IPAM.BuiltIn() {
		addresses, err = a.lease()
	} else {
		addresses, err = a.delegate(ctx)
	}
	if err != nil {
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

// lease reserves addresses of the configured ranges. syncAddresses waits for the disk.
func (a *attachment) lease() ([]netconf.PodAddress, error) {
	store, err := a.plugin.addresses(a.config.Name)
	if err != nil {
		return nil, err
	}
	leases, wait, err := store.Reserve(a.record.Owner, a.config.IPAM.Sets, a.config.Runtime.IPs)
	if err != nil {
		return nil, err
	}
	a.waitSynced, a.record.Routes = wait, a.config.IPAM.Routes
	return leased(leases), nil
}

// delegate runs ADD of the IPAM plugin.
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

// checkMasks refuses a lease with a prefix of less than 8 bits, and one by which the host's own address would get a
// shorter prefix than it has: the host would have a route to the pods for what is elsewhere.
func (a *attachment) checkMasks(addresses []netconf.PodAddress) error {
	have, _ := a.plugin.records().Network(a.config.Name)
	for _, of := range addresses {
		own := slices.DeleteFunc(slices.Clone(have.Gateways), func(p netip.Prefix) bool {
			return p.IsSingleIP() || !of.Contains(p.Addr()) || !slices.Contains(a.config.HostAddresses, p.Addr())
		})
		least := 8
		if len(own) > 0 {
			least = slices.MinFunc(own, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() }).Bits()
		}
		if of.Bits() < least {
			return fmt.Errorf("lease %v: want a prefix of %d bits at least", of.Prefix, least)
		}
	}
	return nil
}

// leaseOf returns the addresses and routes of an IPAM plugin's result, which a DHCP server can have written. Next hops
// count as neighbours; routes without one are on-link if their scope is (RFC 3442). It omits default routes if the
// configuration excludes them.
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
		of := &addresses[i]
		routed := slices.ContainsFunc(c.HostAddresses, func(host netip.Addr) bool { return host.Is4() == of.Addr().Is4() })
		can := func(addr netip.Addr) bool {
			return podlink.IsRouter(addr) && addr.Is4() == of.Addr().Is4() && !own(addr) &&
				(routed || !addr.IsLinkLocalUnicast())
		}
		if can(of.Gateway) {
			continue
		}
		of.Gateway = netip.Addr{}
		// Where the host has its own address, the first default route names the missing gateway.
		if at := slices.IndexFunc(routes, func(r podlink.Route) bool { return r.IsDefault() && can(r.Via) }); at >= 0 &&
			routed {
			of.Gateway = routes[at].Via
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

// syncAddresses waits until the reserved addresses are on disk, which takes as long as creating a link.
func (a *attachment) syncAddresses() error {
	if a.waitSynced == nil {
		return nil
	}
	wait := a.waitSynced
	a.waitSynced = nil
	return wait()
}

// releaseAddresses releases the pod's addresses, if it has any.
func (a *attachment) releaseAddresses(ctx context.Context) error {
	if !a.record.Leased {
		return nil
	}
	if err := a.release(ctx); err != nil {
		return err
	}
	a.record.Leased = false
	return nil
}

func (a *attachment) release(ctx context.Context) error {
	if a.record.IPAM != netconf.IPAMType {
		_, err := runPlugin(ctx, a.record.IPAM, "DEL", a.request)
		if old := (*types.Error)(nil); errors.As(err, &old) && old.Code == types.ErrIncompatibleCNIVersion &&
			len(a.record.Addresses) == 0 {
			return nil // for which it has refused ADD too
		}
		return err
	}
	store, err := a.plugin.addresses(a.config.Name)
	if err != nil {
		return err
	}
	return store.Release(a.record.Owner)
}

// leasedAddresses returns the pod's reserved addresses; none with another IPAM plugin.
func (a *attachment) leasedAddresses() ([]netconf.PodAddress, error) {
	if a.record.IPAM != netconf.IPAMType {
		return nil, nil
	}
	store, err := a.plugin.addresses(a.config.Name)
	if err != nil {
		return nil, err
	}
	leases, err := store.Get(a.record.Owner)
	if err != nil {
		return nil, err
	}
	return leased(leases), nil
}

func leased(leases []ipam.Lease) []netconf.PodAddress {
	var out []netconf.PodAddress
	for _, lease := range leases {
		out = append(out, netconf.PodAddress{Prefix: netip.PrefixFrom(lease.Address, lease.Subnet.Bits()),
			Gateway: lease.Gateway})
	}
	return out
}

// findPlugin returns the path of an IPAM plugin.
func findPlugin(name, path string) (string, error) {
	found, err := invoke.FindInPath(name, filepath.SplitList(path))
	if err != nil {
		return "", fmt.Errorf("ipam.type %q: %w", name, err)
	}
	return found, nil
}

// runPlugin runs a verb of an IPAM plugin with the parameters of a request. The result is
// nil for verbs other than ADD.
func runPlugin(ctx context.Context, name, verb string, r Request) (types.Result, error) {
	path, err := findPlugin(name, r.Path)
	if err != nil {
		return nil, err
	}
	args := &invoke.Args{
		Command: verb, ContainerID: r.ContainerID, NetNS: r.Netns, IfName: r.IfName, PluginArgsStr: r.Args, Path: r.Path,
	}
	if verb == "ADD" {
		return invoke.ExecPluginWithResult(ctx, path, r.Config, args, nil)
	}
	return nil, invoke.ExecPluginWithoutResult(ctx, path, r.Config, args, nil)
}

// checkDaemon returns an error if the daemon of the DHCP plugin does not run. Without it
// no address can be requested or released.
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
