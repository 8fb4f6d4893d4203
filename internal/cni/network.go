// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"cmp"
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

const maxNames = 10 // of pods in an error

// ensureNetwork sets up the shared objects of a network on the host: the gateways and their device, forwarding and
// masquerading. Without repair, it does nothing if a quick check finds them all.
func (a *attachment) ensureNetwork(ctx context.Context, addresses []netconf.PodAddress, repair bool) (err error) {
	var want record.Network
	if want.Boot, err = ipam.BootID(); err != nil {
		return err
	}
	if want.Gateways, want.Routers, err = a.config.HostPrefixes(addresses); err != nil {
		return err
	}
	c := a.config
	want.Digest = record.Digest(fmt.Sprint(c.Link, "|", c.Parent, "|", c.Bridge, "|", c.OVSDB, "|", c.MTU, "|", c.BigTCP,
		"|", c.Services, "|", c.Masquerade, "|", want.Gateways, "|", want.Routers), 16)
	if !repair {
		if intact, err := a.networkIntact(want); intact || err != nil {
			return err
		}
	}
	forwarded := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} // any pod may have a route through the host
	if len(want.Gateways) > 0 {
		forwarded = prefixAddrs(want.Gateways)
	}
	if err := EnableForwarding(a.host, forwarded); err != nil {
		return err
	}
	unlock, err := a.plugin.records().Lock(c.Name)
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
	if err := a.leaveFormer(&want); err != nil {
		return err
	}
	if want.BigTCP { // pods of an earlier configuration would get such packets cut to the MTU
		prefix := record.DevicePrefix(c.Name)
		err := rtnl.In(a.host).AllowBigTCP(func(name string) bool { return strings.HasPrefix(name, prefix) })
		if err != nil {
			return err
		}
	}
	if err := a.setUp(want); err != nil {
		return err
	}
	if c.Masquerade {
		if err := setMasquerade(a.host, c.Name, want.Gateways); err != nil {
			return err
		}
	}
	if c.TranslatesSockets() {
		return a.enableSockets(ctx)
	}
	return nil
}

// networkIntact checks quickly what restarted firewalls and network managers remove, and the socket programs. It waits
// while the network leaves its subnets.
func (a *attachment) networkIntact(want record.Network) (bool, error) {
	unlock, err := a.plugin.records().Share(record.Gateways)
	if err != nil {
		return false, err
	}
	defer unlock()
	have, ok := a.plugin.records().Network(a.config.Name)
	if !ok || have.Boot != want.Boot || have.Digest != want.Digest {
		return false, nil
	}
	if mtu, err := a.mtu(have.Parent); err == nil && mtu != have.MTU { // the parent's has changed
		return false, nil
	}
	have.Gateways = want.Gateways // of this pod
	if err := a.useNetwork(have); err != nil {
		return false, err
	}
	intact, err := a.network.QuickCheck()
	return err == nil && intact &&
		(!a.config.Masquerade || checkMasquerade(a.host, a.config.Name, want.Gateways) == nil) &&
		(!a.config.TranslatesSockets() || a.checkSockets() == nil), nil
}

func (a *attachment) mtu(parent string) (int, error) {
	if a.config.MTU != 0 || parent == "" {
		return cmp.Or(a.config.MTU, podlink.DefaultMTU), nil
	}
	device, err := rtnl.In(a.host).Device(parent)
	if err != nil {
		return 0, netconf.Invalidf("parent: %v", err)
	}
	return min(podlink.DefaultMTU, device.MTU), nil
}

// resolve sets what the configuration leaves open. The link mode and BIG TCP stay the same until a reboot.
func (a *attachment) resolve(want *record.Network) (err error) {
	have, _ := a.plugin.records().Network(a.config.Name)
	decided := have.Boot == want.Boot && have.Digest == want.Digest
	want.Link, want.Bridge, want.OVSDB = a.config.Link, a.config.Bridge, a.config.OVSDB
	if want.Parent, err = a.parent(); err != nil {
		return err
	}
	if want.Link == netconf.LinkAuto {
		if decided {
			want.Link = have.Link
		} else if want.Link, err = netconf.SelectLink(); err != nil {
			return err
		}
		a.plugin.logf("%s: link auto selected %s", a.config, want.Link)
	}
	// Most network cards segment packets of up to 64 KiB. Without a parent, the card is unknown.
	switch {
	case a.config.BigTCP != netconf.BigTCPAuto:
		want.BigTCP = a.config.BigTCP == netconf.BigTCPOn
	case decided && (have.BigTCP || have.Parent != ""):
		want.BigTCP = have.BigTCP
	case want.Parent != "":
		cuts, err := rtnl.In(a.host).CutsBigTCP(want.Parent)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		want.BigTCP = err == nil && !cuts
	}
	want.MTU, err = a.mtu(want.Parent)
	return err
}

// leaveFormer removes the objects that the configuration no longer includes. Subnets of an IPAM plugin can differ from
// pod to pod, so gateways of other pods stay.
func (a *attachment) leaveFormer(want *record.Network) error {
	have, ok := a.plugin.records().Network(a.config.Name)
	if !ok || have.Boot != want.Boot || device(have.Segment) == "" {
		return nil
	}
	stale := slices.DeleteFunc(slices.Clone(have.Gateways),
		func(g netip.Prefix) bool { return slices.Contains(want.Gateways, g) })
	change := change{a.host, a.config.Name, have, want.Segment}
	if len(stale) == 0 && !change.moves() {
		return nil
	}
	pods, err := a.plugin.leave(change, a.record)
	if len(pods) > 0 && !change.moves() && !a.config.IPAM.BuiltIn() {
		want.Gateways = append(want.Gateways, stale...)
		return nil
	}
	return err
}

// RetireGateways removes a network's gateways from the host if one of them is in none of the subnets. The error names
// the pods of the network, if it has any.
func (p *Plugin) RetireGateways(host *netns.Namespace, network string, subnets []netip.Prefix) error {
	boot, err := ipam.BootID()
	if err != nil {
		return err
	}
	if _, ok := p.records().Network(network); !ok {
		return nil
	}
	unlock, err := p.records().Lock(network)
	if err != nil {
		return err
	}
	defer unlock()
	have, _ := p.records().Network(network)
	if have.Boot != boot || !slices.ContainsFunc(have.Gateways, func(g netip.Prefix) bool {
		return !slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Masked() == g.Masked() })
	}) {
		return nil
	}
	to := have.Segment
	to.Gateways = subnets
	_, err = p.leave(change{host, network, have, to}, &record.Record{Network: network})
	return err
}
