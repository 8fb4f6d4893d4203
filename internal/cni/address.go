// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

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
	leases, wait, err := store.Begin(a.record.Owner, a.config.IPAM.Sets, a.config.Runtime.IPs)
	if err != nil {
		return nil, err
	}
	a.waitSynced, a.record.Routes = wait, a.config.IPAM.Routes
	return leased(leases), nil
}

// delegate runs ADD of the IPAM plugin.
func (a *attachment) delegate(ctx context.Context) ([]netconf.PodAddress, error) {
	versioned, err := runPlugin(ctx, a.config.IPAM.Type, "ADD", a.request)
	if err != nil {
		return nil, err
	}
	result, err := types100.NewResultFromResult(versioned)
	if err != nil {
		return nil, err
	}
	if a.record.Routes, err = a.delegatedRoutes(result.Routes); err != nil {
		return nil, err
	}
	var out []netconf.PodAddress
	for _, ip := range result.IPs {
		prefix := prefixOf(ip.Address)
		if !prefix.IsValid() {
			return nil, fmt.Errorf("IPAM plugin %s: invalid address %v in the result", a.config.IPAM.Type, ip)
		}
		gateway, _ := netip.AddrFromSlice(ip.Gateway)
		out = append(out, netconf.PodAddress{Prefix: prefix, Gateway: gateway.Unmap()})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("IPAM plugin %s: no address in the result", a.config.IPAM.Type)
	}
	return out, nil
}

// delegatedRoutes converts the routes of the IPAM plugin. It omits default routes if the
// configuration excludes them.
func (a *attachment) delegatedRoutes(routes []*types.Route) (out []podlink.Route, err error) {
	for i, r := range routes {
		if r.Table != nil || r.Scope != nil {
			return nil, fmt.Errorf("IPAM plugin %s: routes[%d]: table and scope are not supported", a.config.IPAM.Type, i)
		}
		via, _ := netip.AddrFromSlice(r.GW)
		route := podlink.Route{Dst: prefixOf(r.Dst), Via: via.Unmap(), MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority}
		if !route.IsDefault() || !a.config.NoDefaultRoute {
			out = append(out, route)
		}
	}
	return out, nil
}

// syncAddresses waits until the reserved addresses are on disk, which takes as long as
// creating a link.
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
		if old := (*types.Error)(nil); errors.As(err, &old) && old.Code == types.ErrIncompatibleCNIVersion {
			return nil // for which it has refused ADD too
		}
		return err
	}
	store, err := a.plugin.addresses(a.config.Name)
	if err != nil {
		return err
	}
	_, err = store.Release(a.record.Owner)
	return err
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
		out = append(out, netconf.PodAddress{Prefix: netip.PrefixFrom(lease.Address, lease.Subnet.Bits()), Gateway: lease.Gateway})
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
