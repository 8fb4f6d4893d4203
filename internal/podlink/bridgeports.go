// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/rtnl"
)

// hostPortNames are the ports through which a bridge reaches other hosts.
func (n Network) hostPortNames() []string {
	var names []string
	if n.VXLAN.enabled() {
		names = append(names, VXLANDevice)
	}
	if n.UplinkPort != "" {
		names = append(names, n.UplinkPort)
	}
	return names
}

// addHostPorts makes the network's uplink port and VXLAN device ports of its bridge.
func (h nsHandle) addHostPorts(bridge netlink.Link, network Network) error {
	if network.VXLAN.enabled() {
		if err := h.addVXLANPort(bridge, network); err != nil {
			return err
		}
	}
	if network.UplinkPort == "" {
		return nil
	}
	port, err := h.link(network.UplinkPort)
	if err != nil {
		return fmt.Errorf("uplink port: %w", err)
	}
	if other := port.Attrs().MasterIndex; other != 0 && other != bridge.Attrs().Index {
		return fmt.Errorf("uplink port %q in %q is a port of another switch: %w", network.UplinkPort, h.ns.Name(), fs.ErrExist)
	}
	if err := h.setMaster(port, bridge); err != nil {
		return err
	}
	return h.setUpHostPort(port)
}

// setMaster makes a device a port of a bridge. It may be down.
func (h nsHandle) setMaster(port, bridge netlink.Link) error {
	name := port.Attrs().Name
	if err := apply(h.ns, portSettings(name)); err != nil {
		return err
	}
	return h.failed(h.LinkSetMaster(port, bridge), name, "make %s a port of %q", bridge.Attrs().Name)
}

// setUpHostPort sets a port to another host up, and returns when it can send. Only veth devices report that.
func (h nsHandle) setUpHostPort(port netlink.Link) error {
	if err := h.setUp(port); err != nil {
		return err
	}
	if kindOf(port) != "veth" {
		return nil
	}
	return h.awaitCarrier(port)
}

// addVXLANPort makes a VXLAN device a port of the bridge, and creates it if it is missing.
func (h nsHandle) addVXLANPort(bridge netlink.Link, network Network) error {
	link, err := h.link(VXLANDevice)
	if errors.Is(err, fs.ErrNotExist) {
		if link, err = h.addVXLAN(network); errors.Is(err, unix.EEXIST) { // a concurrent Setup was faster
			link, err = h.link(VXLANDevice)
		}
	}
	if err != nil {
		return err
	}
	if deviation := network.VXLAN.deviation(link); deviation != "" {
		return fmt.Errorf("device %q in %q %s: %w", VXLANDevice, h.ns.Name(), deviation, fs.ErrExist)
	}
	if err := h.setMTU(link, network.mtu()); err != nil {
		return err
	}
	if err := h.setMaster(link, bridge); err != nil {
		return err
	}
	return h.setUpHostPort(link)
}

// addVXLAN creates the device. Its remote address is the default forwarding entry.
func (h nsHandle) addVXLAN(network Network) (netlink.Link, error) {
	v := network.VXLAN
	device := &netlink.Vxlan{
		LinkAttrs: network.attrs(VXLANDevice), VxlanId: v.ID, SrcAddr: v.Local.AsSlice(), Group: v.Remote.AsSlice(),
		Port: VXLANPort, Learning: false,
	}
	var err error
	if device.HardwareAddr, err = newMAC(); err != nil {
		return nil, err
	}
	err = h.LinkAdd(device)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = &UnsupportedError{Mode: "bridge", Feature: "VXLAN devices", Module: "vxlan", Since: "3.7", Kernel: kernelRelease(), Err: err}
	}
	if err != nil {
		return nil, addError(err, VXLANDevice, "vxlan", h.ns)
	}
	h.undo.add(func() error { return h.remove(VXLANDevice, "vxlan") })
	return h.link(VXLANDevice)
}

// deviation is the difference of a device from the tunnel's, or empty.
func (v VXLAN) deviation(link netlink.Link) string {
	device, ok := link.(*netlink.Vxlan)
	switch {
	case !ok:
		return "is a " + kindOf(link) + ", not a vxlan"
	case device.VxlanId != v.ID:
		return fmt.Sprintf("has VXLAN id %d, not %d", device.VxlanId, v.ID)
	case device.Learning:
		return "has learning enabled"
	}
	for _, end := range []struct {
		have net.IP
		want netip.Addr
	}{{device.SrcAddr, v.Local}, {device.Group, v.Remote}} {
		if have, _ := netip.AddrFromSlice(end.have); have.Unmap() != end.want {
			return fmt.Sprintf("has VXLAN end %v, not %v", have.Unmap(), end.want)
		}
	}
	return ""
}

// hostPort checks a device that leads to other hosts. ok is false if it is missing.
func (c *checker) hostPort(host nsHandle, name string, settings []rtnl.Sysctl) (port rtnl.Device, ok bool) {
	port, err := rtnl.In(host.ns).Device(name)
	if err != nil {
		c.add("port %q is missing in %q", name, host.ns.Name())
		return rtnl.Device{}, false
	}
	if !port.Up {
		c.add("device %q in %q is not up", name, host.ns.Name())
	}
	c.settings(host.ns, settings)
	return port, true
}

// hostPorts checks the ports through which a bridge reaches other hosts.
func (c *checker) hostPorts(host nsHandle, network Network, bridge netlink.Link) {
	for _, name := range network.hostPortNames() {
		port, ok := c.hostPort(host, name, portSettings(name))
		if ok && port.MasterIndex != bridge.Attrs().Index {
			c.add("device %q in %q is not a port of %q", name, host.ns.Name(), bridge.Attrs().Name)
		}
	}
	link, err := host.link(VXLANDevice)
	if err != nil || !network.VXLAN.enabled() {
		return // one that is missing is noted above
	}
	if deviation := network.VXLAN.deviation(link); deviation != "" {
		c.add("device %q in %q %s", VXLANDevice, host.ns.Name(), deviation)
	}
	if have, want := link.Attrs().MTU, network.mtu(); have != want {
		c.add("device %q in %q has MTU %d, not %d", VXLANDevice, host.ns.Name(), have, want)
	}
}
