// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"net/netip"

	"mustang/internal/nl"
	"mustang/internal/podlink"
)

// end is one of two hosts on a wire.
type end struct {
	place  string
	number int    // in the wire's prefixes, and in those that both hosts share
	pod    string // its pod; empty for a plain machine
	host   *nl.Namespace
	far    *end
	// addresses are the host's own on the wire, and pods is the range of its pod if
	// that is not on the wire.
	addresses, pods []netip.Prefix
	// mtu is that of the pod's link; 0 means the usual.
	mtu int
	// network is that of the pod, as far as it was set up.
	network podlink.Network
}

// newEnd is a host with the number on the wire that its addresses end in.
func newEnd(place string, number int) *end {
	return &end{place: place, number: number, addresses: within(Underlay, number), pods: Ranges[place]}
}

// buildTwoHosts builds two hosts on a wire, with a pod each, or with a pod on
// host-b alone.
func buildTwoHosts(ctx context.Context, l *Lab) error {
	mode, err := podlink.Lookup(l.Options.Link)
	if err == nil {
		err = mode.Probe()
	}
	if err != nil && !l.Options.hostsOnly() {
		return err
	}
	if err := l.addCgroup(); err != nil {
		return err
	}
	a, b := newEnd(HostA, 1), newEnd(HostB, 2)
	a.far, b.far = b, a
	for _, e := range []*end{a, b} {
		if e.host, err = l.addPlace(e.place, hostSysctls); err != nil {
			return err
		}
	}
	if !l.Options.hostsOnly() {
		b.pod = PodB
		if l.Options.Topology == TopologyTwoHosts {
			a.pod = PodA
		}
	}
	if err := l.addWire(a.host, b.host); err != nil {
		return err
	}
	for _, e := range []*end{a, b} {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := l.addEnd(mode, e); err != nil {
			return err
		}
	}
	for _, e := range []*end{a, b} {
		if err := l.joinEnd(ctx, mode, e); err != nil {
			return err
		}
	}
	if err := l.addPodDatapath(mode); err != nil {
		return err
	}
	if l.ovsDatapath == podlink.OVSUserSpace {
		for _, e := range []*end{a, b} {
			if err := e.host.FinishPackets(Uplink); err != nil {
				return err
			}
		}
	}
	if err := l.awaitPaths(ctx); err != nil {
		return err
	}
	return l.slowWire(a.host, b.host)
}

// addPodDatapath makes pod-b an endpoint of a datapath, if the lab has one.
func (l *Lab) addPodDatapath(mode podlink.Mode) error {
	if l.Options.Datapath != DatapathEBPF {
		return nil
	}
	if err := l.openDatapath(); err != nil {
		return err
	}
	return l.addEndpoints(mode, HostB, PodB)
}

// addEnd gives a host its addresses, and plugs its pod in.
func (l *Lab) addEnd(mode podlink.Mode, e *end) error {
	e.network = podlink.Network{Host: e.host, NetfilterCall: l.Options.NetfilterCall, MTU: e.mtu}
	if err := e.host.Configure(Uplink, nl.DeviceConfig{Up: true}); err != nil {
		return err
	}
	switch {
	case l.Options.Link == LinkHostBridge:
		e.network.Trunk, e.network.Gateways = Uplink, e.addresses
		bridge, err := podlink.Lookup("bridge")
		if err != nil {
			return err
		}
		return bridge.Setup(e.network)
	case e.pod == "":
		return e.configureUplink()
	}
	if mode.Needs() == podlink.NeedsOpenVSwitch {
		if err := l.addSwitch(&e.network, e.place); err != nil {
			return err
		}
	}
	if err := l.addNetwork(mode, e); err != nil {
		return err
	}
	return l.plug(mode, e.network, plugged{name: e.pod, ips: Addresses(l.Options, e.pod)})
}

// configureUplink gives the host its addresses on the wire itself.
func (e *end) configureUplink() error {
	return e.host.Configure(Uplink, nl.DeviceConfig{Addresses: e.addresses, Up: true})
}

// addNetwork sets up the network of a host's pod.
func (l *Lab) addNetwork(mode podlink.Mode, e *end) error {
	switch {
	case l.Options.overlaid():
		if err := l.addOverlay(e); err != nil {
			return err
		}
	case !l.Options.onTheWire():
		e.network.Gateways = within(e.pods, 1)
		if err := e.configureUplink(); err != nil {
			return err
		}
	case withoutNeighbours(mode):
		// Nobody answers ARP for the addresses of such devices, the host's own on one
		// included. So the wire has the host's addresses, and what leads to a pod goes by
		// its host (see joinEnd), as it does between such hosts everywhere.
		e.network.Uplink, e.network.Gateways = Uplink, within(e.pods, 1)
		if err := e.configureUplink(); err != nil {
			return err
		}
	case mode.Needs() == podlink.NeedsUplink:
		e.network.Uplink, e.network.Gateways = Uplink, e.addresses
	default:
		e.network.Trunk, e.network.Gateways = Uplink, e.addresses
	}
	return mode.Setup(e.network)
}

// withoutNeighbours reports whether pods' devices on an uplink are in layer 3.
func withoutNeighbours(mode podlink.Mode) bool {
	return mode.Name() == "ipvlan-l3" || mode.Name() == "ipvlan-l3s"
}

// joinEnd lets a host send to the other one's pod, now that both stand.
func (l *Lab) joinEnd(ctx context.Context, mode podlink.Mode, e *end) error {
	via := both(Underlay, e.far.number)
	switch {
	case l.Options.hostsOnly():
		return nil
	case l.Options.NAT && e.pod != "":
		return masquerade(ctx, e.host, e.pods)
	case l.Options.NAT || e.far.pod == "":
		return nil
	case l.Options.overlaid():
		return l.addRemote(e)
	case mode.Routed():
		for i, prefix := range e.far.pods {
			if err := e.host.AddRoute(prefix, via[i]); err != nil {
				return err
			}
		}
	case withoutNeighbours(mode):
		for i, addr := range Addresses(l.Options, e.far.pod) {
			if err := e.host.AddRoute(netip.PrefixFrom(addr, addr.BitLen()), via[i]); err != nil {
				return err
			}
		}
	}
	return nil
}
