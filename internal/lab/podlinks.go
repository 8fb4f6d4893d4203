// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"

	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/tun"
)

// podSysctls are set to 0 in a pod, for hosts that send redirects nevertheless.
var podSysctls = []string{
	"net/ipv4/conf/all/accept_redirects", "net/ipv4/conf/default/accept_redirects",
	"net/ipv6/conf/all/accept_redirects", "net/ipv6/conf/default/accept_redirects",
}

func buildPodLinks(ctx context.Context, l *Lab) error {
	host, err := l.addHost(Host)
	if err != nil {
		return err
	}
	network := podlink.Network{
		Host: host, Uplink: Uplink, Gateways: Gateways, NetfilterCall: l.Options.NetfilterCall, BigTCP: l.Options.BigTCP,
		BigTCP6: l.Options.BigTCP && rtnl.TakesBigIPv6(),
	}
	pods := []pod{{place: PodA, addresses: PodAIPs}, {place: PodB, addresses: PodBIPs}}
	if err := l.addNetwork(l.mode, network, pods); err != nil {
		return err
	}
	if err := l.joinSockets(); err != nil {
		return err
	}
	if err := l.addServices(ctx); err != nil || l.Options.Policy == "" {
		return err
	}
	return l.WritePolicy(ctx)
}

// addNetwork sets up a network of pods with one link mode, on an uplink or an Open vSwitch if the mode needs one.
func (l *Lab) addNetwork(mode podlink.Mode, network podlink.Network, pods []pod) (err error) {
	needs := mode.Traits().Needs
	if needs == podlink.NeedsUplink {
		err = l.addUplink(network.Host, network.Uplink)
	} else {
		network.Uplink = ""
	}
	if needs == podlink.NeedsOpenVSwitch {
		network.OVSDB, err = l.startSwitch(network.Host)
	}
	if err != nil {
		return err
	}
	if err := mode.Setup(network); err != nil {
		return err
	}
	for _, p := range pods {
		if err := l.addPod(mode, network, p); err != nil {
			return err
		}
	}
	return nil
}

// addUplink gives a host a device that leads to a place without addresses, which all such devices of the lab share.
func (l *Lab) addUplink(host *netns.Namespace, device string) (err error) {
	outside := l.namespaces[Outside]
	if outside == nil {
		if outside, err = l.addNamespace(Outside); err != nil {
			return err
		}
		return joinHosts(host, device, outside, OutsideIfName)
	}
	devices, err := rtnl.In(outside).Devices()
	if err != nil {
		return err
	}
	return joinHosts(host, device, outside, fmt.Sprintf("%s%d", OutsideIfName, len(devices)))
}

func joinHosts(a *netns.Namespace, deviceA string, b *netns.Namespace, deviceB string) error {
	return rtnl.AddVeth(rtnl.VethEnd{Namespace: a, Name: deviceA}, rtnl.VethEnd{Namespace: b, Name: deviceB},
		podlink.DefaultMTU)
}

type pod struct {
	place      string
	hostIfName string // of the host's device; empty means HostIfName
	addresses  []netip.Addr
}

func (l *Lab) addPod(mode podlink.Mode, network podlink.Network, p pod) error {
	p.hostIfName = cmp.Or(p.hostIfName, HostIfName(p.place))
	if l.Options.isGuest(p.place) {
		return l.addGuest(mode, network, p)
	}
	ns, err := l.addNamespace(p.place, podSysctls...)
	if err != nil {
		return err
	}
	link := podlink.Pod{Namespace: ns, IfName: IfName, HostIfName: p.hostIfName, Addresses: p.addresses}
	attachment, err := mode.Create(network, link)
	if err != nil {
		return err
	}
	l.pods[p.place] = attached{attachment.IfName, mode, network, link}
	traits := mode.Traits()
	if traits.Needs != podlink.NeedsRelay {
		return nil
	}
	kind := tun.TAP
	if traits.Layer3 {
		kind = tun.TUN
	}
	device := tun.Options{Kind: kind, Offload: l.Options.Offload}
	ends := [2]tun.RelayEnd{{Path: network.Host.Path(), Options: device}, {Path: ns.Path(), Options: device}}
	ends[0].Name, ends[1].Name = p.hostIfName, IfName
	relay, err := tun.StartRelay(network.Host, ends)
	if err != nil {
		return err
	}
	l.children = append(l.children, relay)
	return nil
}
