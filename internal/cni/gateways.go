// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"cmp"
	"net/netip"
	"slices"

	"mustang/internal/cni/record"
	"mustang/internal/ipam"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

// The host has the gateways of a network's subnets. Where its subnets change, pods with addresses of before need their gateway until the last one has
// gone; then its address goes, as another host may have the subnet.

// RetireGateways removes from the host the gateways of a network that lie in none of some subnets, once no pod has an address of theirs: at once, or with the
// last DEL. Errors: those of the records and of the link mode.
func (p *Plugin) RetireGateways(host *netns.Namespace, network string, subnets []netip.Prefix) error {
	boot, err := ipam.BootID()
	if err != nil {
		return err
	}
	stale := func(gateway netip.Prefix) bool {
		return !slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Contains(gateway.Addr()) })
	}
	store := p.records()
	if n, ok := store.Network(network); !ok || n.Boot != boot || !slices.ContainsFunc(slices.Concat(n.Gateways, n.Former), stale) {
		return nil
	}
	unlock, err := store.LockNetwork(network)
	if err != nil {
		return err
	}
	defer unlock()
	n, ok := store.Network(network)
	if !ok {
		return nil
	}
	for _, gateway := range n.Gateways {
		if stale(gateway) {
			n.Former, n.Digest = append(n.Former, gateway), "" // the next ADD sets up what there is to be
		}
	}
	n.Gateways = slices.DeleteFunc(n.Gateways, stale)
	if n.Former, err = p.removeUnused(host, network, n); err != nil {
		return err
	}
	return store.SaveNetwork(network, n)
}

// removeUnused removes the former gateways of a network of whose subnets no pod has an address, and returns the others. Those that
// another network has are that one's. The caller holds the lock of the network.
func (p *Plugin) removeUnused(host *netns.Namespace, network string, n record.Network) (used []netip.Prefix, err error) {
	if len(n.Former) == 0 {
		return nil, nil
	}
	pods, err := p.records().List("")
	if err != nil {
		return n.Former, err
	}
	var addresses []netip.Addr
	for _, r := range pods {
		addresses = append(addresses, r.Addresses...)
	}
	others := p.gatewaysOfOthers(network, n.Boot)
	var gone []netip.Prefix
	for _, gateway := range n.Former {
		switch {
		case slices.Contains(others, gateway.Addr()): // it is theirs by now
		case slices.ContainsFunc(addresses, gateway.Masked().Contains):
			used = append(used, gateway)
		default:
			gone = append(gone, gateway)
		}
	}
	if len(gone) == 0 {
		return used, nil
	}
	mode, err := podlink.Lookup(n.Link)
	if err != nil {
		return n.Former, err
	}
	device, traits := "lo", mode.Traits()
	switch {
	case traits.Bridge:
		device = cmp.Or(n.Bridge, traits.HostDevice)
	case !traits.Routed:
		device = traits.HostDevice
	}
	if traits.Routed || traits.Layer3 { // they have no neighbours there
		for i, gateway := range gone {
			gone[i] = netip.PrefixFrom(gateway.Addr(), gateway.Addr().BitLen())
		}
	}
	if err := rtnl.In(host).RemoveAddresses(device, gone); err != nil {
		return n.Former, err
	}
	return used, nil
}

// gatewaysOfOthers returns the gateways of all networks but one.
func (p *Plugin) gatewaysOfOthers(network, boot string) (addresses []netip.Addr) {
	for _, name := range p.records().Networks() {
		if other, ok := p.records().Network(name); ok && name != network && other.Boot == boot {
			for _, gateway := range other.Gateways {
				addresses = append(addresses, gateway.Addr())
			}
		}
	}
	return addresses
}

// gatewaysOf returns the gateways in whose subnets some addresses are.
func gatewaysOf(gateways []netip.Prefix, addresses []netip.Addr) (of []netip.Prefix) {
	for _, gateway := range gateways {
		if slices.ContainsFunc(addresses, gateway.Masked().Contains) {
			of = append(of, gateway)
		}
	}
	return of
}

// formerGateways returns the gateways that a network had, of which it has none any more. Those of another device went with it, or are its user's.
func formerGateways(have, want record.Network) (former []netip.Prefix) {
	if have.Boot != want.Boot || have.Link != want.Link || have.Bridge != want.Bridge || have.Parent != want.Parent {
		return nil
	}
	for _, gateway := range slices.Concat(have.Gateways, have.Former) {
		if !slices.Contains(want.Gateways, gateway) && !slices.Contains(former, gateway) {
			former = append(former, gateway)
		}
	}
	return former
}
