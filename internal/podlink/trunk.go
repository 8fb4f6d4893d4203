// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink"

	"mustang/internal/nl"
)

// trunkNames are the ports by which a bridge reaches other hosts.
func (n Network) trunkNames() []string {
	var names []string
	if n.VXLAN.on() {
		names = append(names, VXLANDevice)
	}
	if n.Trunk != "" {
		names = append(names, n.Trunk)
	}
	return names
}

// join makes the network's trunk and VXLAN device ports of its bridge. If it
// fails, it has removed a VXLAN device that it made.
func (s side) join(master netlink.Link, network Network) (err error) {
	if network.VXLAN.on() {
		var created bool
		if created, err = s.joinVXLAN(master, network); err != nil {
			return err
		}
		defer func() {
			if err != nil && created {
				err = errors.Join(err, s.remove(VXLANDevice, "vxlan"))
			}
		}()
	}
	if network.Trunk == "" {
		return nil
	}
	trunk, err := s.link(network.Trunk)
	if err != nil {
		return fmt.Errorf("trunk: %w", err)
	}
	if other := trunk.Attrs().MasterIndex; other != 0 && other != master.Attrs().Index {
		return fmt.Errorf("trunk %q in %q is a port of another switch: %w", network.Trunk, s.ns.Name(), fs.ErrExist)
	}
	if err := s.enslave(trunk, master); err != nil {
		return err
	}
	return s.ready(trunk)
}

// enslave makes a device a port of a bridge. It may be down still.
func (s side) enslave(port, master netlink.Link) error {
	name := port.Attrs().Name
	if err := apply(s.ns, portSettings(name)); err != nil {
		return err
	}
	if err := s.LinkSetMaster(port, master); err != nil {
		return fmt.Errorf("make device %q in %q a port of %q: %w", name, s.ns.Name(), master.Attrs().Name, err)
	}
	return nil
}

// ready sets a trunk up, and returns when it can send. Other kinds than veth
// don't tell.
func (s side) ready(trunk netlink.Link) error {
	if err := s.up(trunk); err != nil {
		return err
	}
	if kindOf(trunk) != "veth" {
		return nil
	}
	return s.awaitCarrier(trunk)
}

// join makes the network's trunk and VXLAN ports of its bridge, as far as they
// are not. Open vSwitch takes away queueing disciplines that the trunk has, but
// none that it gets later.
func (s ovsSwitch) join(host side, network Network) error {
	bridge, err := s.bridge(network.bridge())
	if err != nil {
		return err
	}
	if network.VXLAN.on() {
		if err := s.addMissingPort(bridge, network.VXLAN.ovsPort()); err != nil {
			return err
		}
	}
	if network.Trunk == "" {
		return nil
	}
	trunk, err := host.link(network.Trunk)
	if err != nil {
		return fmt.Errorf("trunk: %w", err)
	}
	if err := apply(host.ns, ovsPortSettings(network.Trunk)); err != nil {
		return err
	}
	if err := host.ready(trunk); err != nil {
		return err
	}
	return s.addMissingPort(bridge, ovsdbRow{"name": network.Trunk})
}

// trunk notes in what a device that leads to other hosts is not as join leaves
// it. ok is false if it is missing.
func (c *checker) trunk(host side, name string, settings []setting) (trunk nl.Device, ok bool) {
	trunk, err := host.ns.Device(name)
	if err != nil {
		c.add("trunk %q is missing in %q", name, host.ns.Name())
		return nl.Device{}, false
	}
	if !trunk.Up {
		c.add("device %q in %q is not up", name, host.ns.Name())
	}
	c.settings(host.ns, settings)
	return trunk, true
}

// trunks notes in what a bridge is not joined to other hosts as join leaves it.
func (c *checker) trunks(host side, network Network, master netlink.Link) {
	for _, name := range network.trunkNames() {
		if c.err != nil {
			return
		}
		trunk, ok := c.trunk(host, name, portSettings(name))
		if ok && trunk.MasterIndex != master.Attrs().Index {
			c.add("device %q in %q is not a port of %q", name, host.ns.Name(), master.Attrs().Name)
		}
	}
	if network.VXLAN.on() {
		c.vxlan(host, network)
	}
}
