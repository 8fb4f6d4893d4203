// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"io/fs"
	"slices"

	"mustang/internal/nl"
)

// ovsBridge notes in what a bridge and its device are not as Setup leaves them,
// and returns the bridge.
func (c *checker) ovsBridge(w ovsWork, network Network) ovsBridge {
	name := network.bridge()
	bridge, err := w.ovs.bridge(name)
	if errors.Is(err, fs.ErrNotExist) {
		c.add("bridge %q is missing in the database of Open vSwitch", name)
	} else if err != nil {
		c.err = err
	}
	if bridge.secure() {
		c.add("bridge %q of Open vSwitch has fail_mode secure, not standalone", name)
	}
	c.device(w.host, wanted{
		name: name, kind: bridge.internalKind(), addrs: network.Gateways, routers: network.Routers,
		settings: append(forwarding(), device(name, network.Gateways)...),
	})
	for _, port := range network.trunkNames() {
		c.ovsPort(w, bridge, port)
	}
	if network.Trunk != "" {
		c.trunk(w.host, network.Trunk, ovsPortSettings(network.Trunk))
	}
	return bridge
}

// ovsPort notes whether the bridge has no working port of that name.
func (c *checker) ovsPort(w ovsWork, bridge ovsBridge, name string) {
	if c.err != nil {
		return
	}
	port, err := w.ovs.port(name)
	if errors.Is(err, fs.ErrNotExist) {
		c.add("port %q is missing in the database of Open vSwitch", name)
		return
	}
	if err != nil {
		c.err = err
		return
	}
	if bridge.Name != "" && !slices.Contains(bridge.Ports, port.UUID.first()) {
		c.add("port %q of Open vSwitch is not on bridge %q", name, bridge.Name)
	}
	device, found, err := w.ovs.device(name)
	if err != nil {
		c.err = err
		return
	}
	if !found {
		c.add("port %q of Open vSwitch has no device of that name", name)
		return
	}
	if problem := device.problem(); problem != nil {
		c.add("port %q of Open vSwitch: %v", name, problem)
	}
}

// finishesPackets notes whether a device hands on packets without a checksum.
func (c *checker) finishesPackets(ns *nl.Namespace, device string) {
	if c.err != nil {
		return
	}
	offloads, err := ns.Offloads(device)
	if err != nil {
		c.err = err
		return
	}
	for _, name := range []string{"tx-checksum", "tso"} {
		if offloads[name] {
			c.add("device %q in %q has offload %s, which a user-space switch can't do", device, ns.Name(), name)
		}
	}
}
