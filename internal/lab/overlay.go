// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"path/filepath"
	"strings"

	"mustang/internal/netns"
	"mustang/internal/ovs"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
)

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
