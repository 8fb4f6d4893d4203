// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// newBridge is the mode that switches between veth pairs.
func newBridge() Mode { return ports{bridged{name: "bridge", wiring: vethPair{}}} }

// bridged is the modes that switch: the host's end of each pod's link is a port
// of a bridge that has the gateways' addresses.
type bridged struct {
	name   string
	wiring wiring
}

func (bridged) sealed() {}

// Name implements Mode.
func (b bridged) Name() string { return b.name }

// HostSide is true: the bridge's port.
func (bridged) HostSide() bool { return true }

// Routed is false: the bridge switches.
func (bridged) Routed() bool { return false }

// Switched is true.
func (bridged) Switched() bool { return true }

// Needs implements Mode.
func (b bridged) Needs() Need { return b.wiring.needs() }

// Probe creates the ends of a link and a bridge.
func (b bridged) Probe() error {
	return probe(b.name, b.wiring.requires(), requirement{
		feature: "bridge devices", module: "bridge", since: "2.6.0",
		try: func(s side) error { return s.LinkAdd(&netlink.Bridge{LinkAttrs: attrs("probe2")}) },
	})
}

// Setup makes the bridge, gives it the gateways' addresses, switches the
// netfilter call on or off, and forwarding on, and joins it to other hosts.
func (b bridged) Setup(network Network) (err error) {
	defer wrap(&err, "set up "+b.name+" network")
	if err := network.validateSwitched(); err != nil {
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
	if err := host.upIfDown(link); err != nil {
		return err
	}
	if err := host.leaveRouters(link, network); err != nil {
		return err
	}
	if undo, err = host.addGateways(link, network.Gateways); err != nil {
		return err
	}
	if err := apply(host.ns, forwarding()); err != nil {
		return err
	}
	return host.join(link, network)
}

// ensure returns the network's bridge, newly created if need be.
func (b bridged) ensure(host side, network Network) (link netlink.Link, created bool, err error) {
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
	err = host.LinkAdd(device)
	if errors.Is(err, unix.EEXIST) { // another Setup was quicker
		return b.ensure(host, network)
	}
	if err != nil {
		return nil, false, describeAdd(err, name, "bridge", host.ns)
	}
	link, err = host.link(name)
	if err != nil {
		return nil, false, errors.Join(err, host.remove(name, "bridge"))
	}
	return link, true, nil
}

// Teardown deletes the bridge, and its VXLAN device.
func (b bridged) Teardown(network Network) (err error) {
	defer wrap(&err, "tear down "+b.name+" network")
	host, err := network.openHost()
	if err != nil {
		return err
	}
	defer host.Close()
	err = host.remove(network.bridge(), "bridge")
	if network.VXLAN.on() {
		err = errors.Join(err, host.remove(VXLANDevice, "vxlan"))
	}
	return err
}

// Create makes both ends, and the one on the host a port of the bridge.
func (b bridged) Create(network Network, pod Pod) (out Attachment, err error) {
	defer wrap(&err, "create "+b.name+" link")
	interior, err := b.validate(network, pod)
	if err != nil {
		return Attachment{}, err
	}
	host, inside, closeBoth, err := openSides(network, pod)
	if err != nil {
		return Attachment{}, err
	}
	defer closeBoth()
	ends, master, err := b.join(host, inside, network, pod)
	if err != nil {
		return Attachment{}, err
	}
	defer func() {
		if err != nil && !pod.Plugged {
			err = errors.Join(err, removeEnds(b.wiring, host, inside, pod))
		}
	}()
	if ends.pod != nil {
		if err := interior.prepare(inside, ends.pod); err != nil {
			return Attachment{}, err
		}
	}
	if !interior.relayed {
		if err := host.awaitPort(ends.host, master); err != nil {
			return Attachment{}, err
		}
	}
	if ends.pod != nil {
		if err := interior.finish(inside, ends.pod); err != nil {
			return Attachment{}, err
		}
	}
	return interior.complete(ends.attachment(pod, macOf(master))), nil
}

// join makes the pod's two ends, the one on the host a port of the bridge, or finds those
// of Plug. If it fails it has made none.
func (b bridged) join(host, inside side, network Network, pod Pod) (ends pair, master netlink.Link, err error) {
	if master, err = host.link(network.bridge()); err != nil {
		return pair{}, nil, err
	}
	if pod.Plugged {
		if ends.host, err = host.link(pod.HostIfName); err == nil {
			ends.pod, err = inside.link(pod.IfName)
		}
		return ends, master, err
	}
	if ends, err = b.wiring.add(host, inside, network, pod); err != nil {
		return pair{}, nil, err
	}
	if err := b.plug(host, ends.host, master); err != nil {
		return pair{}, nil, errors.Join(err, removeEnds(b.wiring, host, inside, pod))
	}
	return ends, master, nil
}

// awaitPort returns when a port of a bridge can send: only then it is switched on, and
// only with a port that is the bridge is.
func (s side) awaitPort(port, master netlink.Link) error {
	if err := s.awaitCarrier(port); err != nil {
		return err
	}
	return s.awaitCarrier(master)
}

// plug makes a device a port, and sets it up. Hairpin mode lets a pod reach
// itself through a service that it backs.
func (b bridged) plug(host side, port, master netlink.Link) error {
	if err := host.enslave(port, master); err != nil {
		return err
	}
	if err := host.LinkSetHairpin(port, true); err != nil {
		return fmt.Errorf("set hairpin mode of device %q in %q: %w", port.Attrs().Name, host.ns.Name(), err)
	}
	return host.up(port)
}

// portSettings keep a switch's port from having addresses of its own.
func portSettings(name string) []setting {
	return []setting{{"net/ipv6/conf/" + name + "/disable_ipv6", "1"}}
}

// Check compares the bridge, the port and the pod's device.
func (b bridged) Check(network Network, pod Pod) (err error) {
	interior, err := b.validate(network, pod)
	if err != nil {
		return fmt.Errorf("check %s link: %w", b.name, err)
	}
	host, inside, closeBoth, err := openSides(network, pod)
	if err != nil {
		return fmt.Errorf("check %s link: %w", b.name, err)
	}
	defer closeBoth()
	var c checker
	master := c.device(host, wanted{
		name: network.bridge(), kind: "bridge", addrs: network.Gateways, routers: network.Routers,
		settings: append(forwarding(), device(network.bridge(), network.Gateways)...),
	})
	var ends pair
	ends.host = c.device(host, wanted{
		name: pod.HostIfName, kind: b.wiring.kind(), mtu: network.mtu(), settings: portSettings(pod.HostIfName),
	})
	if inside.ns != nil {
		ends.pod = c.device(inside, interior.wanted(pod))
	}
	b.wiring.check(&c, host, inside, ends)
	if master != nil {
		c.netfilterCall(network)
		c.trunks(host, network, master)
	}
	if master != nil && ends.host != nil {
		c.port(host, ends.host, master)
	}
	return c.result(b, pod)
}

// Delete removes both ends.
func (b bridged) Delete(network Network, pod Pod) (err error) {
	defer wrap(&err, "delete "+b.name+" link")
	return deleteEnds(b.wiring, network, pod)
}

// validate reports bad input, and says how the pod's end is to be. A pod without
// a namespace, such as a VM, opens the host's end itself.
func (b bridged) validate(network Network, pod Pod) (interior, error) {
	if err := network.validateSwitched(); err != nil {
		return interior{}, err
	}
	if pod.Namespace != nil || !relayed(b.wiring) {
		if err := pod.validateInside(network); err != nil {
			return interior{}, err
		}
	}
	if err := pod.validateAddresses(network); err != nil {
		return interior{}, err
	}
	if err := pod.validateHostIfName(); err != nil {
		return interior{}, err
	}
	return interior{kind: b.wiring.kind(), mtu: network.mtu(), shared: true, relayed: relayed(b.wiring)}.onGateways(network, pod)
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
