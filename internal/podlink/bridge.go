// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink"
)

// bridge switches: each pod has a veth pair whose host end is a port of a bridge
// that has the gateways' addresses.
type bridge struct{}

func (bridge) sealed() {}

// Name implements Mode.
func (bridge) Name() string { return "bridge" }

// HostSide is true: the bridge's port.
func (bridge) HostSide() bool { return true }

// Needs implements Mode.
func (bridge) Needs() Need { return NeedsNothing }

// Probe creates a veth pair and a bridge.
func (bridge) Probe() error {
	return probe("bridge", needsVeth(), requirement{
		feature: "bridge devices", module: "bridge", since: "2.6.0",
		try: func(s side) error { return s.LinkAdd(&netlink.Bridge{LinkAttrs: attrs("probe2")}) },
	})
}

// Setup makes the bridge, gives it the gateways' addresses, and switches the
// netfilter call on or off, and forwarding on.
func (b bridge) Setup(network Network) (err error) {
	defer wrap(&err, "set up bridge network")
	if err := b.validateNetwork(network); err != nil {
		return err
	}
	host, err := openSide(network.Host)
	if err != nil {
		return err
	}
	defer host.Close()
	link, created, err := b.ensure(host, network)
	if err != nil {
		return err
	}
	var undo func() error
	defer func() {
		switch {
		case err == nil:
		case created:
			err = errors.Join(err, host.remove(network.bridge(), "bridge"))
		case undo != nil:
			err = errors.Join(err, undo())
		}
	}()
	if err := apply(host.ns, device(network.bridge(), network.Gateways)); err != nil {
		return err
	}
	if err := configureBridge(host, link, network); err != nil {
		return err
	}
	if err := host.up(link); err != nil {
		return err
	}
	if undo, err = host.addGateways(link, network.Gateways); err != nil {
		return err
	}
	return apply(host.ns, forwarding())
}

// ensure returns the network's bridge, newly created if need be.
func (bridge) ensure(host side, network Network) (link netlink.Link, created bool, err error) {
	name := network.bridge()
	link, err = host.link(name)
	if err == nil {
		if link.Type() != "bridge" {
			return nil, false, fmt.Errorf("device %q in %q is a %s, not a bridge: %w",
				name, host.ns.Name(), link.Type(), fs.ErrExist)
		}
		return link, false, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	device := &netlink.Bridge{LinkAttrs: attrs(name)}
	if device.HardwareAddr, err = newMAC(); err != nil {
		return nil, false, err
	}
	if err := host.LinkAdd(device); err != nil {
		return nil, false, describeAdd(err, name, "bridge", host.ns)
	}
	link, err = host.link(name)
	if err != nil {
		return nil, false, errors.Join(err, host.remove(name, "bridge"))
	}
	return link, true, nil
}

// Teardown deletes the bridge.
func (bridge) Teardown(network Network) (err error) {
	defer wrap(&err, "tear down bridge network")
	if network.Host == nil {
		return errors.New("the network has no host namespace")
	}
	host, err := openSide(network.Host)
	if err != nil {
		return err
	}
	defer host.Close()
	return host.remove(network.bridge(), "bridge")
}

// Create makes a veth pair, and its end on the host a port of the bridge.
func (b bridge) Create(network Network, pod Pod) (out Attachment, err error) {
	defer wrap(&err, "create bridge link")
	interior, err := b.validate(network, pod)
	if err != nil {
		return Attachment{}, err
	}
	host, inside, closeBoth, err := openSides(network, pod)
	if err != nil {
		return Attachment{}, err
	}
	defer closeBoth()
	master, err := host.link(network.bridge())
	if err != nil {
		return Attachment{}, err
	}
	pair, err := addVeth(host, inside, network, pod)
	if err != nil {
		return Attachment{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, host.remove(pod.HostIfName, "veth"))
		}
	}()
	if err := b.plug(host, pair.host, master); err != nil {
		return Attachment{}, err
	}
	if err := interior.prepare(inside, pair.pod); err != nil {
		return Attachment{}, err
	}
	// Only a port that can send is switched on, and only then the bridge is.
	for _, link := range []netlink.Link{pair.host, master} {
		if err := host.awaitCarrier(link); err != nil {
			return Attachment{}, err
		}
	}
	if err := interior.finish(inside, pair.pod); err != nil {
		return Attachment{}, err
	}
	return pair.attachment(pod, macOf(master)), nil
}

// plug makes a device a port, and sets it up. Hairpin mode lets a pod reach
// itself through a service that it backs.
func (b bridge) plug(host side, port, master netlink.Link) error {
	name := port.Attrs().Name
	if err := apply(host.ns, b.portSettings(name)); err != nil {
		return err
	}
	if err := host.LinkSetMaster(port, master); err != nil {
		return fmt.Errorf("make device %q in %q a port of %q: %w", name, host.ns.Name(), master.Attrs().Name, err)
	}
	if err := host.LinkSetHairpin(port, true); err != nil {
		return fmt.Errorf("set hairpin mode of device %q in %q: %w", name, host.ns.Name(), err)
	}
	return host.up(port)
}

// portSettings keep a port from having addresses of its own.
func (bridge) portSettings(name string) []setting {
	return []setting{{"net/ipv6/conf/" + name + "/disable_ipv6", "1"}}
}

// Check compares the bridge, the port and the pod's device.
func (b bridge) Check(network Network, pod Pod) (err error) {
	interior, err := b.validate(network, pod)
	if err != nil {
		return fmt.Errorf("check bridge link: %w", err)
	}
	host, inside, closeBoth, err := openSides(network, pod)
	if err != nil {
		return fmt.Errorf("check bridge link: %w", err)
	}
	defer closeBoth()
	var c checker
	master := c.device(host, wanted{
		name: network.bridge(), kind: "bridge", addrs: network.Gateways,
		settings: append(forwarding(), device(network.bridge(), network.Gateways)...),
	})
	port, _ := c.pair(host, inside, wanted{
		name: pod.HostIfName, kind: "veth", mtu: network.mtu(), settings: b.portSettings(pod.HostIfName),
	}, interior.wanted(pod))
	if master != nil {
		c.netfilterCall(network)
	}
	if master != nil && port != nil {
		c.port(host, port, master)
	}
	return c.result(b, pod)
}

// Delete removes the pair by its end on the host.
func (bridge) Delete(network Network, pod Pod) (err error) {
	defer wrap(&err, "delete bridge link")
	return deleteVeth(network, pod)
}

func (bridge) validateNetwork(network Network) error {
	if err := network.validate(); err != nil {
		return err
	}
	if err := validateName(network.bridge()); err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	if len(network.Gateways) == 0 {
		return errors.New("the network has no gateways")
	}
	return nil
}

func (b bridge) validate(network Network, pod Pod) (interior, error) {
	if err := b.validateNetwork(network); err != nil {
		return interior{}, err
	}
	if err := (veth{}).validate(network, pod); err != nil {
		return interior{}, err
	}
	addrs, hops, err := pod.onGateways(network)
	return interior{kind: "veth", mtu: network.mtu(), addrs: addrs, hops: hops, shared: true}, err
}

// port notes in what a port is not as plug leaves it.
func (c *checker) port(host side, port, master netlink.Link) {
	if c.err != nil {
		return
	}
	name := port.Attrs().Name
	if port.Attrs().MasterIndex != master.Attrs().Index {
		c.add("device %q in %q is not a port of %q", name, host.ns.Name(), master.Attrs().Name)
		return
	}
	info, err := host.LinkGetProtinfo(port)
	if err != nil {
		c.err = fmt.Errorf("read port settings of device %q in %q: %w", name, host.ns.Name(), err)
		return
	}
	if !info.Hairpin {
		c.add("hairpin mode of device %q in %q is off", name, host.ns.Name())
	}
}
