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
	"mustang/internal/nodenet"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

const maxNames = 10 // of pods in an error

// ensureNetwork sets up the shared objects of a network on the host: the gateways and their device, forwarding and
// masquerading. Without repair, it does nothing if a quick check finds them all.
func (a *attachment) ensureNetwork(ctx context.Context, addresses []netconf.PodAddress, repair bool) (err error) {
	var want record.Network
	want.Boot = ipam.BootID()
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
	forwarded := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} // pods may have routes through the host
	if len(want.Gateways) > 0 {
		forwarded = rtnl.Addrs(want.Gateways)
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
	if err := a.leaveFormer(&want); err != nil {
		return err
	}
	if want.BigTCP { // pods of an earlier configuration would get such packets cut to the MTU
		prefix := record.DevicePrefix(c.Name)
		err := rtnl.In(a.host).AllowBigTCP(want.BigTCP6, func(name string) bool { return strings.HasPrefix(name, prefix) })
		if err != nil {
			return err
		}
	}
	if err := a.setUp(want); err != nil {
		return err
	}
	if c.Masquerade {
		if err := nodenet.Masquerade(a.host, masqueradeName(c.Name), want.Gateways); err != nil {
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
	case decided && (have.BigTCP || have.Parent != ""):
		want.BigTCP, want.BigTCP6 = have.BigTCP, have.BigTCP6
	case a.config.BigTCP == netconf.BigTCPOn:
		want.BigTCP, want.BigTCP6 = true, rtnl.TakesBigIPv6()
	case a.config.BigTCP == netconf.BigTCPAuto && want.Parent != "":
		cuts4, cuts6, err := rtnl.In(a.host).CutsBigTCP(want.Parent)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		want.BigTCP = err == nil && !cuts4
		want.BigTCP6 = want.BigTCP && !cuts6 && rtnl.TakesBigIPv6()
	}
	if want.MTU, err = a.mtu(want.Parent); err != nil {
		return err
	}
	return a.useNetwork(*want)
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
	if _, ok := p.records().Network(network); !ok {
		return nil
	}
	unlock, err := p.records().Lock(network)
	if err != nil {
		return err
	}
	defer unlock()
	have, _ := p.records().Network(network)
	if have.Boot != ipam.BootID() || !slices.ContainsFunc(have.Gateways, func(g netip.Prefix) bool {
		return !slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Masked() == g.Masked() })
	}) {
		return nil
	}
	to := have.Segment
	to.Gateways = subnets
	_, err = p.leave(change{host, network, have, to}, &record.Record{Network: network})
	return err
}

type change struct {
	host    *netns.Namespace
	network string
	from    record.Network
	to      record.Segment
}

// moves reports whether the gateways get another device, or new pods could not reach old ones.
func (c change) moves() bool {
	return place(c.from.Segment) != place(c.to) || !netconf.Together(c.from.Link, c.to.Link)
}

// leave tears down a network before it changes. If the network has pods other than own, all stays, and their names are
// returned with an error. The caller holds the lock of the network.
func (p *Plugin) leave(c change, own *record.Record) (pods []string, err error) {
	unlock, err := p.records().Lock(record.Gateways)
	if err != nil {
		return nil, err
	}
	defer unlock()
	records, err := p.records().List("")
	if err != nil {
		return nil, err
	}
	records = slices.DeleteFunc(records, func(r record.Record) bool {
		return own.Same(r) || r.Link == "" && len(r.Addresses) == 0 // its ADD has not looked for the network
	})
	for _, r := range records {
		if r.Network == c.network {
			pods = append(pods, cmp.Or(r.Pod, r.Owner.String()))
		}
	}
	if len(pods) > 0 {
		slices.Sort(pods)
		names, more := pods[:min(len(pods), maxNames)], ""
		if n := len(pods) - maxNames; n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		return pods, netconf.Invalidf("network %s cannot change from link %s with gateways %v at %s to link %s with "+
			"gateways %v at %s while it has pods: delete first %s%s", c.network, c.from.Link, c.from.Gateways,
			place(c.from.Segment), c.to.Link, c.to.Gateways, place(c.to), strings.Join(names, ", "), more)
	}
	if err := p.tearDown(c, records); err != nil {
		return nil, err
	}
	c.from.Gateways, c.from.Digest = nil, "" // the next ADD sets up the network
	return nil, p.records().SaveNetwork(c.network, c.from)
}

// RemoveNetworks removes from the host what the pods of each network shared: gateways or their device, and
// masquerading. No pod may be attached.
func (p *Plugin) RemoveNetworks(host *netns.Namespace) error {
	var errs []error
	for _, name := range p.records().Networks() {
		if n, ok := p.records().Network(name); ok && n.Boot == ipam.BootID() {
			errs = append(errs, p.tearDown(change{host: host, network: name, from: n}, nil))
		}
	}
	return errors.Join(errs...)
}

// tearDown removes the masquerading of a network, and its gateways' device if the network moves and the plugin created
// the device. Otherwise, or if pods of other networks use the device, it removes only the gateways that the plugin
// added and no such network has. Open vSwitch itself stores the owner of a bridge.
func (p *Plugin) tearDown(c change, pods []record.Record) error {
	n, at := c.from, device(c.from.Segment)
	mode, err := podlink.Lookup(n.Link)
	if err != nil {
		return err
	}
	index, err := indexOf(c.host, at)
	if err != nil {
		return err
	}
	var used []netip.Addr
	created := c.moves() && (n.Created != 0 && n.Created == index || mode.Traits().Needs == podlink.NeedsOpenVSwitch)
	for _, r := range pods {
		if other, _ := p.records().Network(r.Network); r.Network != c.network && device(other.Segment) == at {
			created = false
			used = append(used, rtnl.Addrs(other.Gateways)...)
		}
	}
	if created {
		err = mode.Teardown(networkOf(n.Segment, c.host, mode))
	} else {
		var own []netip.Prefix
		for _, g := range n.Gateways {
			if t := mode.Traits(); t.Routed || t.Layer3 { // the device is without neighbours
				g = netip.PrefixFrom(g.Addr(), g.Addr().BitLen())
			}
			if !slices.Contains(used, g.Addr()) {
				own = append(own, g)
			}
		}
		if index == 0 || len(own) == 0 {
			return removeMasquerade(c.host, c.network)
		}
		// The kernel marks the addresses that a link mode added.
		err = rtnl.In(c.host).RemoveOwnAddresses(at, own)
	}
	return errors.Join(err, removeMasquerade(c.host, c.network))
}

// setUp sets up the device with the gateways, and saves the network. If the plugin is killed before it records that it
// created the device, the device counts as the administrator's.
func (a *attachment) setUp(want record.Network) error {
	records := a.plugin.records()
	unlock, err := records.Share(record.Gateways)
	if err != nil {
		return err
	}
	defer unlock()
	before, err := indexOf(a.host, device(want.Segment))
	if err != nil {
		return err
	}
	if err := a.mode.Setup(a.network); err != nil {
		return err
	}
	switch {
	case a.mode.Traits().Routed:
	case before == 0:
		if want.Created, err = indexOf(a.host, device(want.Segment)); err != nil {
			return err
		}
	default: // a network of this boot that shares the device may have created it
		for _, name := range records.Networks() {
			if n, _ := records.Network(name); n.Boot == want.Boot && device(n.Segment) == device(want.Segment) &&
				n.Created == before {
				want.Created = before
			}
		}
	}
	return records.SaveNetwork(a.config.Name, want)
}

// device returns the host's device with the gateways of a network, or "" for a link mode of another version.
func device(s record.Segment) string {
	mode, err := podlink.Lookup(s.Link)
	if err != nil {
		return ""
	}
	switch traits := mode.Traits(); {
	case traits.Routed:
		return "lo"
	case traits.Bridge:
		return cmp.Or(s.Bridge, traits.HostDevice)
	default:
		return traits.HostDevice
	}
}

func place(s record.Segment) string {
	if onParent(s.Link) {
		return device(s) + " on " + s.Parent
	}
	return device(s)
}

func onParent(link string) bool {
	mode, err := podlink.Lookup(link)
	return err == nil && mode.Traits().Needs == podlink.NeedsUplink
}

func indexOf(host *netns.Namespace, name string) (int, error) {
	found, err := rtnl.In(host).Device(name)
	return found.Index, ignoreMissing(err)
}
