// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// macvlan shares an uplink: each pod has a device with its own MAC on it, and so
// has the host, which can't reach them otherwise.
type macvlan struct{}

func (macvlan) sealed() {}

// Name implements Mode.
func (macvlan) Name() string { return "macvlan" }

// HostSide is false: the uplink is shared.
func (macvlan) HostSide() bool { return false }

// Needs implements Mode.
func (macvlan) Needs() Need { return NeedsUplink }

// Probe creates a veth pair, and a macvlan device on it.
func (macvlan) Probe() error {
	return probe("macvlan", needsVeth(), requirement{
		feature: "macvlan devices", module: "macvlan", since: "2.6.33",
		try: func(s side) error {
			parent, err := s.link(probeName)
			if err != nil {
				return err
			}
			device := &netlink.Macvlan{LinkAttrs: attrs("probe2"), Mode: netlink.MACVLAN_MODE_BRIDGE}
			device.ParentIndex = parent.Attrs().Index
			return s.LinkAdd(device)
		},
	})
}

// Setup makes the host's own device on the uplink, with the gateways' addresses,
// and switches forwarding on.
func (m macvlan) Setup(network Network) (err error) {
	defer wrap(&err, "set up macvlan network")
	if err := m.validateNetwork(network); err != nil {
		return err
	}
	host, err := openSide(network.Host)
	if err != nil {
		return err
	}
	defer host.Close()
	uplink, err := m.uplink(host, network)
	if err != nil {
		return err
	}
	link, created, err := m.ensure(host, uplink, network)
	if err != nil {
		return err
	}
	var undo func() error
	defer func() {
		switch {
		case err == nil:
		case created:
			err = errors.Join(err, host.remove(HostSlave, "macvlan"))
		case undo != nil:
			err = errors.Join(err, undo())
		}
	}()
	if err := apply(host.ns, device(HostSlave, network.Gateways)); err != nil {
		return err
	}
	if err := host.up(link); err != nil {
		return err
	}
	if undo, err = host.addGateways(link, network.Gateways); err != nil {
		return err
	}
	if err := host.awaitCarrier(link); err != nil {
		return err
	}
	return apply(host.ns, forwarding())
}

// ensure returns the host's own device, newly created if need be.
func (m macvlan) ensure(host side, uplink netlink.Link, network Network) (_ netlink.Link, created bool, err error) {
	link, err := host.link(HostSlave)
	if err == nil {
		have, ok := link.(*netlink.Macvlan)
		if !ok || have.Mode != netlink.MACVLAN_MODE_BRIDGE || have.ParentIndex != uplink.Attrs().Index {
			return nil, false, fmt.Errorf("device %q in %q is not a macvlan device in bridge mode on %q: %w",
				HostSlave, host.ns.Name(), network.Uplink, fs.ErrExist)
		}
		return link, false, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	link, err = m.add(host, host, m.over(uplink, HostSlave, network))
	return link, err == nil, err
}

// add creates a device inside a namespace, over a device of the host.
func (macvlan) add(host, inside side, device *netlink.Macvlan) (_ netlink.Link, err error) {
	if err := inside.mustBeFree(device.Name); err != nil {
		return nil, err
	}
	if device.HardwareAddr, err = newMAC(); err != nil {
		return nil, err
	}
	return addInside(host, inside, device)
}

// over is a device to add, of that name and on that uplink.
func (macvlan) over(uplink netlink.Link, name string, network Network) *netlink.Macvlan {
	device := &netlink.Macvlan{LinkAttrs: attrs(name), Mode: netlink.MACVLAN_MODE_BRIDGE}
	device.ParentIndex = uplink.Attrs().Index
	device.MTU = network.mtu()
	return device
}

// Teardown deletes the host's own device.
func (m macvlan) Teardown(network Network) (err error) {
	defer wrap(&err, "tear down macvlan network")
	if network.Host == nil {
		return errors.New("the network has no host namespace")
	}
	host, err := openSide(network.Host)
	if err != nil {
		return err
	}
	defer host.Close()
	return host.remove(HostSlave, "macvlan")
}

// Create makes a device on the uplink inside the pod's namespace.
func (m macvlan) Create(network Network, pod Pod) (out Attachment, err error) {
	defer wrap(&err, "create macvlan link")
	interior, err := m.validate(network, pod)
	if err != nil {
		return Attachment{}, err
	}
	host, inside, closeBoth, err := openSides(network, pod)
	if err != nil {
		return Attachment{}, err
	}
	defer closeBoth()
	uplink, err := m.uplink(host, network)
	if err != nil {
		return Attachment{}, err
	}
	node, err := host.link(HostSlave)
	if err != nil {
		return Attachment{}, err
	}
	link, err := m.add(host, inside, m.over(uplink, pod.IfName, network))
	if err != nil {
		return Attachment{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, inside.remove(pod.IfName, "macvlan"))
		}
	}()
	if err := interior.prepare(inside, link); err != nil {
		return Attachment{}, err
	}
	if err := interior.finish(inside, link); err != nil {
		return Attachment{}, err
	}
	return Attachment{
		IfName:    pod.IfName,
		IfIndex:   link.Attrs().Index,
		MAC:       macOf(link),
		Addresses: slices.Clone(pod.Addresses),
		NodeMAC:   macOf(node),
	}, nil
}

// Check compares the uplink, the host's own device and the pod's.
func (m macvlan) Check(network Network, pod Pod) (err error) {
	interior, err := m.validate(network, pod)
	if err != nil {
		return fmt.Errorf("check macvlan link: %w", err)
	}
	host, inside, closeBoth, err := openSides(network, pod)
	if err != nil {
		return fmt.Errorf("check macvlan link: %w", err)
	}
	defer closeBoth()
	var c checker
	uplink, err := m.uplink(host, network)
	if err != nil {
		c.add("%v", err)
	}
	slave := c.device(host, wanted{
		name: HostSlave, kind: "macvlan", addrs: network.Gateways,
		settings: append(forwarding(), device(HostSlave, network.Gateways)...),
	})
	link := c.device(inside, interior.wanted(pod))
	c.macvlan(host, slave, uplink)
	c.macvlan(inside, link, uplink)
	return c.result(m, pod)
}

// Delete does nothing if the pod has no namespace any more: the device went
// with it.
func (macvlan) Delete(_ Network, pod Pod) (err error) {
	defer wrap(&err, "delete macvlan link")
	if pod.Namespace == nil {
		return nil
	}
	if err := validateName(pod.IfName); err != nil {
		return err
	}
	inside, err := openSide(pod.Namespace)
	if err != nil {
		return err
	}
	defer inside.Close()
	return inside.remove(pod.IfName, "macvlan")
}

// uplink returns the uplink, if it is fit for one.
func (macvlan) uplink(host side, network Network) (netlink.Link, error) {
	link, err := host.link(network.Uplink)
	if err != nil {
		return nil, fmt.Errorf("uplink: %w", err)
	}
	switch attrs := link.Attrs(); {
	case attrs.RawFlags&unix.IFF_UP == 0:
		return nil, fmt.Errorf("uplink %q in %q is not up", network.Uplink, host.ns.Name())
	case attrs.RawFlags&unix.IFF_LOWER_UP == 0:
		return nil, fmt.Errorf("uplink %q in %q has no carrier", network.Uplink, host.ns.Name())
	case attrs.MTU < network.mtu():
		return nil, fmt.Errorf("uplink %q in %q has MTU %d, less than the pods' %d",
			network.Uplink, host.ns.Name(), attrs.MTU, network.mtu())
	}
	return link, nil
}

func (macvlan) validateNetwork(network Network) error {
	if err := network.validate(); err != nil {
		return err
	}
	if err := validateName(network.Uplink); err != nil {
		return fmt.Errorf("uplink: %w", err)
	}
	if len(network.Gateways) == 0 {
		return errors.New("the network has no gateways")
	}
	return nil
}

func (m macvlan) validate(network Network, pod Pod) (interior, error) {
	if err := m.validateNetwork(network); err != nil {
		return interior{}, err
	}
	if err := pod.validate(network); err != nil {
		return interior{}, err
	}
	addrs, hops, err := pod.onGateways(network)
	return interior{kind: "macvlan", mtu: network.mtu(), addrs: addrs, hops: hops, shared: true}, err
}

// macvlan notes whether a device is not one in bridge mode on the uplink.
func (c *checker) macvlan(s side, link, uplink netlink.Link) {
	device, ok := link.(*netlink.Macvlan)
	if c.err != nil || !ok {
		return
	}
	if device.Mode != netlink.MACVLAN_MODE_BRIDGE {
		c.add("device %q in %q is not in bridge mode", device.Name, s.ns.Name())
	}
	if uplink != nil && device.ParentIndex != uplink.Attrs().Index {
		c.add("device %q in %q is not on uplink %q", device.Name, s.ns.Name(), uplink.Attrs().Name)
	}
}
