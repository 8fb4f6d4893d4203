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

// The host has the gateways of a network's subnets. They change only while the network has no pods: a pod reaches nothing without its gateway, and another
// host may have the former subnet.

// RetireGateways removes from the host the gateways of a network that are in none of some subnets. The error names the pods that the network has, if it has
// any, or is an error of the records or of the link mode.
func (p *Plugin) RetireGateways(host *netns.Namespace, network string, subnets []netip.Prefix) error {
	boot, err := ipam.BootID()
	if err != nil {
		return err
	}
	store := p.records()
	stale := func() (n record.Network, gateways []netip.Prefix) {
		n, _ = store.Network(network)
		return n, slices.DeleteFunc(slices.Clone(n.Gateways), func(g netip.Prefix) bool {
			return slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Masked() == g.Masked() })
		})
	}
	if n, gateways := stale(); len(gateways) == 0 || n.Boot != boot {
		return nil // without waiting
	}
	unlock, err := store.LockNetwork(network)
	if err != nil {
		return err
	}
	defer unlock()
	n, gateways := stale()
	if len(gateways) == 0 {
		return nil
	}
	next := n
	next.Gateways = subnets
	_, err = p.leave(host, network, nil, change{from: n, to: next, stale: gateways})
	return err
}

// change is that of what the pods of a network share on the host: another device, or gateways that go.
type change struct {
	from, to record.Network
	moves    bool
	stale    []netip.Prefix
}

// changeOf compares two states of a network. ok is false if nothing of the first one has to go.
func changeOf(from, to record.Network) (c change, ok bool) {
	at, err := place(from)
	next, nextErr := place(to)
	if err != nil || nextErr != nil {
		return c, false // a link mode of another version
	}
	c = change{from: from, to: to, stale: from.Gateways}
	c.moves = at != next || !netconf.Together(from.Link, to.Link)
	if !c.moves {
		c.stale = slices.DeleteFunc(slices.Clone(from.Gateways), func(g netip.Prefix) bool { return slices.Contains(to.Gateways, g) })
	}
	return c, c.moves || len(c.stale) > 0
}

// leave removes from the host what goes with a change of a network: gateways, masquerading and, if the network moves, the device if the plugin has created it.
// What other networks with pods have there stays. If the network has pods besides own, they keep all, and their names are returned with an error.
//
// The caller holds the lock of the network. ADD records its addresses before it looks whether the network is complete, and does that with the lock of
// the gateways: its pod is found here, or it finds the record that is saved here.
func (p *Plugin) leave(host *netns.Namespace, network string, own *record.Record, c change) (pods []string, err error) {
	unlock, err := p.records().LockGateways()
	if err != nil {
		return nil, err
	}
	defer unlock()
	records, err := p.records().List("")
	if err != nil {
		return nil, err
	}
	device, _, err := gatewayDevice(c.from)
	if err != nil {
		return nil, err
	}
	others := map[string]bool{}
	for _, r := range records {
		switch {
		case r.Link == "" && len(r.Addresses) == 0: // its ADD has not looked for the network
		case r.Network != network:
			others[r.Network] = true
		case own == nil || r.Owner != own.Owner:
			pods = append(pods, cmp.Or(r.Pod, r.Owner.String()))
		}
	}
	if len(pods) > 0 {
		return pods, c.refused(network, pods)
	}
	shared, used := p.gatewaysOfOthers(device, others)
	if c.moves && !shared {
		err = tearDown(host, c.from)
	} else {
		err = removeGateways(host, c.from, slices.DeleteFunc(slices.Clone(c.stale), func(g netip.Prefix) bool { return slices.Contains(used, g.Addr()) }))
	}
	if err := errors.Join(err, removeMasquerade(host, network)); err != nil {
		return nil, err
	}
	n := c.from
	n.Gateways = slices.DeleteFunc(slices.Clone(n.Gateways), func(g netip.Prefix) bool { return slices.Contains(c.stale, g) })
	n.Digest = "" // the next ADD sets up the rest
	return nil, p.records().SaveNetwork(network, n)
}

// maxNames is the number of pods that an error names.
const maxNames = 10

// refused is the error of a change of a network with pods.
func (c change) refused(network string, pods []string) error {
	slices.Sort(pods)
	more := ""
	if n := len(pods) - maxNames; n > 0 {
		pods, more = pods[:maxNames], fmt.Sprintf(" and %d more", n)
	}
	return netconf.Invalidf("network %s cannot change %v while it has pods: delete first %s%s", network, c, strings.Join(pods, ", "), more)
}

func (c change) String() string {
	from, _ := place(c.from)
	to, _ := place(c.to)
	return fmt.Sprintf("from link %s with gateways %v at %s to link %s with gateways %v at %s",
		c.from.Link, c.from.Gateways, from, c.to.Link, c.to.Gateways, to)
}

// place returns the device that has the gateways of a network, with its parent.
func place(n record.Network) (string, error) {
	device, _, err := gatewayDevice(n)
	if onParent(n.Link) {
		device += " on " + n.Parent
	}
	return device, err
}

// gatewaysOfOthers returns whether some networks have their gateways at a device, and which.
func (p *Plugin) gatewaysOfOthers(device string, networks map[string]bool) (shared bool, gateways []netip.Addr) {
	for name := range networks {
		other, ok := p.records().Network(name)
		if at, _, err := gatewayDevice(other); !ok || err != nil || at != device {
			continue
		}
		shared = true
		for _, g := range other.Gateways {
			gateways = append(gateways, g.Addr())
		}
	}
	return shared, gateways
}

// removeGateways removes gateways of a network from the host. Those that the host had before the network are its administrator's, as the address
// of a bridge by which others reach it. The kernel knows which ones a link mode has added, but for those of earlier versions: there a
// device of the plugin's own name tells, and what is elsewhere stays until a reboot.
func removeGateways(host *netns.Namespace, n record.Network, gateways []netip.Prefix) error {
	if len(gateways) == 0 {
		return nil
	}
	device, single, err := gatewayDevice(n)
	if err != nil {
		return err
	}
	if single {
		gateways = slices.Clone(gateways)
		for i, gateway := range gateways {
			gateways[i] = netip.PrefixFrom(gateway.Addr(), gateway.Addr().BitLen())
		}
	}
	if n.Created == 0 && strings.HasPrefix(device, devicePrefix) {
		return rtnl.In(host).RemoveAddresses(device, gateways)
	}
	return rtnl.In(host).RemoveOwnAddresses(device, gateways)
}

// gatewayDevice returns the host's device that has the gateways of a network, and whether they are single addresses there, as it has no neighbours.
func gatewayDevice(n record.Network) (device string, single bool, err error) {
	mode, err := podlink.Lookup(n.Link)
	if err != nil {
		return "", false, err
	}
	traits := mode.Traits()
	switch {
	case traits.Routed:
		device = "lo"
	case traits.Bridge:
		device = cmp.Or(n.Bridge, traits.HostDevice)
	default:
		device = traits.HostDevice
	}
	return device, traits.Routed || traits.Layer3, nil
}

// onParent reports whether the host's device of a link mode is on the parent.
func onParent(link string) bool {
	mode, err := podlink.Lookup(link)
	return err == nil && mode.Traits().Needs == podlink.NeedsUplink
}
