// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"mustang/internal/ipam"
)

// lease gets the pod its addresses: of the node's ranges, or of another plugin.
func (a *attachment) lease(ctx context.Context) ([]address, error) {
	if !a.config.IPAM.builtIn() {
		// A plugin that is not there has reserved nothing, and could not free it either.
		if _, err := invoke.FindInPath(a.config.IPAM.Type, filepath.SplitList(os.Getenv("CNI_PATH"))); err != nil {
			return nil, fmt.Errorf("ipam.type: %w", err)
		}
	}
	a.record.Leased = true
	if err := a.record.save(); err != nil {
		return nil, err
	}
	given, err := a.reserve(ctx)
	if err != nil {
		return nil, err
	}
	a.record.Addresses = addressesOf(given)
	return given, a.record.save()
}

func (a *attachment) reserve(ctx context.Context) ([]address, error) {
	if !a.config.IPAM.builtIn() {
		return a.delegate(ctx)
	}
	store, err := a.plugin.addresses(a.config.Name)
	if err != nil {
		return nil, err
	}
	leases, wait, err := store.Begin(a.record.Owner, a.config.IPAM.Sets, a.config.Runtime.IPs)
	if err != nil {
		return nil, err
	}
	a.onDisk, a.record.Routes = wait, a.config.IPAM.Routes
	return given(leases), nil
}

// delegate asks another plugin for the addresses.
func (a *attachment) delegate(ctx context.Context) ([]address, error) {
	plain, err := invoke.DelegateAdd(ctx, a.config.IPAM.Type, a.config.raw, nil)
	if err != nil {
		return nil, err
	}
	result, err := types100.NewResultFromResult(plain)
	if err != nil {
		return nil, err
	}
	if a.record.Routes, err = a.config.givenRoutes(result.Routes); err != nil {
		return nil, err
	}
	var out []address
	for _, ip := range result.IPs {
		prefix := prefixOf(ip.Address)
		if !prefix.IsValid() {
			return nil, fmt.Errorf("IPAM plugin %s gave no address: %v", a.config.IPAM.Type, ip)
		}
		gateway, _ := netip.AddrFromSlice(ip.Gateway)
		out = append(out, address{prefix, gateway.Unmap()})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("IPAM plugin %s gave no address", a.config.IPAM.Type)
	}
	return out, nil
}

// awaitDisk waits until the addresses are on disk, which takes as long as to make a
// link.
func (a *attachment) awaitDisk() error {
	if a.onDisk == nil {
		return nil
	}
	wait := a.onDisk
	a.onDisk = nil
	return wait()
}

// release gives the addresses back, and returns those that were the pod's.
func (a *attachment) release(ctx context.Context) ([]netip.Addr, error) {
	if a.record.IPAM != IPAMType {
		return nil, invoke.DelegateDel(ctx, a.record.IPAM, a.config.raw, nil)
	}
	store, err := a.plugin.addresses(a.config.Name)
	if err != nil {
		return nil, err
	}
	return store.Release(a.record.Owner)
}

// leased are the addresses that are reserved for the pod; none are known of those
// that another plugin gave.
func (a *attachment) leased() ([]address, error) {
	if a.record.IPAM != IPAMType {
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
	return given(leases), nil
}

// given are leases as addresses.
func given(leases []ipam.Lease) []address {
	var out []address
	for _, lease := range leases {
		out = append(out, address{netip.PrefixFrom(lease.Address, lease.Subnet.Bits()), lease.Gateway})
	}
	return out
}
