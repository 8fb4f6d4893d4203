// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"

	"mustang/internal/cni/record"
	"mustang/internal/ipam"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

// The host has the gateways of a network's subnets. Where its subnets change, pods with addresses of before need their gateway until the last one has
// gone; then its address goes, as another host may have the subnet.

// RetireGateways removes from the host the gateways of a network whose subnet is none of some, once no pod has an address of theirs: at once, or with the
// last DEL. Errors: those of the records and of the link mode.
func (p *Plugin) RetireGateways(host *netns.Namespace, network string, subnets []netip.Prefix) error {
	boot, err := ipam.BootID()
	if err != nil {
		return err
	}
	stale := func(gateway netip.Prefix) bool {
		return !slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Masked() == gateway.Masked() })
	}
	store := p.records()
	if n, ok := store.Network(network); !ok || n.Boot != boot || !hasFormer(n) && !slices.ContainsFunc(n.Gateways, stale) {
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
	if err := store.SaveNetwork(network, n); err != nil {
		return err
	}
	if err := p.removeUnused(host, network, &n); err != nil {
		return err
	}
	return store.SaveNetwork(network, n)
}

// hasFormer reports whether a network has former gateways, at any device.
func hasFormer(n record.Network) bool {
	return len(n.Former) > 0 || slices.ContainsFunc(n.Before, func(before record.Network) bool { return len(before.Former) > 0 })
}

// removeUnused removes the former gateways of a network, at all devices, of whose subnets no pod there has an address, and masquerades these subnets no more:
// another host may have them. Those gateways that
// another network has are that one's. The caller holds the lock of the network, and has saved it with the former gateways, and without the digest that
// an ADD in one of their subnets takes for its own: ADD records its addresses before it reads the network. Either it finds
// another digest, waits for the lock and sets up what its pod needs, or its pod is among those that are looked at here. An ADD in another network
// looks for its gateways only before the pods are looked at here, its own among them, or after all is done.
func (p *Plugin) removeUnused(host *netns.Namespace, network string, n *record.Network) error {
	if !hasFormer(*n) {
		return nil
	}
	unlock, err := p.records().LockGateways()
	if err != nil {
		return err
	}
	defer unlock()
	subnets := len(subnetsOf(*n))
	pods, err := p.records().List("")
	if err != nil {
		return err
	}
	at := func(at *record.Network) error {
		at.Former, err = p.removeUnusedAt(host, network, *at, pods)
		return err
	}
	for i := range n.Before {
		if err := at(&n.Before[i]); err != nil {
			return err
		}
	}
	// A device of the plugin's own stays until RemoveNetworks, which finds it here.
	n.Before = slices.DeleteFunc(n.Before, func(before record.Network) bool { return len(before.Former) == 0 && !mayBeCreated(before) })
	if err := at(n); err != nil || !n.Masquerade || len(subnetsOf(*n)) == subnets {
		return err
	}
	return keepMasquerade(host, network, subnetsOf(*n))
}

// removeUnusedAt removes the former gateways at one device, and returns those that pods need.
func (p *Plugin) removeUnusedAt(host *netns.Namespace, network string, n record.Network, pods []record.Record) (used []netip.Prefix, err error) {
	device, single, err := gatewayDevice(n)
	if err != nil {
		return n.Former, err
	}
	addresses := map[string][]netip.Addr{} // of the pods of networks
	for _, r := range pods {
		// A pod that is being added has no link yet.
		if of, _, err := gatewayDevice(record.Network{Link: r.Link, Bridge: r.Bridge}); r.Link == "" || err != nil || of == device {
			addresses[r.Network] = append(addresses[r.Network], r.Addresses...)
		}
	}
	others := p.gatewaysOfOthers(network, device, addresses)
	var gone []netip.Prefix
	for _, gateway := range n.Former {
		now := sameAddress(n.Gateways, gateway)
		switch {
		case now.IsValid() && !single && gateway.Addr().Is6() && now.Bits() < gateway.Bits():
			gone = append(gone, gateway) // a device has an IPv6 address but once, and the larger subnet has all pods
		case slices.ContainsFunc(addresses[network], func(pod netip.Addr) bool { return needs(pod, gateway, now) }):
			used = append(used, gateway)
		case now.IsValid() && single: // it is one address
		case slices.Contains(others, gateway.Addr()): // it is theirs by now
		default:
			gone = append(gone, gateway)
		}
	}
	if err := removeGateways(host, n, gone); err != nil {
		return n.Former, err
	}
	for _, gateway := range gone {
		if now := sameAddress(n.Gateways, gateway); now.IsValid() { // Setup could not add it
			if err := rtnl.In(host).EnsureOwnAddress(device, now); err != nil {
				return n.Former, err
			}
		}
	}
	if len(gone) == 0 {
		return used, nil
	}
	if err := p.dropPorts(context.Background(), host, gone); err != nil {
		return n.Former, err
	}
	return used, nil
}

// sameAddress returns the one of some gateways with the address of another in a subnet of another size, or the zero Prefix.
func sameAddress(gateways []netip.Prefix, other netip.Prefix) netip.Prefix {
	if at := slices.IndexFunc(gateways, func(g netip.Prefix) bool { return g.Addr() == other.Addr() }); at >= 0 {
		return gateways[at]
	}
	return netip.Prefix{}
}

// needs reports whether a pod needs a former gateway. In a subnet that has become smaller, the present gateway may do for it.
func needs(pod netip.Addr, former, now netip.Prefix) bool {
	smaller := now.IsValid() && now.Bits() > former.Bits()
	return former.Masked().Contains(pod) && !(smaller && now.Masked().Contains(pod))
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

// gatewaysOfOthers returns the gateways, present and former, of all networks but one at a device, of pods with some addresses. Another network without pods in a subnet adds its
// gateway anew with the next one.
func (p *Plugin) gatewaysOfOthers(network, device string, addresses map[string][]netip.Addr) (gateways []netip.Addr) {
	for name, pods := range addresses {
		other, ok := p.records().Network(name)
		if !ok || name == network {
			continue
		}
		for _, place := range slices.Concat(other.Before, []record.Network{other}) {
			if at, _, err := gatewayDevice(place); err != nil || at != device {
				continue
			}
			for _, gateway := range gatewaysOf(slices.Concat(place.Gateways, place.Former), pods) {
				gateways = append(gateways, gateway.Addr())
			}
		}
	}
	return gateways
}

// gateways returns the addresses that are gateways of any network, or have been while it has pods of then.
func (p *Plugin) gateways() (all []netip.Addr) {
	for _, name := range p.records().Networks() {
		n, _ := p.records().Network(name)
		for _, gateway := range subnetsOf(n) {
			all = append(all, gateway.Addr())
		}
	}
	return all
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

// gatewaysBefore returns the gateways of a pod with some addresses if they are in former subnets, or nil.
func gatewaysBefore(n record.Network, addresses []netip.Addr) []netip.Prefix {
	before := gatewaysOf(n.Former, addresses)
	if len(before) == 0 {
		return nil
	}
	for _, gateway := range n.Gateways { // of the family that has not changed
		if !slices.ContainsFunc(before, func(b netip.Prefix) bool { return b.Addr().Is4() == gateway.Addr().Is4() }) {
			before = append(before, gateway)
		}
	}
	return before
}

// subnetsOf returns the subnets of a network, with the gateways in them, and those of before. What is in a larger one of now belongs to that.
func subnetsOf(n record.Network) []netip.Prefix {
	larger := func(former netip.Prefix) bool {
		return slices.ContainsFunc(n.Gateways, func(g netip.Prefix) bool { return g.Bits() <= former.Bits() && g.Masked().Contains(former.Addr()) })
	}
	former := slices.Clone(n.Former)
	for _, before := range n.Before {
		former = append(former, before.Former...)
	}
	return slices.Concat(n.Gateways, slices.DeleteFunc(former, larger))
}

// within reports whether all addresses are in the subnets of some gateways.
func within(gateways []netip.Prefix, addresses []netip.Addr) bool {
	return !slices.ContainsFunc(addresses, func(a netip.Addr) bool {
		return !slices.ContainsFunc(gateways, func(g netip.Prefix) bool { return g.Masked().Contains(a) })
	})
}

// formerGateways returns the gateways of subnets that a network of this boot had at its device and has no more, and those that it has left at
// others. Where another address has become the host's in a subnet, the one before may be another machine's: it is its user's.
func formerGateways(have, want record.Network) (former []netip.Prefix, before []record.Network) {
	device, single, err := gatewayDevice(want)
	if err != nil {
		return nil, nil
	}
	for _, place := range slices.Concat(have.Before, []record.Network{have}) {
		gateways := slices.Concat(place.Gateways, place.Former)
		at, alike, err := gatewayDevice(place)
		switch {
		case err != nil || at == device && (alike != single || place.Parent != want.Parent && onParent(want.Link)):
			continue // they went with the device of before, which had this name
		case at != device:
			place.Gateways, place.Former, place.Routers, place.Before, place.Digest = nil, gateways, nil, nil, ""
			before = append(before, place)
			continue
		}
		for _, gateway := range gateways {
			in := func(now netip.Prefix) bool { return now.Masked() == gateway.Masked() }
			if !slices.ContainsFunc(want.Gateways, in) && !slices.Contains(former, gateway) {
				former = append(former, gateway)
			}
		}
	}
	return former, before
}

// onParent reports whether the host's device of a link mode is on the parent.
func onParent(link string) bool {
	mode, err := podlink.Lookup(link)
	return err == nil && mode.Traits().Needs == podlink.NeedsUplink
}
