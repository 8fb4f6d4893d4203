// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"

	"mustang/internal/datapath"
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
	host, err := l.addPlace(Host, hostSysctls)
	if err != nil {
		return err
	}
	network := podlink.Network{
		Host:          host,
		Gateways:      Gateways,
		NetfilterCall: l.Options.NetfilterCall,
	}
	if !mode.HostSide() {
		network.Uplink = Uplink
		if err := l.addUplink(host); err != nil {
			return err
		}
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
		ns, err := l.addPlace(pod.name, podSysctls)
		if err != nil {
			return err
		}
		p := podlink.Pod{Namespace: ns, IfName: IfName, HostIfName: HostIfName(pod.name), Addresses: pod.ips}
		if _, err := mode.Create(network, p); err != nil {
			return err
		}
	}
	return l.addServices(ctx, mode)
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
	return nl.AddWire(nl.WireEnd{Namespace: host, Name: Uplink}, nl.WireEnd{Namespace: far, Name: "wire"}, podlink.DefaultMTU)
}

// addServices makes the lab's services in the way that its options say.
func (l *Lab) addServices(ctx context.Context, mode podlink.Mode) error {
	rules := kubeProxy{
		services: Services(),
		pods:     []netip.Prefix{Gateways[0].Masked(), Gateways[1].Masked()},
		// The reply of a pod on the same link would go straight to the client, past
		// the host that has to translate it back.
		masqueradeAll: !mode.HostSide() || (mode.Name() == "bridge" && !l.Options.NetfilterCall),
	}
	switch l.Options.Via {
	case ViaIPTables:
		return rules.iptables(l.namespaces[Host])
	case ViaNFTables:
		return rules.nftables(ctx, l.namespaces[Host])
	case ViaEBPFTC:
		return l.addDatapath()
	}
	return nil
}

// addDatapath opens the lab's own eBPF datapath and makes the pods its
// endpoints.
func (l *Lab) addDatapath() (err error) {
	if err := mountBPF(l.store.bpfMount(l.Options.Name)); err != nil {
		return err
	}
	// The lab's maps are small: it has two pods.
	l.datapath, err = datapath.Open(datapath.Options{
		Root: l.BPFRoot(), MaxServices: 1024, MaxBackends: 4096, MaxConnections: 65536, MaxEndpoints: 256,
	})
	if err != nil {
		return err
	}
	for _, service := range Services() {
		if _, _, err := l.datapath.PutService(service); err != nil {
			return err
		}
	}
	for _, pod := range []string{PodA, PodB} {
		attach := datapath.Attach{Namespace: l.namespaces[pod], IfName: IfName, Host: l.namespaces[Host]}
		if _, _, err := l.datapath.AddEndpoint(attach); err != nil {
			return fmt.Errorf("%s: %w", pod, err)
		}
	}
	return nil
}
