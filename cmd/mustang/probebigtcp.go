// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net/netip"

	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

// bigTCPDetail describes whether TCP packets of up to 256 KiB cross the pods' links of an available mode. It is empty for
// modes of Open vSwitch, of which none runs.
func bigTCPDetail(mode podlink.Mode) string {
	traits := mode.Traits()
	switch {
	case !traits.BigTCP:
		return ", no BIG TCP"
	case traits.Needs == podlink.NeedsOpenVSwitch:
		return ""
	}
	if takes, err := tryBigTCP(mode); err != nil || !takes {
		return ", no BIG TCP in this kernel"
	}
	return ", BIG TCP"
}

// tryBigTCP attaches a pod in temporary namespaces, and reads the limits of its device.
func tryBigTCP(mode podlink.Mode) (_ bool, err error) {
	host, err := netns.New()
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	pod, err := netns.New()
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, pod.Close()) }()
	network := podlink.Network{Host: host, BigTCP: true, Gateways: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}}
	if mode.Traits().Needs == podlink.NeedsUplink {
		network.Uplink = "uplink"
		ends := [2]rtnl.VethEnd{{Namespace: host, Name: network.Uplink}, {Namespace: host, Name: "wire"}}
		if err := rtnl.AddVeth(ends[0], ends[1], podlink.DefaultMTU); err != nil {
			return false, err
		}
	}
	if err := mode.Setup(network); err != nil {
		return false, err
	}
	link, err := mode.Create(network, podlink.Pod{
		Namespace: pod, IfName: "eth0", HostIfName: "pod0", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")},
	})
	if err != nil {
		return false, err
	}
	return rtnl.In(pod).TakesBigTCP(link.IfName)
}
