// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// stacked is the modes that share an uplink: each pod has a device on it, and so
// has the host, which can't reach the pods through the uplink itself.
type stacked struct{ stacking }

// stacking is what differs between modes that share an uplink.
type stacking interface {
	// name is what users call the mode.
	name() string
	// kind is what the kernel calls the devices.
	kind() string
	// slave is the name of the host's own device.
	slave() string
	// layer3 is whether the devices have no neighbours (IFF_NOARP), so that all is
	// routed.
	layer3() bool
	// requires is what the kernel must be able to do. There is a veth pair by then.
	requires() requirement
	// device is a device to create.
	device(attrs netlink.LinkAttrs) (netlink.Link, error)
	// deviation says in what an existing device is not of this mode, or is empty.
	deviation(link netlink.Link) string
	// exclusive is whether all devices on one uplink must be of one mode. Such are not
	// put on an uplink of their own kind, where the kernel would put them beside it.
	exclusive() bool
	// ownMAC is whether each device has a MAC address of its own.
	ownMAC() bool
}

func (stacked) sealed() {}

// Name implements Mode.
func (s stacked) Name() string { return s.name() }

// HostSide is false: the uplink is shared.
func (stacked) HostSide() bool { return false }

// Routed is false: the uplink switches.
func (stacked) Routed() bool { return false }

// Switched reports whether the devices have neighbours.
func (s stacked) Switched() bool { return !s.layer3() }

// Needs implements Mode.
func (stacked) Needs() Need { return NeedsUplink }

// Probe creates a veth pair, and a device on it.
func (s stacked) Probe() error { return probe(s.name(), needsVeth(), s.requires()) }

// Setup makes the host's own device on the uplink, with the gateways' addresses,
// and switches forwarding on.
func (s stacked) Setup(network Network) (err error) {
	defer wrap(&err, "set up "+s.name()+" network")
	if err := s.validateNetwork(network); err != nil {
		return err
	}
	host, err := openSide(network.Host)
	if err != nil {
		return err
	}
	defer host.Close()
	uplink, err := s.uplink(host, network)
	if err != nil {
		return err
	}
	link, created, err := s.ensure(host, uplink, network)
	if err != nil {
		return err
	}
	var undo func() error
	defer func() {
		switch {
		case err == nil:
		case created:
			err = errors.Join(err, host.remove(s.slave(), s.kind()))
		case undo != nil:
			err = errors.Join(err, undo())
		}
	}()
	own := s.slaveWanted(network)
	if err := apply(host.ns, own.settings); err != nil {
		return err
	}
	if err := host.upIfDown(link); err != nil {
		return err
	}
	if err := host.leaveRouters(link, network); err != nil {
		return err
	}
	if undo, err = host.addGateways(link, own.addrs); err != nil {
		return err
	}
	if err := host.awaitCarrier(link); err != nil {
		return err
	}
	return apply(host.ns, forwarding())
}

// ensure returns the host's own device, newly created if need be.
func (s stacked) ensure(host side, uplink netlink.Link, network Network) (_ netlink.Link, created bool, err error) {
	link, err := s.find(host, uplink)
	if !errors.Is(err, fs.ErrNotExist) {
		return link, false, err
	}
	if err := s.mustAgree(host, uplink); err != nil {
		return nil, false, err
	}
	link, err = s.add(host, host, uplink, network.attrs(s.slave()))
	if errors.Is(err, unix.EEXIST) { // another Setup was quicker
		link, err = s.find(host, uplink)
		return link, false, err
	}
	if errors.Is(err, unix.EBUSY) {
		err = fmt.Errorf("uplink %q in %q is in use by devices of another kind: %w", network.Uplink, host.ns.Name(), err)
	}
	return link, err == nil, err
}

// find returns the host's own device. If there is another of that name, or none,
// the error matches fs.ErrExist or fs.ErrNotExist.
func (s stacked) find(host side, uplink netlink.Link) (netlink.Link, error) {
	link, err := host.link(s.slave())
	if err != nil {
		return nil, err
	}
	says := s.deviation(link)
	if says == "" && link.Attrs().ParentIndex != s.parent(uplink) {
		says = fmt.Sprintf("is not on uplink %q", uplink.Attrs().Name)
	}
	if says != "" {
		return nil, fmt.Errorf("device %q in %q %s: %w", s.slave(), host.ns.Name(), says, fs.ErrExist)
	}
	return link, nil
}

// mustAgree is an error if a device on the uplink is of another mode, and would
// be changed to ours. It can only see those on the host.
func (s stacked) mustAgree(host side, uplink netlink.Link) error {
	if !s.exclusive() {
		return nil
	}
	links, err := host.links()
	if err != nil {
		return err
	}
	for _, link := range links {
		if kindOf(link) != s.kind() || link.Attrs().ParentIndex != uplink.Attrs().Index {
			continue
		}
		if says := s.deviation(link); says != "" {
			return fmt.Errorf("device %q in %q %s, and all on uplink %q are of one mode",
				link.Attrs().Name, host.ns.Name(), says, uplink.Attrs().Name)
		}
	}
	return nil
}

// parent is the index of the device that those on an uplink really are on: the
// kernel puts them beside an uplink of their own kind.
func (s stacked) parent(uplink netlink.Link) int {
	if kindOf(uplink) == s.kind() {
		return uplink.Attrs().ParentIndex
	}
	return uplink.Attrs().Index
}

// attrs are the attributes of a new device of that name.
func (n Network) attrs(name string) netlink.LinkAttrs {
	out := attrs(name)
	out.MTU = n.mtu()
	return out
}

// add creates a device inside a namespace, over a device of the host.
func (s stacked) add(host, inside side, uplink netlink.Link, attrs netlink.LinkAttrs) (netlink.Link, error) {
	attrs.ParentIndex = uplink.Attrs().Index
	device, err := s.device(attrs)
	if err != nil {
		return nil, err
	}
	return addInside(host, inside, device)
}

// uplink returns the uplink, if it is fit for one.
func (s stacked) uplink(host side, network Network) (netlink.Link, error) {
	link, err := host.link(network.Uplink)
	if err != nil {
		return nil, fmt.Errorf("uplink: %w", err)
	}
	switch attrs := link.Attrs(); {
	case kindOf(link) == s.kind() && s.exclusive():
		return nil, fmt.Errorf("uplink %q in %q is itself a device of kind %s", network.Uplink, host.ns.Name(), s.kind())
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

// slaveWanted is how the host's own device is to be.
func (s stacked) slaveWanted(network Network) wanted {
	if s.layer3() {
		addrs := alone(network.Gateways)
		return wanted{name: s.slave(), kind: s.kind(), addrs: addrs, settings: layer3Device(s.slave(), addrs)}
	}
	settings := device(s.slave(), network.Gateways)
	if s.ownMAC() {
		// Otherwise it would answer for the uplink's addresses too, with its own MAC address.
		settings = append(settings, setting{"net/ipv4/conf/" + s.slave() + "/arp_ignore", "1"})
	}
	return wanted{name: s.slave(), kind: s.kind(), addrs: network.Gateways, routers: network.Routers, settings: settings}
}

// Teardown deletes the host's own device, and with it the routes to pods.
func (s stacked) Teardown(network Network) (err error) {
	defer wrap(&err, "tear down "+s.name()+" network")
	host, err := network.openHost()
	if err != nil {
		return err
	}
	defer host.Close()
	return host.remove(s.slave(), s.kind())
}

func (s stacked) validateNetwork(network Network) error {
	if err := network.validate(); err != nil {
		return err
	}
	if s.layer3() {
		if err := network.hasNoRouters(s.name()); err != nil {
			return err
		}
	}
	if err := validateName(network.Uplink); err != nil {
		return fmt.Errorf("uplink: %w", err)
	}
	return network.validateGateways()
}
