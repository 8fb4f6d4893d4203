// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"net/netip"

	"mustang/internal/nl"
	"mustang/internal/podlink"
)

// networkPods is the range of host-b's pod in topology pod-to-network where it has
// no address of the network: one that is meant for benchmarks (RFC 2544, appendix
// C.2.2), so that it is hardly the network's own.
var networkPods = []netip.Prefix{netip.MustParsePrefix("198.18.11.0/24")}

// podToNetworkAddresses returns where a place of topology pod-to-network is reached.
func (o Options) podToNetworkAddresses(place string) []netip.Addr {
	switch {
	case place == HostB:
		return []netip.Addr{o.Parent.Host.Addr()}
	case place != PodB:
		return nil
	case o.NAT:
		return both(networkPods, 11)
	}
	return []netip.Addr{o.Parent.Pod.Addr()}
}

// buildPodToNetwork builds a host with a pod, whose uplink is a macvlan device of
// the parent.
func buildPodToNetwork(ctx context.Context, l *Lab) error {
	mode, err := podlink.Lookup(l.Options.Link)
	if err == nil {
		err = mode.Probe()
	}
	if err != nil {
		return err
	}
	if err := l.addCgroup(); err != nil {
		return err
	}
	e := &end{place: HostB, pod: PodB, addresses: []netip.Prefix{l.Options.Parent.Host}, pods: networkPods}
	if e.host, err = l.addPlace(e.place, hostSysctls); err != nil {
		return err
	}
	if e.mtu, err = l.addMacvlanUplink(e.host); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := l.addEnd(mode, e); err != nil {
		return err
	}
	if l.Options.NAT {
		if err := masquerade(ctx, e.host, e.pods); err != nil {
			return err
		}
	}
	if err := l.addPodDatapath(mode); err != nil {
		return err
	}
	return l.Connect()
}

// addMacvlanUplink gives the host an uplink on the parent, and returns its MTU. The
// uplink answers for its own addresses alone, and not for others of the host, which
// somebody on the network may have too.
func (l *Lab) addMacvlanUplink(host *nl.Namespace) (mtu int, err error) {
	machine, err := nl.CurrentNamespace()
	if err != nil {
		return 0, err
	}
	defer machine.Close()
	parent := nl.WireEnd{Namespace: machine, Name: l.Options.Parent.Device}
	if mtu, err = podlink.AddMacvlan(parent, nl.WireEnd{Namespace: host, Name: Uplink}); err != nil {
		return 0, err
	}
	return mtu, host.SetSysctl("net/ipv4/conf/"+Uplink+"/arp_ignore", "1")
}

// Connect joins a lab of topology pod-to-network, which [Store.Up] has joined, to
// its network after a [Lab.Disconnect], and tells all there whose its addresses are
// now.
func (l *Lab) Connect() error {
	if err := l.switchParent(true); err != nil {
		return err
	}
	mode, err := podlink.Lookup(l.Options.Link)
	if err != nil {
		return err
	}
	p := l.Options.Parent
	err = l.eachDevice(func(ns *nl.Namespace, device nl.Device) error {
		for _, addr := range device.Addrs {
			if addr != p.Host && addr != p.Pod {
				continue
			}
			if err := podlink.Announce(ns, device.Name, addr.Addr()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || l.Options.NAT || !mode.Routed() {
		return err
	}
	host := l.namespaces[HostB]
	if err := host.AddProxy(Uplink, p.Pod.Addr()); err != nil { // which Disconnect has removed
		return err
	}
	return podlink.Announce(host, Uplink, p.Pod.Addr())
}

// Disconnect takes a lab of topology pod-to-network off its network, so that
// another can have its addresses there. Of its routes only those to the network
// itself come back with [Lab.Connect].
func (l *Lab) Disconnect() error { return l.switchParent(false) }

// switchParent sets all devices on the parent up or down. What is on these follows.
func (l *Lab) switchParent(up bool) error {
	return l.eachDevice(func(ns *nl.Namespace, device nl.Device) error {
		if device.Kind != "macvlan" {
			return nil
		}
		return ns.SetUp(device.Name, up)
	})
}

// eachDevice calls a function for all devices of all places.
func (l *Lab) eachDevice(do func(*nl.Namespace, nl.Device) error) error {
	for _, place := range l.Places() {
		devices, err := l.namespaces[place].Devices()
		if err != nil {
			return err
		}
		for _, device := range devices {
			if err := do(l.namespaces[place], device); err != nil {
				return err
			}
		}
	}
	return nil
}
