// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"

	"mustang/internal/podlink"
)

// Parent is a device of this machine that labs of topology pod-to-network share,
// and what they have of its network. It is not changed.
type Parent struct {
	// Device is its name, in the network namespace of the process that builds the lab.
	Device string `json:"device"`
	// Host and Pod are free IPv4 addresses of its network, with its prefix length:
	// host-b's, and pod-b's unless the lab has NAT.
	Host netip.Prefix `json:"host"`
	Pod  netip.Prefix `json:"pod"`
}

// Check returns an [*OptionError] that names the first field that makes no sense,
// whatever devices there are.
func (p Parent) Check() error {
	if p.Device == "" {
		return optionErrorf("uplink: no device is named")
	}
	for _, addr := range []netip.Prefix{p.Host, p.Pod} {
		switch {
		case !addr.IsValid() || !addr.Addr().Is4():
			return optionErrorf("uplink address %v: want an IPv4 address with its network's prefix length, such as 10.0.0.50/24", addr)
		case !addr.Addr().IsGlobalUnicast() || addr.Bits() == 0 || addr.Bits() > 30 ||
			addr.Addr() == addr.Masked().Addr() || addr.Addr() == broadcast(addr):
			return optionErrorf("uplink address %v: it is not one of a host on a network", addr)
		case addr.Overlaps(networkPods[0]):
			return optionErrorf("uplink address %v: labs have addresses of %v for themselves", addr, networkPods[0])
		}
	}
	switch {
	case p.Host.Masked() != p.Pod.Masked():
		return optionErrorf("uplink addresses %v and %v: they are not of one network", p.Host, p.Pod)
	case p.Host == p.Pod:
		return optionErrorf("uplink address %v: it is there twice, the lab's host and its pod need one each", p.Host)
	}
	return nil
}

// broadcast is the last address of an IPv4 prefix.
func broadcast(prefix netip.Prefix) netip.Addr {
	bytes := prefix.Addr().As4()
	for i := prefix.Bits(); i < 8*len(bytes); i++ {
		bytes[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(bytes)
}

// checkParent refuses a parent where there is none.
func (o Options) checkParent() error {
	if o.Topology != TopologyPodToNetwork && o.Parent != (Parent{}) {
		return optionErrorf("uplink %s: only topology %s is joined to a device of this machine", o.Parent.Device, TopologyPodToNetwork)
	}
	return nil
}

// checkPodToNetwork refuses what a pod on the network of a parent can't have.
func checkPodToNetwork(o Options) error {
	mode, err := podlink.Lookup(o.Link)
	switch {
	case err != nil:
		return optionErrorf("link %s: topology %s has a pod", o.Link, o.Topology)
	case o.WireRate != 0 || o.WireDelay != 0:
		return optionErrorf("wire rate and wire delay: topology %s has no wire", o.Topology)
	case o.overlaid():
		return optionErrorf("overlay %s: only in topology %s", o.Overlay, TopologyTwoHosts)
	case !o.NAT && !mode.Routed() && o.Link != "macvlan" && o.Link != "ipvlan-l2":
		return optionErrorf("link %s: topology %s takes links that route, macvlan and ipvlan-l2, and bridge with nat", o.Link, o.Topology)
	case o.Datapath == DatapathEBPF && (o.Link != "veth" || o.NAT):
		return optionErrorf("datapath ebpf: in topology %s only with link veth, without nat", o.Topology)
	}
	if err := o.checkHosts(); err != nil {
		return err
	}
	return o.Parent.Check()
}
