// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"net/netip"

	"mustang/internal/nl"
	"mustang/internal/podlink"
)

// Names of devices in the pod-links topology.
const (
	// IfName is the pods' own device.
	IfName = "eth0"
	// Uplink is the host's device to the outside, in link modes that need one.
	Uplink = "uplink"
	// outside is the place at the other end of the uplink.
	outside = "outside"
)

// HostIfName is the name of the host's side of a pod's link.
func HostIfName(pod string) string { return "veth-" + pod }

// hostSysctls are set in a lab's host before it has any device. A host that
// forwards a packet back over the device that it came from would tell the sender
// to go straight to the next hop, past the host's address translation.
var hostSysctls = []string{"net/ipv4/conf/all/send_redirects", "net/ipv4/conf/default/send_redirects"}

// podSysctls are set in a pod, for hosts that send such advice nevertheless.
var podSysctls = []string{
	"net/ipv4/conf/all/accept_redirects", "net/ipv4/conf/default/accept_redirects",
	"net/ipv6/conf/all/accept_redirects", "net/ipv6/conf/default/accept_redirects",
}

// buildPodLinks builds one host with pod-a and pod-b, and services for pod-a.
func buildPodLinks(ctx context.Context, l *Lab) error {
	mode, err := podlink.Lookup(l.Options.Link)
	if err != nil {
		return err
	}
	if err := mode.Probe(); err != nil {
		return err
	}
	if err := l.addCgroup(); err != nil {
		return err
	}
	host, err := l.addPlace(Host, hostSysctls)
	if err != nil {
		return err
	}
	network := podlink.Network{Host: host, Gateways: Gateways, NetfilterCall: l.Options.NetfilterCall}
	if err := l.provide(mode, &network); err != nil {
		return err
	}
	if err := mode.Setup(network); err != nil {
		return err
	}
	for _, pod := range []struct {
		name string
		ips  []netip.Addr
	}{{PodA, PodAIPs}, {PodB, PodBIPs}} {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := l.plug(mode, network, plugged{name: pod.name, ips: pod.ips}); err != nil {
			return err
		}
	}
	return l.addServices(ctx, mode)
}

// provide makes what the link mode needs on the host.
func (l *Lab) provide(mode podlink.Mode, network *podlink.Network) error {
	switch mode.Needs() {
	case podlink.NeedsUplink:
		network.Uplink = Uplink
		return l.addUplink(network.Host)
	case podlink.NeedsOpenVSwitch:
		return l.addSwitch(network, Host)
	default:
		return nil
	}
}

// addPlace creates a place with some sysctls of its namespace switched off.
func (l *Lab) addPlace(name string, off []string) (*nl.Namespace, error) {
	ns, err := l.addNamespace(name)
	if err != nil {
		return nil, err
	}
	for _, key := range off {
		if err := ns.SetSysctl(key, "0"); err != nil {
			return nil, err
		}
	}
	return ns, nil
}

// addUplink gives the host a device that leads out of it.
func (l *Lab) addUplink(host *nl.Namespace) error {
	far, err := l.addNamespace(outside)
	if err != nil {
		return err
	}
	return nl.AddWire(nl.WireEnd{Namespace: host, Name: Uplink}, nl.WireEnd{Namespace: far, Name: OutsideIfName}, podlink.DefaultMTU)
}
