// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"mustang/internal/datapath"
	"mustang/internal/lab/labfile"
	"mustang/internal/netns"
	"mustang/internal/nodenet"
	"mustang/internal/ovs"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

type host struct {
	place  string
	number int    // of its addresses
	pod    string // empty for a plain machine
	ns     *netns.Namespace
	peer   *host // the host at the other end of the wire; nil without a wire
	// addresses are the host's own on its uplink. podCIDRs are the prefixes of its pod, if the pod lacks an address of
	// the uplink's network.
	addresses, podCIDRs []netip.Prefix
	mtu                 int             // of the pod's link; 0 means 1500
	network             podlink.Network // of the pod, as far as it was set up
}

func newHost(place string, number int) *host {
	return &host{place: place, number: number, addresses: numberedPrefixes(Underlay, number), podCIDRs: Ranges[place]}
}

// buildTwoHosts builds two hosts on a wire: with a pod each, with a pod on host-b alone, or without pods.
func buildTwoHosts(ctx context.Context, l *Lab) (err error) {
	a, b := newHost(HostA, 1), newHost(HostB, 2)
	a.peer, b.peer = b, a
	addHost := l.addHost
	switch {
	case l.Options.Topology == TopologyDocker: // whose bridge needs the netfilter call
		addHost = l.addNamespace
	case l.mode != nil && l.Options.Topology == TopologyTwoHosts:
		a.pod, b.pod = PodA, PodB
	case l.mode != nil:
		b.pod = PodB
	}
	hosts := []*host{a, b}
	for _, h := range hosts {
		if h.ns, err = addHost(h.place, hostSysctls...); err != nil {
			return err
		}
	}
	if err := joinHosts(a.ns, Uplink, b.ns, Uplink); err != nil {
		return err
	}
	for _, h := range hosts {
		if err := l.configureHost(h); err != nil {
			return err
		}
	}
	for _, h := range hosts {
		if err := l.addPeerRoutes(h); err != nil {
			return err
		}
	}
	if err := l.addPodDatapath(ctx); err != nil {
		return err
	}
	if l.Options.asNodes() {
		for _, h := range hosts {
			if err := l.joinNode(ctx, h); err != nil {
				return fmt.Errorf("%s: %w", h.place, err)
			}
		}
	}
	if l.Options.Topology == TopologyTwoHosts && l.Options.hasServices() {
		if err := l.addHostServices(ctx, hosts); err != nil {
			return err
		}
	}
	if l.ovsDatapath == OVSUserSpace {
		for _, h := range hosts {
			if err := rtnl.In(h.ns).DisableOffloads(Uplink); err != nil {
				return err
			}
		}
	}
	if err := l.awaitPaths(ctx); err != nil {
		return err
	}
	return limitWire(labfile.Wire{Device: Uplink, Rate: l.Options.WireRate, Delay: l.Options.WireDelay}, a.ns, b.ns)
}

func (l *Lab) configureHost(h *host) (err error) {
	h.network = podlink.Network{Host: h.ns, NetfilterCall: l.Options.NetfilterCall, BigTCP: l.Options.BigTCP, MTU: h.mtu,
		BigTCP6: l.Options.BigTCP && rtnl.TakesBigIPv6()}
	if err := rtnl.In(h.ns).Configure(Uplink, rtnl.DeviceConfig{Up: true}); err != nil {
		return err
	}
	switch {
	case l.Options.Link == LinkHostBridge:
		h.network.UplinkPort, h.network.Gateways = Uplink, h.addresses
		return bridgeMode(podlink.NeedsNothing).Setup(h.network)
	case h.pod == "":
		return h.configureUplink()
	}
	if l.mode.Traits().Needs == podlink.NeedsOpenVSwitch {
		if h.network.OVSDB, err = l.startSwitch(h.ns); err != nil {
			return err
		}
	}
	if err := l.setUpNetwork(h); err != nil {
		return err
	}
	return l.addPod(l.mode, h.network, pod{place: h.pod, addresses: Addresses(l.Options, h.pod)})
}

func (h *host) configureUplink() error {
	return rtnl.In(h.ns).Configure(Uplink, rtnl.DeviceConfig{Addresses: h.addresses, Up: true})
}

func (l *Lab) setUpNetwork(h *host) error {
	traits := l.mode.Traits()
	if l.Options.asNodes() && l.Options.hasOverlay() {
		h.network.MTU = overlayMTU
	}
	switch {
	case l.Options.hasOverlay() && !traits.Routed:
		if err := l.addOverlay(h); err != nil {
			return err
		}
	case l.Options.podsOnWire() && !traits.Layer3: // the addresses are on a device of the pod network
		h.network.Gateways = h.addresses
		if traits.Needs == podlink.NeedsUplink {
			h.network.Uplink = Uplink
		} else {
			h.network.UplinkPort = Uplink
		}
	default:
		// The kernel answers no ARP for addresses on devices of layer 3. So the uplink has the host's addresses, and a
		// route leads to the pod (see addPeerRoutes).
		if l.Options.podsOnWire() {
			h.network.Uplink = Uplink
		}
		h.network.Gateways = numberedPrefixes(h.podCIDRs, 1)
		if err := h.configureUplink(); err != nil {
			return err
		}
	}
	return l.mode.Setup(h.network)
}

const natTable = "mustang-nat" // masquerades packets of pods that leave their host

func (l *Lab) addPeerRoutes(h *host) error {
	switch {
	case l.mode == nil || l.Options.asNodes():
		return nil
	case l.Options.NAT && h.pod != "":
		return nodenet.Masquerade(h.ns, natTable, h.podCIDRs)
	case l.Options.NAT || h.peer.pod == "":
		return nil
	case l.Options.hasOverlay():
		return l.addRemote(h)
	}
	var destinations []netip.Prefix
	switch traits := l.mode.Traits(); {
	case traits.Routed:
		destinations = h.peer.podCIDRs
	case traits.Layer3:
		destinations = convert(Addresses(l.Options, h.peer.pod), hostPrefix)
	}
	gateways := numbered(Underlay, h.peer.number)
	for i, destination := range destinations {
		if err := rtnl.In(h.ns).AddRoute(destination, gateways[i]); err != nil {
			return err
		}
	}
	return nil
}

func hostPrefix(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }

// awaitPaths waits until host-b and pod-b reach host-a and pod-a. Guests wait for their links themselves.
func (l *Lab) awaitPaths(ctx context.Context) error {
	for _, from := range []string{HostB, PodB} {
		for _, to := range []string{HostA, PodA} {
			if l.namespaces[from] == nil || l.namespaces[to] == nil || l.Options.NAT && to == PodA {
				continue
			}
			if err := l.await(ctx, from, to, Addresses(l.Options, to)); err != nil {
				return err
			}
		}
	}
	return nil
}

// TunnelDevice is the VXLAN device of hosts that route to each other's pods.
const TunnelDevice = nodenet.DeviceName

// asNodes reports whether two hosts reach each other's pods as the nodes of a cluster do. Without an overlay and eBPF,
// plain routes do the same.
func (o Options) asNodes() bool {
	return o.Topology == TopologyTwoHosts && !o.hostsOnly() && o.traits().Routed && !o.NAT &&
		(o.hasOverlay() || o.Datapath == DatapathEBPF)
}

func (l *Lab) joinNode(ctx context.Context, h *host) error {
	o := nodenet.Options{Host: h.ns, Routing: nodenet.Native}
	if l.Options.hasOverlay() {
		o.Routing = nodenet.VXLAN
	}
	others := []nodenet.Node{h.peer.node()}
	if l.Options.Datapath != DatapathEBPF {
		return nodenet.New(o).Apply(h.node(), others)
	}
	d, err := l.nodeDatapath(ctx, h)
	if err != nil {
		return err
	}
	o.Remotes = func(ways []nodenet.Remote) error {
		rows := convert(ways, func(w nodenet.Remote) datapath.Remote { return datapath.Remote(w) })
		_, err := d.Remotes().Apply(ctx, rows)
		return err
	}
	if err := nodenet.New(o).Apply(h.node(), others); err != nil || !l.Options.hasOverlay() {
		return err
	}
	_, err = d.Uplinks().Put(ctx, h.ns, TunnelDevice) // of services with a backend on the other host
	return err
}

func (h *host) node() nodenet.Node {
	return nodenet.Node{Name: h.place, Ranges: h.podCIDRs, Addresses: rtnl.Addrs(h.addresses)}
}

// nodeDatapath returns a host's datapath, with its pod and its uplink.
func (l *Lab) nodeDatapath(ctx context.Context, h *host) (d *datapath.Datapath, err error) {
	if d = l.datapath; h.pod == PodA {
		if d, err = l.openDatapathAt(ctx, filepath.Join(l.store.bpfMount(l.Options.Name), h.place)); err == nil {
			err = l.addEndpoints(ctx, d, h.pod)
		}
	}
	if err == nil {
		_, err = d.Uplinks().Put(ctx, h.ns, Uplink)
	}
	return d, err
}

const (
	vxlanID    = 42
	overlayMTU = podlink.DefaultMTU - podlink.VXLANOverhead
	// tunnelBridge is the Open vSwitch bridge with the VXLAN port, and its internal port, where the pods' bridge has none.
	tunnelBridge = "ovs0"
	// underlayBridge has the wire as a port: user-space Open vSwitch sends encapsulated packets through a bridge.
	underlayBridge = "br-phy"
	// tunnelPort and podPort are the veth pair between the pods' bridge and tunnelBridge.
	tunnelPort, podPort = "to-ovs0", "to-mst0"
)

// addOverlay gives the host its addresses and prepares the network of its pod, which is one segment with the peer's.
func (l *Lab) addOverlay(h *host) (err error) {
	h.network.MTU = overlayMTU
	h.network.Gateways = numberedPrefixes(Ranges[HostA], h.number)
	tunnel := podlink.VXLAN{
		ID: vxlanID, Local: numbered(Underlay, h.number)[0], Remote: numbered(Underlay, h.peer.number)[0],
	}
	if l.Options.Overlay == OverlayVXLAN {
		h.network.VXLAN = tunnel
		return l.addUnderlay(h, h.network.OVSDB)
	}
	below := podlink.Network{Host: h.ns, Bridge: tunnelBridge, MTU: overlayMTU, VXLAN: tunnel}
	if below.OVSDB, err = l.startSwitch(h.ns); err != nil {
		return err
	}
	if err := l.addUnderlay(h, below.OVSDB); err != nil {
		return err
	}
	h.network.UplinkPort = tunnelBridge
	if l.Options.Overlay == OverlayBridgedVeth {
		h.network.UplinkPort, below.UplinkPort = tunnelPort, podPort
		ends := []rtnl.VethEnd{{Namespace: h.ns, Name: tunnelPort}, {Namespace: h.ns, Name: podPort}}
		if err := rtnl.AddVeth(ends[0], ends[1], overlayMTU); err != nil {
			return err
		}
		if l.ovsDatapath == OVSUserSpace {
			if err := rtnl.In(h.ns).DisableOffloads(tunnelPort); err != nil {
				return err
			}
		}
	}
	return bridgeMode(podlink.NeedsOpenVSwitch).Setup(below)
}

// addUnderlay gives the host its addresses: on the uplink, or on a bridge for user-space Open vSwitch.
func (l *Lab) addUnderlay(h *host, ovsdb string) error {
	if ovsdb == "" || l.ovsDatapath != OVSUserSpace {
		return h.configureUplink()
	}
	return bridgeMode(podlink.NeedsOpenVSwitch).Setup(podlink.Network{
		Host: h.ns, Bridge: underlayBridge, OVSDB: ovsdb, Gateways: h.addresses, UplinkPort: Uplink,
	})
}

// bridgeMode returns a link mode with a bridge: of Open vSwitch if it needs that, of Linux with podlink.NeedsNothing.
func bridgeMode(needs podlink.Need) podlink.Mode {
	for _, mode := range podlink.Modes() {
		if traits := mode.Traits(); traits.Bridge && traits.Needs == needs {
			return mode
		}
	}
	return nil
}

// addRemote adds the peer's pod to the forwarding database of a VXLAN device. Packets to unknown destinations go to
// the peer too: guests need this, since they lack a namespace here.
func (l *Lab) addRemote(h *host) error {
	pod, ok := l.namespaces[h.peer.pod]
	if !ok || l.Options.Overlay != OverlayVXLAN || h.network.OVSDB != "" {
		return nil
	}
	device, err := rtnl.In(pod).Device(l.pods[h.peer.pod].device)
	if err != nil {
		return err
	}
	return h.network.AddRemote(device.MAC)
}

// Datapaths of a lab's Open vSwitch.
const (
	OVSKernel    = ovs.Kernel
	OVSUserSpace = ovs.UserSpace
)

// startSwitch returns the database's socket of a host's Open vSwitch. Its two processes run inside the host.
func (l *Lab) startSwitch(host *netns.Namespace) (ovsdb string, err error) {
	if ovsdb, ok := l.switches[host.Name()]; ok {
		return ovsdb, nil
	}
	dir, place := l.store.switchDir(l.Options.Name), strings.TrimPrefix(host.Name(), namespacePrefix(l.Options.Name))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	s, err := ovs.Start(host, filepath.Join(dir, place), "")
	if err != nil {
		return "", err
	}
	l.ovsDatapath, l.switches[host.Name()] = s.Datapath(), s.Socket()
	return s.Socket(), nil
}

// OVSDatapath returns OVSKernel or OVSUserSpace; empty without Open vSwitch.
func (l *Lab) OVSDatapath() string { return l.ovsDatapath }
