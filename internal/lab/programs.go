// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"slices"

	"mustang/internal/debian"
	"mustang/internal/lab/labfile"
	"mustang/internal/ovs"
	"mustang/internal/podlink"
	"mustang/internal/vm"
)

// CheckInstalled returns a [*debian.MissingError] if a program that the lab needs is not installed. It needs no root.
func (o Options) CheckInstalled() error {
	onPath := func(name, debianPackage string) func() error {
		return func() error {
			_, err := debian.Find(name, debianPackage, "")
			return err
		}
	}
	iptables := o.has(ViaIPTables) || o.has(ViaIPVS)
	for _, need := range []struct {
		needed bool
		check  func() error
	}{
		{o.Topology == TopologyDocker, func() error { _, err := findDocker(); return err }},
		{o.Guests, vm.CheckInstalled},
		{o.needsOpenVSwitch(), ovs.FindPrograms},
		{iptables || o.Policy == ViaIPTables, onPath("iptables", "iptables")},
		{iptables, onPath("ip6tables", "iptables")},
		{o.has(ViaNFTables) || o.Policy == ViaNFTables || o.NAT, onPath("nft", "nftables")},
	} {
		if need.needed {
			if err := need.check(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o Options) has(via string) bool {
	isVia := func(h labfile.Host) bool { return h.Via == via }
	return o.Via == via || o.File != nil && slices.ContainsFunc(o.File.Hosts, isVia)
}

func (o Options) needsOpenVSwitch() bool {
	if o.Overlay == OverlayBridgedVeth || o.Overlay == OverlayBridgedInternal {
		return true
	}
	return slices.ContainsFunc(o.links(), func(link string) bool {
		mode, err := podlink.Lookup(link)
		return err == nil && mode.Traits().Needs == podlink.NeedsOpenVSwitch
	})
}
