// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"mustang/internal/nl"
	"mustang/internal/podlink"
)

// Of VXLAN between two hosts.
const (
	overlayID  = 42
	overlayMTU = podlink.DefaultMTU - podlink.VXLANOverhead
	// tunnelBridge is the bridge of Open vSwitch with the VXLAN port where that is not
	// the pods' own. It is also the name of its internal port.
	tunnelBridge = "ovs0"
	// physicalBridge is the one that has the wire as its port, and the host's
	// addresses, in the user-space datapath, which sends what it wraps by a bridge.
	physicalBridge = "br-phy"
	// The ends of the pair between the pods' bridge and tunnelBridge.
	toTunnel, toPods = "to-ovs0", "to-mst0"
)

// addOverlay gives the host its addresses, and prepares the network of its pod,
// which is one segment with the other host's.
func (l *Lab) addOverlay(e *end) error {
	e.network.MTU = overlayMTU
	e.network.Gateways = within(Ranges[HostA], e.number)
	tunnel := podlink.VXLAN{
		ID: overlayID, Local: both(Underlay, e.number)[0], Remote: both(Underlay, e.far.number)[0],
	}
	if l.Options.Overlay == OverlayVXLAN {
		e.network.VXLAN = tunnel
		return l.addUnderlay(e, e.network.OVSDB)
	}
	below := podlink.Network{Host: e.host, Bridge: tunnelBridge, MTU: overlayMTU, VXLAN: tunnel}
	if err := l.addSwitch(&below, e.place); err != nil {
		return err
	}
	if err := l.addUnderlay(e, below.OVSDB); err != nil {
		return err
	}
	e.network.Trunk = tunnelBridge
	if l.Options.Overlay == OverlayBridgedVeth {
		e.network.Trunk, below.Trunk = toTunnel, toPods
		pair := []nl.WireEnd{{Namespace: e.host, Name: toTunnel}, {Namespace: e.host, Name: toPods}}
		if err := nl.AddWire(pair[0], pair[1], overlayMTU); err != nil {
			return err
		}
		if l.ovsDatapath == podlink.OVSUserSpace {
			if err := e.host.FinishPackets(toTunnel); err != nil {
				return err
			}
		}
	}
	return setUpSwitch(below)
}

// addUnderlay gives a host its addresses, where what carries the tunnel finds
// them.
func (l *Lab) addUnderlay(e *end, ovsdb string) error {
	if ovsdb == "" || l.ovsDatapath != podlink.OVSUserSpace {
		return e.configureUplink()
	}
	return setUpSwitch(podlink.Network{
		Host: e.host, Bridge: physicalBridge, OVSDB: ovsdb, Gateways: e.addresses, Trunk: Uplink,
	})
}

// setUpSwitch makes a bridge of Open vSwitch.
func setUpSwitch(network podlink.Network) error {
	mode, err := podlink.Lookup("ovs-veth")
	if err != nil {
		return err
	}
	return mode.Setup(network)
}

// addRemote tells a VXLAN device of the kernel where the other host's pod is. A
// pod that is not here to be asked, such as a guest, is where all else is.
func (l *Lab) addRemote(e *end) error {
	pod, ok := l.namespaces[e.far.pod]
	if !ok || l.Options.Overlay != OverlayVXLAN || e.network.OVSDB != "" {
		return nil
	}
	device, err := pod.Device(l.devices[e.far.pod])
	if err != nil {
		return err
	}
	return podlink.AddRemote(e.network, device.MAC)
}
