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
	"mustang/internal/rtnl"
)

// reserveAddresses reserves the pod's addresses, or runs the IPAM plugin. syncAddresses waits for the disk.
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
		store, err := a.plugin.addresses(c.Name)
		if err != nil {
			return nil, err
		}
		leases, wait, err := store.Reserve(a.record.Owner, c.IPAM.Sets, c.Runtime.IPs)
		if err != nil {
			return nil, err
		}
		a.waitSynced, a.record.Routes = wait, c.IPAM.Routes
		addresses = podAddresses(leases)
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

// syncAddresses waits until the reserved addresses are on disk, which takes as long as creating a link.
func (a *attachment) syncAddresses() error {
	wait := a.waitSynced
	if a.waitSynced = nil; wait == nil {
		return nil
	}
	return wait()
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
	} else {
		store, err := a.plugin.addresses(a.config.Name)
		if err != nil {
			return err
		}
		if err := store.Release(a.record.Owner); err != nil {
			return err
		}
	}
	a.record.Leased = false
	return nil
}

// leasedAddresses returns the reserved addresses; none with another IPAM plugin.
func (a *attachment) leasedAddresses() ([]netconf.PodAddress, error) {
	if a.record.IPAM != netconf.IPAMType {
		return nil, nil
	}
	store, err := a.plugin.addresses(a.config.Name)
	if err != nil {
		return nil, err
	}
	leases, err := store.Get(a.record.Owner)
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
