// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"cmp"
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

// The host has the gateways of a network's subnets. They change only while the network has no pods: a pod reaches
// nothing without its gateway, and another host may have the former subnet. The device that has them can be the
// administrator's, as a bridge with the node's own address: only what the plugin has created is deleted.

// maxNames is the number of pods that an error names.
const maxNames = 10

// RetireGateways removes from the host the gateways of a network if one of them is in none of some subnets. The error
// names the pods that the network has, if it has any, or is an error of the records or of the link mode.
func (p *Plugin) RetireGateways(host *netns.Namespace, network string, subnets []netip.Prefix) error {
	boot, err := ipam.BootID()
	if err != nil {
		return err
	}
	stale := func() (n record.Network, ok bool) {
		n, _ = p.records().Network(network)
		return n, n.Boot == boot && slices.ContainsFunc(n.Gateways, func(g netip.Prefix) bool {
			return !slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Masked() == g.Masked() })
		})
	}
	if _, ok := stale(); !ok {
		return nil // without waiting
	}
	unlock, err := p.records().LockNetwork(network)
	if err != nil {
		return err
	}
	defer unlock()
	from, ok := stale()
	if !ok {
		return nil
	}
	to := from
	to.Gateways = subnets
	_, err = p.leave(host, network, nil, [2]record.Network{from, to})
	return err
}

// moves reports whether a network that changes gets another device for its gateways, or a link by which its pods do not
// reach those of before.
func moves(from, to record.Network) bool {
	return place(from) != place(to) || !netconf.Together(from.Link, to.Link)
}

// leave removes from the host what goes with a change of a network: gateways, masquerading and, if the network moves,
// the device if the plugin has created it. What other networks with pods have there stays. If the network has pods
// besides own, they keep all, and their names are returned with an error.
//
// The caller holds the lock of the network. ADD records its addresses before it looks whether the network is complete,
// and does that with the lock of the gateways: its pod is found here, or it finds the record that is saved here.
func (p *Plugin) leave(
	host *netns.Namespace, network string, own *record.Record, change [2]record.Network,
) (pods []string, err error) {
	unlock, err := p.records().LockGateways()
	if err != nil {
		return nil, err
	}
	defer unlock()
	records, err := p.records().List("")
	if err != nil {
		return nil, err
	}
	n, to := change[0], change[1]
	shared, used := false, []netip.Addr{}
	for _, r := range records {
		switch other, _ := p.records().Network(r.Network); {
		case r.Link == "" && len(r.Addresses) == 0: // its ADD has not looked for the network
		case r.Network == network && (own == nil || r.Owner != own.Owner):
			pods = append(pods, cmp.Or(r.Pod, r.Owner.String()))
		case r.Network != network && device(other) == device(n):
			shared = true
			for _, g := range other.Gateways {
				used = append(used, g.Addr())
			}
		}
	}
	if len(pods) > 0 {
		return pods, refuse(network, change, pods)
	}
	if moves(n, to) && !shared {
		err = tearDown(host, n)
	} else {
		isUsed := func(g netip.Prefix) bool { return slices.Contains(used, g.Addr()) }
		err = removeGateways(host, n, slices.DeleteFunc(slices.Clone(n.Gateways), isUsed))
	}
	if err := errors.Join(err, removeMasquerade(host, network)); err != nil {
		return nil, err
	}
	n.Gateways, n.Digest = nil, "" // the next ADD sets up the network
	return nil, p.records().SaveNetwork(network, n)
}

// refuse is the error of a change of a network with pods.
func refuse(network string, change [2]record.Network, pods []string) error {
	var states [2]string
	for i, n := range change {
		states[i] = fmt.Sprintf("link %s with gateways %v at %s", n.Link, n.Gateways, place(n))
	}
	slices.Sort(pods)
	more := ""
	if n := len(pods) - maxNames; n > 0 {
		pods, more = pods[:maxNames], fmt.Sprintf(" and %d more", n)
	}
	return netconf.Invalidf("network %s cannot change from %s to %s while it has pods: delete first %s%s",
		network, states[0], states[1], strings.Join(pods, ", "), more)
}

// removeGateways removes gateways of a network from the host. Those that the host had before the network are its
// administrator's, as the address of a bridge by which others reach it. The kernel knows which ones a link mode has
// added.
func removeGateways(host *netns.Namespace, n record.Network, gateways []netip.Prefix) error {
	if len(gateways) == 0 {
		return nil
	}
	mode, err := podlink.Lookup(n.Link)
	if err != nil {
		return err
	}
	gateways = slices.Clone(gateways)
	for i, g := range gateways {
		if t := mode.Traits(); t.Routed || t.Layer3 { // the device has no neighbours
			gateways[i] = netip.PrefixFrom(g.Addr(), g.Addr().BitLen())
		}
	}
	return rtnl.In(host).RemoveOwnAddresses(device(n), gateways)
}

// device returns the host's device that has the gateways of a network, or "" for a link mode of another version.
func device(n record.Network) string {
	mode, err := podlink.Lookup(n.Link)
	if err != nil {
		return ""
	}
	switch traits := mode.Traits(); {
	case traits.Routed:
		return "lo"
	case traits.Bridge:
		return cmp.Or(n.Bridge, traits.HostDevice)
	default:
		return traits.HostDevice
	}
}

// place returns the device that has the gateways of a network, with its parent.
func place(n record.Network) string {
	if onParent(n.Link) {
		return device(n) + " on " + n.Parent
	}
	return device(n)
}

// onParent reports whether the host's device of a link mode is on the parent.
func onParent(link string) bool {
	mode, err := podlink.Lookup(link)
	return err == nil && mode.Traits().Needs == podlink.NeedsUplink
}

// setUpDevice runs Setup, and returns whose the device with the gateways is, as [record.Network.Created] tells it.
// Where the plugin is killed before that is recorded, the device counts as found, and stays.
func (a *attachment) setUpDevice(want record.Network) (created int, err error) {
	before, err := indexOf(a.host, device(want))
	if err != nil {
		return 0, err
	}
	if err := a.mode.Setup(a.network); err != nil || a.mode.Traits().Routed {
		return 0, err
	}
	if before == 0 {
		return indexOf(a.host, device(want))
	}
	// A network of this boot that shares the device may have created it. An index that the device no longer has is that
	// of another one, which somebody has replaced.
	for _, name := range a.plugin.records().Networks() {
		n, ok := a.plugin.records().Network(name)
		if ok && n.Boot == want.Boot && device(n) == device(want) && n.Created == before {
			return before, nil
		}
	}
	return 0, nil
}

// tearDown deletes the device that has a network's gateways if the plugin has created it, or else removes the gateways
// that it has added there. Open vSwitch knows itself whose a bridge is.
func tearDown(host *netns.Namespace, n record.Network) error {
	mode, err := podlink.Lookup(n.Link)
	if err != nil {
		return err
	}
	index, err := indexOf(host, device(n))
	if err != nil {
		return err
	}
	if n.Created != 0 && n.Created == index || mode.Traits().Needs == podlink.NeedsOpenVSwitch {
		return mode.Teardown(networkOf(n, host, mode))
	}
	return removeGateways(host, n, n.Gateways)
}

// indexOf returns the index of a device of the host, or 0 if it is missing.
func indexOf(host *netns.Namespace, name string) (int, error) {
	found, err := rtnl.In(host).Device(name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return found.Index, err
}
