// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"net/netip"

	"mustang/internal/nl"
)

// TopologyDocker is the name of the topology whose host-a runs Docker.
const TopologyDocker = "docker"

// Places of the docker topology, besides the two hosts.
const (
	// ContainerA is on Docker's bridge; its [ServicePort] is published by host-a as
	// [PublishedPort].
	ContainerA = "container-a"
	// ContainerB is on the same bridge.
	ContainerB = "container-b"
	// ContainerHost has no network of its own, but that of host-a.
	ContainerHost = "container-host"
)

// PublishedPort is where host-a publishes container-a's [ServicePort], for TCP and
// UDP, on all of its addresses.
const PublishedPort = 6201

// dockerBridge is the address of Docker's bridge, and the range of its containers.
const dockerBridge = "172.17.0.1/16"

// dockerContainers are the containers' own addresses, which Docker hands out in
// the order in which they are started.
var dockerContainers = map[string]netip.Addr{
	ContainerA: netip.MustParseAddr("172.17.0.2"),
	ContainerB: netip.MustParseAddr("172.17.0.3"),
}

// dockerAddresses returns where a place of the docker topology is reached.
func dockerAddresses(place string) []netip.Addr {
	if addr, ok := dockerContainers[place]; ok {
		return []netip.Addr{addr}
	}
	switch place {
	case HostA, ContainerHost:
		return both(Underlay, 1)
	case HostB:
		return both(Underlay, 2)
	}
	return nil
}

// checkDocker returns an error that names the first option that the docker
// topology does not have.
func (o Options) checkDocker() error {
	switch {
	case o.Topology != TopologyDocker && o.NoProxy:
		return optionErrorf("no-proxy is a setting of topology docker, not of %s", o.Topology)
	case o.Topology != TopologyDocker:
		return nil
	case o.Link != "bridge":
		return optionErrorf("link %q: topology docker has link bridge", o.Link)
	case o.Datapath != DatapathKernel || o.Via != ViaNone:
		return optionErrorf("datapath %s, via %s: topology docker has the kernel's datapath and no services", o.Datapath, o.Via)
	case o.NetfilterCall:
		return optionErrorf("netfilter call is a setting of our bridges: that of topology docker always has it")
	case o.Guests || o.NAT || o.Overlay != "" && o.Overlay != OverlayNone:
		return optionErrorf("topology docker has no guests, NAT or overlay of ours")
	}
	return CheckWire(o.WireRate, o.WireDelay)
}

// buildDocker builds two hosts that are joined by a wire, with Docker on host-a
// and its containers.
func buildDocker(ctx context.Context, l *Lab) error {
	programs, err := findDocker()
	if err != nil {
		return err
	}
	if err := l.addCgroup(); err != nil {
		return err
	}
	var hosts []*nl.Namespace
	for _, place := range []string{HostA, HostB} {
		ns, err := l.addPlace(place, hostSysctls)
		if err != nil {
			return err
		}
		hosts = append(hosts, ns)
	}
	if err := l.addWire(hosts[0], hosts[1]); err != nil {
		return err
	}
	for i, host := range hosts {
		var addrs []netip.Prefix
		for j, addr := range both(Underlay, i+1) {
			addrs = append(addrs, netip.PrefixFrom(addr, Underlay[j].Bits()))
		}
		if err := host.Configure(Uplink, nl.DeviceConfig{Up: true, Addresses: addrs}); err != nil {
			return err
		}
	}
	if err := l.slowWire(hosts...); err != nil {
		return err
	}
	engine, err := l.startDocker(ctx, programs)
	if err != nil {
		return err
	}
	return l.addContainers(ctx, engine)
}
