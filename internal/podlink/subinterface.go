// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/rtnl"
)

// subinterface are the modes in which each pod has a device on the host's uplink (macvlan, ipvlan). The host has one
// too, since it can't reach the pods through the uplink itself.
type subinterface struct {
	// kind is the kernel's name for the kind of the devices, and of their module. hostDevice is the host's own.
	name, kind, hostDevice string
	// feature and since are the kernel's part.
	feature, since string
	// layer3 is true if the devices have no neighbours (IFF_NOARP), and all packets are routed.
	layer3 bool
	// ownMAC is true if each device has a MAC address of its own (macvlan). Otherwise all devices on one uplink must be of
	// one mode, and an uplink of their own kind, where the kernel would make them siblings of it, is an error.
	ownMAC bool
	mode   netlink.IPVlanMode
}

// Name implements Mode.
func (s subinterface) Name() string { return s.name }

// Traits implements Mode.
func (s subinterface) Traits() Traits {
	return Traits{
		Needs: NeedsUplink, Switched: !s.layer3, Layer3: s.layer3, HostDevice: s.hostDevice,
		ReceiveOnUplink: !s.ownMAC, UplinkSibling: s.ownMAC, Delivery: DeliverByMAC,
		BigTCP: true, DHCP: s.ownMAC, ResultLink: s.name,
	}
}

// Probe creates a veth pair and a device on it.
func (s subinterface) Probe() error {
	r := requirement{feature: s.feature, module: s.kind, since: s.since}
	r.try = func(h nsHandle) error {
		parent, err := h.link(probeName)
		if err != nil {
			return err
		}
		attrs := newAttrs("probe2")
		attrs.ParentIndex = parent.Attrs().Index
		device, err := s.device(attrs)
		if err != nil {
			return err
		}
		return h.LinkAdd(device)
	}
	return probe(s.name, veth().requirement, r)
}

// setup creates the host's own device on the uplink, with the gateways' addresses, and enables forwarding.
func (s subinterface) setup(host nsHandle, network Network) error {
	uplink, err := s.uplink(host, network)
	if err != nil {
		return err
	}
	link, created, err := s.ensureHostDevice(host, uplink, network)
	if err != nil {
		return err
	}
	if err := host.setUpHostDevice(link, s.hostSpec(network), created); err != nil {
		return err
	}
	return host.awaitCarrier(link)
}

// ensureHostDevice returns the host's own device, and creates it if it is missing.
func (s subinterface) ensureHostDevice(host nsHandle, uplink netlink.Link, network Network) (_ netlink.Link, created bool, err error) {
	link, err := s.findHostDevice(host, uplink)
	if !errors.Is(err, fs.ErrNotExist) {
		return link, false, err
	}
	if err := s.checkUplinkMode(host, uplink); err != nil {
		return nil, false, err
	}
	link, err = s.add(host, host, uplink, network.attrs(s.hostDevice))
	if errors.Is(err, unix.EEXIST) { // a concurrent Setup was faster
		link, err = s.findHostDevice(host, uplink)
		return link, false, err
	}
	return link, err == nil, err
}

// findHostDevice returns the host's own device. The error matches fs.ErrExist if a different device has its name, and
// fs.ErrNotExist if none has.
func (s subinterface) findHostDevice(host nsHandle, uplink netlink.Link) (netlink.Link, error) {
	link, err := host.link(s.hostDevice)
	if err != nil {
		return nil, err
	}
	deviation := s.deviation(link)
	if deviation == "" && link.Attrs().ParentIndex != s.parentIndex(uplink) {
		deviation = fmt.Sprintf("is not on uplink %q", uplink.Attrs().Name)
	}
	if deviation != "" {
		return nil, fmt.Errorf("device %q in %q %s: %w", s.hostDevice, host.ns.Name(), deviation, fs.ErrExist)
	}
	return link, nil
}

// checkUplinkMode returns an error if a device on the uplink is of another mode, which a new device would change. It
// sees only those on the host.
func (s subinterface) checkUplinkMode(host nsHandle, uplink netlink.Link) error {
	if s.ownMAC {
		return nil
	}
	links, err := rtnl.Dump(host.LinkList)
	if err != nil {
		return fmt.Errorf("list devices in %q: %w", host.ns.Name(), err)
	}
	for _, link := range links {
		if kindOf(link) != s.kind || link.Attrs().ParentIndex != uplink.Attrs().Index {
			continue
		}
		if deviation := s.deviation(link); deviation != "" {
			return fmt.Errorf("device %q in %q %s, and all on uplink %q must be of one mode",
				link.Attrs().Name, host.ns.Name(), deviation, uplink.Attrs().Name)
		}
	}
	return nil
}

// parentIndex is the index of the parent of devices on an uplink: the kernel makes them siblings of an uplink of their
// own kind.
func (s subinterface) parentIndex(uplink netlink.Link) int {
	if kindOf(uplink) == s.kind {
		return uplink.Attrs().ParentIndex
	}
	return uplink.Attrs().Index
}

// add creates a device inside a namespace, on a device of the host.
func (s subinterface) add(host, inside nsHandle, uplink netlink.Link, attrs netlink.LinkAttrs) (netlink.Link, error) {
	attrs.ParentIndex = uplink.Attrs().Index
	device, err := s.device(attrs)
	if err != nil {
		return nil, err
	}
	link, err := addInside(host, inside, device)
	if errors.Is(err, unix.EBUSY) {
		err = fmt.Errorf("uplink %q in %q is a port of a switch or a bond, or has devices of another kind: %w",
			uplink.Attrs().Name, host.ns.Name(), err)
	}
	return link, err
}

// uplink returns the uplink, if it is suitable.
func (s subinterface) uplink(host nsHandle, network Network) (netlink.Link, error) {
	link, err := host.link(network.Uplink)
	if err != nil {
		return nil, fmt.Errorf("uplink: %w", err)
	}
	switch attrs := link.Attrs(); {
	case kindOf(link) == s.kind && !s.ownMAC:
		return nil, fmt.Errorf("uplink %q in %q is itself a device of kind %s", network.Uplink, host.ns.Name(), s.kind)
	case attrs.RawFlags&unix.IFF_UP == 0:
		return nil, fmt.Errorf("uplink %q in %q is not up", network.Uplink, host.ns.Name())
	case attrs.RawFlags&unix.IFF_LOWER_UP == 0:
		return nil, fmt.Errorf("uplink %q in %q: no carrier", network.Uplink, host.ns.Name())
	case attrs.MTU < network.mtu():
		return nil, fmt.Errorf("uplink %q in %q has MTU %d, less than the pods' %d",
			network.Uplink, host.ns.Name(), attrs.MTU, network.mtu())
	}
	return link, nil
}

// hostSpec is the specification of the host's own device.
func (s subinterface) hostSpec(network Network) deviceSpec {
	if s.layer3 {
		addrs := network.gatewayAddrs()
		return deviceSpec{name: s.hostDevice, kind: s.kind, addrs: addrs, settings: layer3Settings(s.hostDevice, addrs)}
	}
	settings := deviceSettings(s.hostDevice, network.Gateways)
	if s.ownMAC {
		// Otherwise it would answer for the uplink's addresses too, with its own MAC address.
		settings = append(settings, rtnl.Sysctl{Key: "net/ipv4/conf/" + s.hostDevice + "/arp_ignore", Value: "1"})
	}
	return deviceSpec{
		name: s.hostDevice, kind: s.kind, addrs: network.Gateways, routers: network.Routers, settings: settings,
	}
}

// teardown deletes the host's own device, and with it the routes to pods.
func (s subinterface) teardown(host nsHandle, _ Network) error {
	return host.remove(s.hostDevice, s.kind)
}

func (s subinterface) validateNetwork(network Network) error {
	err := network.validate()
	if err == nil && s.layer3 {
		err = network.rejectRouters(s.name)
	}
	return cmp.Or(err, validateName("uplink", network.Uplink), network.validateGateways())
}

// create creates a device on the uplink inside the pod's namespace.
func (s subinterface) create(at session) (out Attachment, err error) {
	host, inside, pod := at.host, at.inside, at.pod
	uplink, err := s.uplink(host, at.Network)
	if err != nil {
		return out, err
	}
	var own netlink.Link
	if !pod.LinkOnly {
		if own, err = s.findHostDevice(host, uplink); err != nil {
			return out, err
		}
	}
	var link netlink.Link
	if pod.Linked {
		link, err = inside.link(pod.IfName)
	} else {
		attrs := at.attrs(pod.IfName)
		attrs.HardwareAddr = pod.MAC
		link, err = s.add(host, inside, uplink, attrs)
	}
	if err != nil {
		return out, err
	}
	if err := at.config.prepare(inside, link); err != nil {
		return out, err
	}
	if err := at.config.finish(inside, link); err != nil {
		return out, err
	}
	if own == nil {
		return pod.attachment(linkEnds{pod: link}, nil), nil
	}
	// Existing routes are left from an earlier pod that nobody deleted: the kernel makes sure that no two pods on an
	// uplink have one address.
	if err := host.addMissingRoutes(own, s.hostRoutes(at.Network, pod)); err != nil {
		return out, err
	}
	return pod.attachment(linkEnds{pod: link}, macOf(own)), nil
}

// check checks the uplink, the host's own device and the pod's.
func (s subinterface) check(c *checker, at session) {
	uplink, err := s.uplink(at.host, at.Network)
	if err != nil {
		c.add("%v", err)
	}
	want := s.hostSpec(at.Network).withForwarding()
	want.routes = s.hostRoutes(at.Network, at.pod)
	s.checkDevice(c, at.host, c.device(at.host, want), uplink)
	s.checkDevice(c, at.inside, c.device(at.inside, at.config.spec(at.pod)), uplink)
}

// remove deletes the pod's device, unless it is gone with the pod's namespace, and the host's routes to it.
func (s subinterface) remove(network Network, pod Pod) error {
	return errors.Join(s.deleteDevice(network, pod), network.deleteRoutes(s.hostDevice, s.hostRoutes(network, pod)))
}

func (s subinterface) deleteDevice(network Network, pod Pod) error {
	if pod.Namespace == nil {
		return nil
	}
	inside, err := network.openPod(pod)
	if err != nil {
		return err
	}
	defer inside.Close()
	return inside.remove(pod.IfName, s.kind)
}

// deleteRoutes deletes routes of the host by a device of its own.
func (n Network) deleteRoutes(device string, routes []Route) error {
	if len(routes) == 0 {
		return nil
	}
	host, err := n.openHost()
	if err != nil {
		return err
	}
	defer host.Close()
	own, err := host.link(device)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // its routes are gone too
	}
	if err != nil {
		return err
	}
	return host.removeRoutes(own, routes)
}

// podConfig validates the arguments and returns the configuration of the pod's device.
func (s subinterface) podConfig(network Network, pod Pod) (podConfig, error) {
	out := podConfig{kind: s.kind, mtu: network.mtu(), switched: !s.layer3}
	if pod.LinkOnly && s.ownMAC {
		return out, pod.validateLinkOnly(network)
	}
	err := cmp.Or(s.validateNetwork(network), pod.validate(network, false))
	if err == nil && !s.ownMAC {
		err = pod.rejectMAC(s.name)
	}
	if err != nil {
		return podConfig{}, err
	}
	if !s.layer3 {
		return out.withGateways(network, pod)
	}
	for _, addr := range pod.Addresses {
		if _, ok := network.gateway(addr); !ok {
			return podConfig{}, noGatewayError(addr)
		}
	}
	out.layer3, out.addrs = true, hostPrefixes(pod.Addresses...)
	return out.withRoutes(network, pod, false), pod.ValidateRoutes(network, false)
}
