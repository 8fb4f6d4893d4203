// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"

	"mustang/internal/nl"
	"mustang/internal/podlink"
)

// GC takes down all attachments of the network that are not among the valid ones,
// whatever is left of them: records, addresses, devices.
func (p *Plugin) GC(ctx context.Context, r Request) error {
	c, err := Parse(r.Config)
	if err != nil {
		return err
	}
	owners, err := p.known(c)
	errs := []error{err}
	for _, o := range owners {
		if !c.valid(o) {
			errs = append(errs, p.remove(ctx, c, Request{ContainerID: o.ContainerID, IfName: o.IfName, Config: r.Config}))
		}
	}
	errs = append(errs, p.removeStrays(c), p.sweep())
	if c.IPAM.Type != "" && !c.IPAM.builtIn() {
		errs = append(errs, invoke.DelegateGC(ctx, c.IPAM.Type, c.raw, nil))
	}
	return errors.Join(errs...)
}

// known lists the attachments that have a record, or addresses.
func (p *Plugin) known(c Config) ([]Owner, error) {
	owners, err := p.records(c.Name).owners()
	if err != nil || !c.IPAM.builtIn() {
		return owners, err
	}
	store, err := p.addresses(c.Name)
	if err != nil {
		return owners, err
	}
	leases, err := store.Leases()
	for _, lease := range leases {
		if !slices.Contains(owners, lease.Owner) {
			owners = append(owners, lease.Owner)
		}
	}
	return owners, err
}

// removeStrays deletes devices of the network that are on the host, and whose
// attachment nobody knows any more.
func (p *Plugin) removeStrays(c Config) error {
	host, err := nl.CurrentNamespace()
	if err != nil {
		return err
	}
	defer host.Close()
	devices, err := host.Devices()
	if err != nil {
		return err
	}
	var keep []string
	for _, valid := range c.Valid {
		keep = append(keep, deviceName(c.Name, Owner{ContainerID: valid.ContainerID, IfName: valid.IfName}))
	}
	var errs []error
	for _, device := range devices {
		if !strings.HasPrefix(device.Name, devicePrefix(c.Name)) || slices.Contains(keep, device.Name) {
			continue
		}
		mode, err := podlink.Lookup(modeOf(device.Kind))
		if err != nil {
			continue // it only has such a name
		}
		errs = append(errs, mode.Delete(podlink.Network{Host: host}, podlink.Pod{HostIfName: device.Name}))
	}
	return errors.Join(errs...)
}
