// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"

	"mustang/internal/podlink"
)

// Del unplugs a pod. It is no error if any of it is gone: the device, the pod's
// namespace, the record, the addresses. A configuration that has become wrong since
// ADD does not keep a pod from being deleted.
func (p *Plugin) Del(ctx context.Context, r Request) error {
	c, err := Parse(r.Config)
	if err != nil && c.Name == "" {
		return err
	}
	return p.remove(ctx, c, r)
}

// remove takes an attachment down by its record, or without one by what follows
// from its name.
func (p *Plugin) remove(ctx context.Context, c Config, r Request) error {
	a, err := p.open(c, r.owner(), true)
	if err != nil {
		return err
	}
	defer a.close()
	a.findPod(r.Netns)
	if a.record.Boot != "" {
		return a.detach(ctx)
	}
	if err := a.reconstruct(); err != nil {
		return errors.Join(err, a.record.remove())
	}
	if err := a.detach(ctx); err != nil {
		return err
	}
	return p.sweep() // of whose addresses nothing may be known any more
}

// findPod opens the pod's namespace, if it is there still: at the path that the
// runtime names, or at that of the record. Another that has got the path by now has
// nothing of the pod's.
func (a *attachment) findPod(path string) {
	pod, err := openPod(or(path, a.record.Netns), a.host)
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

// reconstruct fills in a record that is lost: in what may be there, rather too much
// than too little. A configuration that is wrong may lack any of it.
func (a *attachment) reconstruct() error {
	r := a.record
	r.Bridge, r.OVSDB, r.IPAM = a.config.Bridge, a.config.OVSDB, or(a.config.IPAM.Type, IPAMType)
	if !a.config.Chained {
		r.HostIfName = deviceName(a.config.Name, r.Owner)
	}
	given, err := a.lostAddresses()
	if err != nil {
		return err
	}
	r.Addresses, r.Endpoint = addressesOf(given), len(given) > 0
	if a.pod != nil {
		if r.Cookie, err = a.pod.Cookie(); err != nil {
			return err
		}
		r.Admitted = a.config.translatesSockets() // if another attachment needs it, that one has a record
	}
	host, err := a.hostAddresses()
	if err != nil {
		return err
	}
	for _, port := range a.config.Runtime.Ports {
		r.Ports = append(r.Ports, port.services(host, given)...)
	}
	if a.config.Chained {
		return nil
	}
	r.Leased = true
	_, r.Routers, _ = a.config.ends(given) // of no use without gateways
	return a.lostLink()
}

// lostAddresses are those that are reserved for the pod, or else those that the
// runtime was told of, or else those on its device.
func (a *attachment) lostAddresses() ([]address, error) {
	given, err := a.leased()
	if err != nil || len(given) > 0 {
		return given, err
	}
	if a.config.PrevResult == nil {
		return a.deviceAddresses(), nil
	}
	told, err := a.config.previous()
	if err != nil {
		return nil, nil // of no use
	}
	for _, prefix := range ipsOf(told) {
		given = append(given, address{Prefix: prefix})
	}
	return given, nil
}

// deviceAddresses are those of the pod's device, if the host's device that bears the
// attachment's name is its other end.
func (a *attachment) deviceAddresses() (out []address) {
	if a.pod == nil || a.record.HostIfName == "" {
		return nil
	}
	outside, err := a.host.Device(a.record.HostIfName)
	if err != nil {
		return nil
	}
	device, err := a.pod.Device(a.record.Owner.IfName)
	if err != nil || device.PeerIndex != outside.Index {
		return nil
	}
	for _, prefix := range device.Addrs {
		if prefix.Addr().IsGlobalUnicast() {
			out = append(out, address{Prefix: prefix})
		}
	}
	return out
}

// lostLink finds out which link the pod has, if any.
func (a *attachment) lostLink() error {
	r := a.record
	have, _ := readShared(filepath.Join(a.plugin.runDir(a.config.Name), sharedName))
	switch {
	case a.config.Link != LinkAuto && slices.Contains(links(), a.config.Link):
		r.Link = a.config.Link
	case have.Link != "":
		r.Link = have.Link
	default:
		device, err := a.host.Device(r.HostIfName)
		if err != nil {
			return nil // and so is the link
		}
		r.Link = modeOf(device.Kind)
	}
	mode, err := podlink.Lookup(r.Link)
	if err != nil {
		return nil
	}
	// Where no device of the host bears the attachment's name, that of the pod may be
	// another attachment's, because of which ADD was refused.
	r.Linked = mode.Needs() != podlink.NeedsUplink || a.ownsDevice()
	return nil
}

// ownsDevice reports whether the pod's device has an address of the attachment.
func (a *attachment) ownsDevice() bool {
	if a.pod == nil {
		return true // nothing is there to be deleted but routes
	}
	device, err := a.pod.Device(a.record.Owner.IfName)
	return err == nil && slices.ContainsFunc(device.Addrs, func(p netip.Prefix) bool {
		return slices.Contains(a.record.Addresses, p.Addr())
	})
}

// modeOf is a link mode whose Delete removes a host's device of that kind.
func modeOf(kind string) string {
	if _, err := podlink.Lookup(kind); err == nil {
		return kind
	}
	return ""
}
