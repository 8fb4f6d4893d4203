// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"mustang/internal/cni/netconf"
	"mustang/internal/cni/record"
	"mustang/internal/ipam"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

// ensureNetwork creates what the pods of a network share on the host. It does so once for
// each boot and configuration, and again if repair is set or a quick check fails.
func (a *attachment) ensureNetwork(ctx context.Context, addresses []netconf.PodAddress, repair bool) (err error) {
	var want record.Network
	if want.Boot, err = ipam.BootID(); err != nil {
		return err
	}
	if want.Gateways, want.Routers, err = a.config.HostPrefixes(addresses); err != nil {
		return err
	}
	want.Digest = digest(a.config, want)
	if !repair {
		if intact, err := a.networkIntact(want); intact || err != nil {
			return err
		}
	}
	if err := a.enableForwarding(want.Gateways); err != nil {
		return err
	}
	unlock, err := a.plugin.records().LockNetwork(a.config.Name)
	if err != nil {
		return err
	}
	defer unlock()
	if err := a.resolve(&want); err != nil {
		return err
	}
	if err := a.useNetwork(want); err != nil {
		return err
	}
	before, err := a.leaveFormer(want)
	if err != nil {
		return err
	}
	want.Gateways = append(want.Gateways, before...)
	if want.BigTCP { // pods of an earlier configuration would get such packets cut to the MTU
		prefix := record.DevicePrefix(a.config.Name)
		err := rtnl.In(a.host).AllowBigTCP(func(name string) bool { return strings.HasPrefix(name, prefix) })
		if err != nil {
			return err
		}
	}
	if err := a.setUp(want); err != nil {
		return err
	}
	if a.config.Masquerade {
		if err := setMasquerade(a.host, a.config.Name, want.Gateways); err != nil {
			return err
		}
	}
	if a.config.TranslatesSockets() {
		return a.enableSockets(ctx)
	}
	return nil
}

// leaveFormer removes from the host what the network has there and no longer has by its configuration: the error is
// that it has pods. Subnets of an IPAM plugin can differ from pod to pod: the gateways of other pods are returned, and
// stay.
func (a *attachment) leaveFormer(want record.Network) (stay []netip.Prefix, err error) {
	have, ok := a.plugin.records().Network(a.config.Name)
	if !ok || have.Boot != want.Boot {
		return nil, nil
	}
	stale := slices.DeleteFunc(slices.Clone(have.Gateways),
		func(g netip.Prefix) bool { return slices.Contains(want.Gateways, g) })
	if len(stale) == 0 && !moves(have, want) || device(have) == "" {
		return nil, nil
	}
	pods, err := a.plugin.leave(a.host, a.config.Name, a.record, [2]record.Network{have, want})
	if len(pods) > 0 && !moves(have, want) && !a.config.IPAM.BuiltIn() {
		return stale, nil
	}
	return nil, err
}

// setUp sets up the device with a network's gateways, and saves the network: who removes those of another network there
// finds both or neither.
func (a *attachment) setUp(want record.Network) error {
	unlock, err := a.plugin.records().KeepGateways()
	if err != nil {
		return err
	}
	defer unlock()
	if want.Created, err = a.setUpDevice(want); err != nil {
		return err
	}
	return a.plugin.records().SaveNetwork(a.config.Name, want)
}

// RemoveNetworks removes from the host what the pods of each network shared: the host's addresses among them or the
// device that has these, and masquerading. What the host had before the networks stays. No pod may be attached. Errors:
// those of the link modes and of nftables.
func (p *Plugin) RemoveNetworks(host *netns.Namespace) error {
	boot, err := ipam.BootID()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range p.records().Networks() {
		n, ok := p.records().Network(name)
		if !ok || n.Boot != boot {
			continue
		}
		errs = append(errs, tearDown(host, n), removeMasquerade(host, name))
	}
	return errors.Join(errs...)
}

// networkOf returns a network as package podlink takes it.
func networkOf(n record.Network, host *netns.Namespace, mode podlink.Mode) podlink.Network {
	network := podlink.Network{
		Host: host, Bridge: n.Bridge, OVSDB: n.OVSDB, MTU: n.MTU, BigTCP: n.BigTCP, Gateways: n.Gateways, Routers: n.Routers,
	}
	if mode.Traits().Needs == podlink.NeedsUplink {
		network.Uplink = n.Parent
	}
	return network
}

// digest covers all values that the shared state depends on.
func digest(c netconf.Config, n record.Network) string {
	return record.Digest(fmt.Sprint(c.Link, "|", c.Parent, "|", c.Bridge, "|", c.OVSDB, "|", c.MTU, "|", c.BigTCP, "|",
		c.Services, "|",
		c.Masquerade, "|", n.Gateways, "|", n.Routers), 16)
}

// networkIntact checks quickly that the host still has the shared state, as it was set up for the same configuration.
// It covers what restarted firewalls and network managers remove, and the socket programs. Where a network is leaving
// its subnets, it waits: the gateway may go until then, and no longer. The error is that of this wait.
func (a *attachment) networkIntact(want record.Network) (bool, error) {
	unlock, err := a.plugin.records().KeepGateways()
	if err != nil {
		return false, err
	}
	defer unlock()
	have, ok := a.plugin.records().Network(a.config.Name)
	if !ok || have.Boot != want.Boot || have.Digest != want.Digest || !a.hasMTU(have) {
		return false, nil
	}
	have.Gateways = want.Gateways // of this pod
	if err := a.useNetwork(have); err != nil {
		return false, err
	}
	intact, err := a.network.QuickCheck()
	return err == nil && intact && (!a.config.Masquerade || checkMasquerade(a.host, a.config.Name,
		a.network.Gateways) == nil) &&
		(!a.config.TranslatesSockets() || a.checkSockets() == nil), nil
}

// resolve fills in link, parent, BIG TCP and MTU where the configuration leaves them to
// the plugin. The link mode stays the same until a reboot.
func (a *attachment) resolve(want *record.Network) (err error) {
	want.Link, want.MTU = a.config.Link, a.config.MTU
	want.Bridge, want.OVSDB = a.config.Bridge, a.config.OVSDB
	have, _ := a.plugin.records().Network(a.config.Name)
	if want.Parent, err = a.parent(); err != nil {
		return err
	}
	if want.Link == netconf.LinkAuto {
		if have.Boot == want.Boot && have.Digest == want.Digest {
			want.Link = have.Link
		} else if want.Link, err = netconf.SelectLink(); err != nil {
			return err
		}
		a.plugin.logf("%s: link auto selected %s", a.config, want.Link)
	}
	if want.BigTCP, err = a.takesBigTCP(have, *want); err != nil {
		return err
	}
	if want.MTU != 0 {
		return nil
	}
	want.MTU = podlink.DefaultMTU
	if want.Parent == "" {
		return nil
	}
	device, err := rtnl.In(a.host).Device(want.Parent)
	if err != nil {
		return netconf.Invalidf("parent: %v", err)
	}
	want.MTU = min(want.MTU, device.MTU)
	return nil
}

// hasMTU reports whether the MTU of a network that has that of its parent still is that.
func (a *attachment) hasMTU(have record.Network) bool {
	if a.config.MTU != 0 || have.Parent == "" {
		return true
	}
	device, err := rtnl.In(a.host).Device(have.Parent)
	return err != nil || have.MTU == min(podlink.DefaultMTU, device.MTU)
}

// takesBigTCP decides about BIG TCP. Most network cards segment packets of up to 64 KiB. What auto decided by the first
// parent holds until a reboot; without a parent nothing says that its card is no such one.
func (a *attachment) takesBigTCP(have, want record.Network) (bool, error) {
	decided := have.Boot == want.Boot && have.Digest == want.Digest && (have.BigTCP || have.Parent != "")
	switch {
	case a.config.BigTCP != netconf.BigTCPAuto:
		return a.config.BigTCP == netconf.BigTCPOn, nil
	case decided:
		return have.BigTCP, nil
	case want.Parent == "":
		return false, nil
	}
	cuts, err := rtnl.In(a.host).CutsBigTCP(want.Parent)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return !cuts && err == nil, err
}
