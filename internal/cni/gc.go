// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"slices"
	"strings"

	"mustang/internal/cni/netconf"
	"mustang/internal/cni/record"
	"mustang/internal/datapath"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/service"
)

// GC deletes all attachments of the network that are not listed as valid and have a record, addresses, or a device.
func (p *Plugin) GC(ctx context.Context, r Request) error {
	c, err := netconf.Parse(r.Config)
	if err != nil {
		return err
	}
	var errs []error
	owners := p.records().Owners(c.Name)
	if c.IPAM.BuiltIn() {
		store, err := p.addresses(c.Name)
		if err != nil {
			return err
		}
		leases, err := store.Leases()
		errs = append(errs, err)
		for _, lease := range leases {
			if !slices.Contains(owners, lease.Owner) {
				owners = append(owners, lease.Owner)
			}
		}
	}
	for _, o := range owners {
		if !c.Keeps(o.ContainerID, o.IfName) {
			one := r
			one.ContainerID, one.IfName, one.Netns, one.Pod = o.ContainerID, o.IfName, "", nil
			errs = append(errs, p.detach(ctx, c, one))
		}
	}
	errs = append(errs, p.deleteDevices(c), p.sweep(ctx))
	if c.IPAM.Type != "" && !c.IPAM.BuiltIn() {
		_, err := runPlugin(ctx, c.IPAM.Type, "GC", r)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// deleteDevices deletes host devices without a valid attachment. Device names have only 16 bits for the network. So a
// device that a record of another network names is kept.
func (p *Plugin) deleteDevices(c netconf.Config) error {
	host, err := netns.Current()
	if err != nil {
		return err
	}
	defer host.Close()
	devices, err := rtnl.In(host).Devices()
	if err != nil {
		return err
	}
	// A record exists before its device.
	records, err := p.records().List("")
	if err != nil {
		return err
	}
	var keep []string
	for _, r := range records {
		if r.Network != c.Name {
			keep = append(keep, record.DeviceName(r.Network, r.Owner))
		}
	}
	for _, valid := range c.Valid {
		keep = append(keep, record.DeviceName(c.Name, record.Owner{ContainerID: valid.ContainerID, IfName: valid.IfName}))
	}
	var errs []error
	for _, device := range devices {
		if !strings.HasPrefix(device.Name, record.DevicePrefix(c.Name)) || slices.Contains(keep, device.Name) {
			continue
		}
		if mode, err := podlink.Lookup(device.Kind); err == nil {
			errs = append(errs, mode.Delete(podlink.Network{Host: host, DeleteDevice: p.DeleteDevice},
				podlink.Pod{HostIfName: device.Name}))
		}
	}
	return errors.Join(errs...)
}

// sweep deletes from the datapath the pods that no longer exist and have no record.
func (p *Plugin) sweep(ctx context.Context) error {
	d, err := datapath.OpenExisting(p.datapathOptions())
	if isNoDatapath(err) {
		return nil
	}
	if err != nil {
		return err
	}
	records, err := p.records().List("")
	if err == nil {
		recorded := make(map[uint64]bool)
		for _, r := range records {
			recorded[r.Cookie] = true
		}
		delete(recorded, 0)
		keep := func(cookie uint64) bool { return recorded[cookie] }
		err = errors.Join(d.Endpoints().Sweep(ctx, keep), d.Guards().Sweep(ctx, keep),
			d.Sockets().Sweep(ctx, service.CNI, keep))
	}
	return errors.Join(err, d.Close())
}
