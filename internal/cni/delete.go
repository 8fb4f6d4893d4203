// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"mustang/internal/cni/netconf"
	"mustang/internal/cni/record"
	"mustang/internal/datapath"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/service"
)

// Del detaches a pod. It ignores missing parts: the device, the pod's namespace, the record, the addresses. It also
// accepts a configuration that has become invalid since ADD.
func (p *Plugin) Del(ctx context.Context, r Request) error {
	c, err := netconf.Parse(r.Config)
	if err != nil && c.Name == "" {
		return err
	}
	return p.detach(ctx, c, r)
}

// detach deletes an attachment by its record or, without one, by the names and the configuration.
func (p *Plugin) detach(ctx context.Context, c netconf.Config, r Request) error {
	a, err := p.open(c, r, true)
	if errors.Is(err, record.ErrTooLong) {
		return nil // ADD has refused it
	}
	if err != nil {
		return err
	}
	defer a.close()
	a.findPod()
	return a.deleteAll(ctx)
}

func (a *attachment) deleteAll(ctx context.Context) error {
	if a.record.Done {
		return a.delete(ctx)
	}
	if a.record.Boot == "" {
		if err := a.reconstruct(); err != nil {
			return errors.Join(err, a.record.Remove())
		}
	}
	if err := a.delete(ctx); err != nil {
		return err
	}
	return a.plugin.sweep(ctx) // the datapath may hold addresses that no record and no lease names
}

// delete deletes the parts in the record, and then the record. A part that cannot be deleted stays in the record. The
// device goes before its programs: detaching them from a device waits for the kernel. The addresses go last, since
// another pod may get them at once. Only DHCP needs the device for the release.
func (a *attachment) delete(ctx context.Context) error {
	var err error
	if a.record.IPAM == netconf.DHCPType {
		err = a.releaseAddresses(ctx)
	}
	if err := errors.Join(err, a.deleteHostPorts(ctx), a.deleteLink(), a.deleteServices(ctx)); err != nil {
		return err
	}
	if r := a.record; r.Leased { // a repeated DEL must not delete the parts of another pod with these addresses
		r.Linked, r.Endpoint, r.Guarded, r.Admitted, r.Ports = false, false, false, false, nil
		_ = a.save() // a full disk
	}
	if err := a.releaseAddresses(ctx); err != nil {
		return err
	}
	return a.record.Remove()
}

// findPod opens the namespace of the pod, if it exists. A namespace with another cookie has reused the path.
func (a *attachment) findPod() {
	pod, err := a.request.openPod(cmp.Or(a.request.Netns, a.record.Netns), a.host)
	if err != nil {
		return
	}
	if cookie, err := pod.Cookie(); err == nil && (a.record.Cookie == 0 || cookie == a.record.Cookie) {
		a.pod = pod
	} else {
		_ = pod.Close()
	}
}

// reconstruct fills in a lost record with all parts that may exist. The configuration may be invalid and incomplete.
func (a *attachment) reconstruct() error {
	r, c := a.record, a.config
	r.IPAM = cmp.Or(c.IPAM.Type, netconf.IPAMType)
	addresses, err := a.leasedAddresses()
	if err != nil {
		return err
	}
	r.Addresses = addrsOf(addresses)
	r.Endpoint, r.Guarded = len(addresses) > 0, len(addresses) > 0
	if a.pod != nil {
		if r.Cookie, err = a.pod.Cookie(); err != nil {
			return err
		}
		r.Admitted = c.TranslatesSockets() // another attachment that needs it has a record
	}
	host, err := hostAddrs(a.host)
	if err != nil {
		return err
	}
	for _, port := range c.Runtime.Ports {
		r.Ports = append(r.Ports, portServices(port, host, r.Addresses)...)
	}
	if c.Chained {
		return nil
	}
	r.Leased, r.HostIfName = true, record.DeviceName(c.Name, r.Owner)
	_, r.Routers, _ = c.HostPrefixes(addresses) // without gateways there were never routes
	r.Bridge, r.OVSDB = c.Bridge, c.OVSDB
	network, _ := a.plugin.records().Network(c.Name)
	device, _ := rtnl.In(a.host).Device(r.HostIfName)
	if r.Link = c.Link; r.Link == netconf.LinkAuto || !slices.Contains(netconf.Links(), r.Link) {
		r.Link = cmp.Or(network.Link, device.Kind)
	}
	mode, err := podlink.Lookup(r.Link)
	if err != nil {
		return nil // without its host device, the link is gone too
	}
	r.Linked = true
	switch mode.Traits().Needs {
	case podlink.NeedsUplink: // the pod's device can be another attachment's, and ends with the namespace
		if a.pod != nil {
			_ = a.pod.Close()
		}
		a.pod = nil
	case podlink.NeedsOpenVSwitch: // ADD has failed without its database
		conn, err := net.Dial("unix", r.OVSDB)
		if r.Linked = err == nil; r.Linked {
			_ = conn.Close()
		}
	}
	return nil
}

// GC deletes all attachments of the network that are not listed as valid and have a record, addresses, or a device.
func (p *Plugin) GC(ctx context.Context, r Request) error {
	c, err := netconf.Parse(r.Config)
	if err != nil {
		return err
	}
	var errs []error
	owners := p.records().Owners(c.Name)
	if c.IPAM.BuiltIn() {
		leases, err := p.addresses(c.Name).Leases()
		errs = append(errs, err)
		for _, lease := range leases {
			if !slices.Contains(owners, lease.Owner) {
				owners = append(owners, lease.Owner)
			}
		}
	}
	for _, o := range owners {
		if !slices.Contains(c.Valid, types.GCAttachment{ContainerID: o.ContainerID, IfName: o.IfName}) {
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

// sweep deletes from the datapath pods without record that no longer exist.
func (p *Plugin) sweep(ctx context.Context) error {
	d, err := datapath.OpenExisting(p.datapathOptions())
	if err != nil {
		return ignoreNoDatapath(err)
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
