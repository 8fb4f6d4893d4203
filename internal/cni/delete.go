// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"

	"mustang/internal/cni/netconf"
	"mustang/internal/cni/record"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

// Del detaches a pod. Parts that no longer exist are no error: the device, the pod's namespace, the record, the
// addresses. A configuration that has become invalid since ADD is no error either.
func (p *Plugin) Del(ctx context.Context, r Request) error {
	c, err := p.parse(r)
	if err != nil && c.Name == "" {
		return err
	}
	return p.detach(ctx, c, r)
}

// detach deletes an attachment by its record. Without a record, it derives the parts
// from the names and the configuration.
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

// deleteAll deletes what the record lists and, unless it says that ADD finished, what else may exist: it is lost, or
// its last lines are.
func (a *attachment) deleteAll(ctx context.Context) error {
	if a.record.Done {
		return a.delete(ctx)
	}
	recorded := a.record.Boot != ""
	err := a.reconstruct()
	if err != nil && !recorded {
		return errors.Join(err, a.record.Remove())
	}
	if err := errors.Join(err, a.delete(ctx)); err != nil {
		return err
	}
	return a.plugin.sweep(ctx) // the datapath may hold addresses that no record and no lease names
}

// delete deletes what the record lists, and then the record. A part that cannot be
// deleted stays in the record, and the other parts are deleted.
//
// The device is deleted before its programs, which end with it: detaching them from an existing device waits for the
// kernel. The addresses are released last, since another pod may get them at once. Only DHCP needs the device for the
// release; its server keeps released addresses for a while.
func (a *attachment) delete(ctx context.Context) error {
	var err error
	if a.record.IPAM == netconf.DHCPType {
		err = a.releaseAddresses(ctx)
	}
	if err := errors.Join(err, a.deleteHostPorts(ctx), a.deleteLink(), a.deleteServices(ctx)); err != nil {
		return err
	}
	_ = a.syncAddresses() // they are released next
	if err := a.releaseAddresses(ctx); err != nil {
		return err
	}
	return a.record.Remove()
}

// findPod opens the pod's namespace if it exists, at the path of the request or of the
// record. A namespace with another cookie than the recorded one has reused the path.
func (a *attachment) findPod() {
	pod, err := a.request.openPod(cmp.Or(a.request.Netns, a.record.Netns), a.host)
	if err != nil {
		return
	}
	cookie, err := pod.Cookie()
	if err != nil || a.record.Cookie != 0 && cookie != a.record.Cookie {
		_ = pod.Close()
		return
	}
	a.pod = pod
}

// reconstruct fills in a record that is lost or incomplete with all parts that may exist. The configuration may
// be invalid and lack any of its values.
func (a *attachment) reconstruct() error {
	r := a.record
	recorded := r.Boot != ""
	r.Bridge, r.OVSDB = cmp.Or(r.Bridge, a.config.Bridge), cmp.Or(r.OVSDB, a.config.OVSDB)
	r.IPAM = cmp.Or(r.IPAM, a.config.IPAM.Type, netconf.IPAMType)
	if !a.config.Chained {
		r.HostIfName = record.DeviceName(a.config.Name, r.Owner)
	}
	addresses, err := a.reconstructAddresses()
	if err != nil {
		return err
	}
	r.Endpoint, r.Guarded = r.Endpoint || len(addresses) > 0, r.Guarded || len(addresses) > 0
	if len(addresses) == 0 {
		// The pod may have chosen these. No endpoint is deleted by them, but by the device that is gone then.
		addresses = a.deviceAddresses()
	}
	if len(r.Addresses) == 0 {
		r.Addresses = addrsOf(addresses)
	}
	if a.pod != nil {
		if r.Cookie, err = a.pod.Cookie(); err != nil {
			return err
		}
		r.Admitted = r.Admitted || a.config.TranslatesSockets() // another attachment that needs it has a record
	}
	host, err := hostAddrs(a.host)
	if err != nil {
		return err
	}
	if len(r.Ports) == 0 {
		for _, port := range a.config.Runtime.Ports {
			r.Ports = append(r.Ports, portServices(port, host, addresses)...)
		}
	}
	if a.config.Chained {
		return nil
	}
	r.Leased = r.Leased || !recorded || r.IPAM == netconf.IPAMType // another plugin may be missing, which has leased nothing then
	if r.Linked {
		return nil
	}
	_, r.Routers, _ = a.config.HostPrefixes(addresses) // without gateways there are no routes
	a.reconstructLink()
	return nil
}

// reconstructAddresses returns the pod's reserved addresses, or those of the previous result.
func (a *attachment) reconstructAddresses() ([]netconf.PodAddress, error) {
	addresses, err := a.leasedAddresses()
	if err != nil || len(addresses) > 0 {
		return addresses, err
	}
	previous, err := a.config.PreviousResult()
	if err != nil {
		return nil, nil
	}
	for _, prefix := range prefixesOf(previous) {
		addresses = append(addresses, netconf.PodAddress{Prefix: prefix})
	}
	return addresses, nil
}

// deviceAddresses returns the addresses of the pod's device, if its peer is the host device of the attachment.
func (a *attachment) deviceAddresses() (out []netconf.PodAddress) {
	if a.pod == nil || a.record.HostIfName == "" {
		return nil
	}
	peer, err := rtnl.In(a.host).Device(a.record.HostIfName)
	if err != nil {
		return nil
	}
	device, err := rtnl.In(a.pod).Device(a.record.Owner.IfName)
	if err != nil || device.PeerIndex != peer.Index {
		return nil
	}
	for _, prefix := range device.Addrs {
		if prefix.Addr().IsGlobalUnicast() {
			out = append(out, netconf.PodAddress{Prefix: prefix})
		}
	}
	return out
}

// reconstructLink determines the link mode of the attachment, if it has a link.
func (a *attachment) reconstructLink() {
	r := a.record
	network, _ := a.plugin.records().Network(a.config.Name)
	switch {
	case a.config.Link != netconf.LinkAuto && slices.Contains(netconf.Links(), a.config.Link):
		r.Link = a.config.Link
	case network.Link != "":
		r.Link = network.Link
	default:
		device, err := rtnl.In(a.host).Device(r.HostIfName)
		if err != nil {
			return // without its host device, the link is gone too
		}
		r.Link = modeForKind(device.Kind)
	}
	mode, err := podlink.Lookup(r.Link)
	if err != nil {
		return
	}
	// Without a host device of this name, the pod's device may belong to the attachment because of which ADD failed.
	r.Linked = mode.Traits().Needs != podlink.NeedsUplink || a.ownsDevice()
}

// ownsDevice reports whether the pod's device has an address of the attachment.
func (a *attachment) ownsDevice() bool {
	if a.pod == nil {
		return true // only routes can be left
	}
	device, err := rtnl.In(a.pod).Device(a.record.Owner.IfName)
	return err == nil && slices.ContainsFunc(device.Addrs, func(p netip.Prefix) bool {
		return slices.Contains(a.record.Addresses, p.Addr())
	})
}

// modeForKind returns a link mode that can delete host devices of a kind, or "".
func modeForKind(kind string) string {
	if _, err := podlink.Lookup(kind); err == nil {
		return kind
	}
	return ""
}
