// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"cmp"
	"errors"
	"fmt"
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
	boot, err := ipam.BootID()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range p.records().Networks() {
		if n, ok := p.records().Network(name); ok && n.Boot == boot {
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
			used = append(used, prefixAddrs(other.Gateways)...)
		}
	}
	if created {
		err = mode.Teardown(networkOf(n.Segment, c.host, mode))
	} else {
		var own []netip.Prefix
		for _, g := range n.Gateways {
			if t := mode.Traits(); t.Routed || t.Layer3 { // the device has no neighbours
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

func prefixAddrs(prefixes []netip.Prefix) (addrs []netip.Addr) {
	for _, p := range prefixes {
		addrs = append(addrs, p.Addr())
	}
	return addrs
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
