// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/rtnl"
)

// subinterface are the modes in which each pod has a device on the host's uplink (macvlan, ipvlan). The host has one
// too, since it can't reach the pods through the uplink itself.
type subinterface struct {
	// kind is the kernel's name for the kind of the devices. hostDevice is the host's own.
	kind, hostDevice string
	layer3           bool // true if the devices lack neighbours (IFF_NOARP), and all packets are routed
	// ownMAC is true if each device has its own MAC address (macvlan). Otherwise all devices on one uplink must have the
	// same mode. An uplink of their own kind is an error: the kernel would make them its siblings.
	ownMAC bool
	mode   netlink.IPVlanMode
}

func newMacvlan() linkMode {
	s := subinterface{kind: "macvlan", hostDevice: MacvlanHostDevice, ownMAC: true}
	return s.linkMode("macvlan", "macvlan devices", "2.6.33")
}

func newIPVLAN(mode netlink.IPVlanMode) linkMode {
	s := subinterface{kind: "ipvlan", hostDevice: IPVLANHostDevice, layer3: mode != netlink.IPVLAN_MODE_L2, mode: mode}
	name := "ipvlan-" + ipvlanMode(mode)
	if mode == netlink.IPVLAN_MODE_L3S {
		return s.linkMode(name, "ipvlan devices in mode l3s", "4.9")
	}
	return s.linkMode(name, "ipvlan devices", "3.19")
}

func (s subinterface) linkMode(name, feature, since string) linkMode {
	traits := Traits{
		Needs: NeedsUplink, Switched: !s.layer3, Layer3: s.layer3, HostDevice: s.hostDevice,
		ReceiveOnUplink: !s.ownMAC, UplinkSibling: s.ownMAC, Delivery: DeliverByMAC,
		BigTCP: true, DHCP: s.ownMAC, ResultLink: name,
	}
	try := func(h nsHandle) error {
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
	own := requirement{feature: feature, module: s.kind, since: since, try: try}
	return linkMode{name, s.kind, traits, []requirement{veth().requirement, own}, s}
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

func (s subinterface) ensureHostDevice(host nsHandle, uplink netlink.Link, network Network) (_ netlink.Link,
	created bool, err error) {
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

// checkUplinkMode returns an error if a device on the uplink has another mode, which a new device would change. It
// sees only devices on the host.
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

// parentIndex is the index of the parent of devices on an uplink, which are siblings of an uplink of their kind.
func (s subinterface) parentIndex(uplink netlink.Link) int {
	if kindOf(uplink) == s.kind {
		return uplink.Attrs().ParentIndex
	}
	return uplink.Attrs().Index
}

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

func (s subinterface) hostSpec(network Network) deviceSpec {
	if s.layer3 {
		addrs := network.gatewayAddrs()
		return deviceSpec{name: s.hostDevice, kind: s.kind, addrs: addrs, settings: layer3Settings(s.hostDevice, addrs)}
	}
	settings := deviceSettings(s.hostDevice, network.Gateways)
	if s.ownMAC {
		// Otherwise it would also answer for the uplink's addresses, with its own MAC address.
		settings = append(settings, rtnl.Sysctl{Key: "net/ipv4/conf/" + s.hostDevice + "/arp_ignore", Value: "1"})
	}
	return deviceSpec{
		name: s.hostDevice, kind: s.kind, addrs: network.Gateways, routers: network.Routers, settings: settings,
	}
}

func (s subinterface) teardown(host nsHandle, _ Network) error {
	return host.remove(s.hostDevice, s.kind)
}

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
	// Existing routes are left from an undeleted pod: the kernel refuses two pods on an uplink with one address.
	if err := host.addMissingRoutes(own, s.hostRoutes(at.Network, pod)); err != nil {
		return out, err
	}
	return pod.attachment(linkEnds{pod: link}, macOf(own)), nil
}

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
func (s subinterface) remove(at session) error {
	err := at.inside.remove(at.pod.IfName, s.kind)
	own, ownErr := at.host.link(s.hostDevice)
	if ownErr == nil {
		ownErr = at.host.removeRoutes(own, s.hostRoutes(at.Network, at.pod))
	} else if errors.Is(ownErr, fs.ErrNotExist) {
		ownErr = nil // its routes are gone too
	}
	return errors.Join(err, ownErr)
}

// device is a device to create. One of ipvlan has the uplink's MAC address, which can't be changed.
func (s subinterface) device(attrs netlink.LinkAttrs) (_ netlink.Link, err error) {
	if !s.ownMAC {
		return &netlink.IPVlan{LinkAttrs: attrs, Mode: s.mode, Flag: netlink.IPVLAN_FLAG_BRIDGE}, nil
	}
	if attrs.HardwareAddr == nil {
		attrs.HardwareAddr, err = newMAC()
	}
	return &netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE}, err
}

// deviation is the difference of a device from one of this mode, or empty.
func (s subinterface) deviation(link netlink.Link) string {
	macvlan, _ := link.(*netlink.Macvlan)
	ipvlan, _ := link.(*netlink.IPVlan)
	switch {
	case s.ownMAC && macvlan == nil:
		return "is a " + kindOf(link) + ", not a macvlan"
	case s.ownMAC && macvlan.Mode != netlink.MACVLAN_MODE_BRIDGE:
		return "is not in bridge mode"
	case s.ownMAC:
	case ipvlan == nil:
		return "is a " + kindOf(link) + ", not an ipvlan"
	case ipvlan.Mode != s.mode:
		return "is in mode " + ipvlanMode(ipvlan.Mode) + ", not " + ipvlanMode(s.mode)
	case ipvlan.Flag != netlink.IPVLAN_FLAG_BRIDGE:
		return "isolates pods from each other (private or VEPA)"
	}
	return ""
}

func ipvlanMode(mode netlink.IPVlanMode) string {
	switch mode {
	case netlink.IPVLAN_MODE_L2:
		return "l2"
	case netlink.IPVLAN_MODE_L3:
		return "l3"
	case netlink.IPVLAN_MODE_L3S:
		return "l3s"
	}
	return fmt.Sprintf("(%d)", mode)
}

// hostRoutes are the host's routes to a pod. On Ethernet the gateways' prefixes suffice, unless there are other
// routers: the host may then have their network's prefix on the uplink, which does not reach pods. An address outside
// the host's prefix gets no route: a DHCP server may assign any address, and Delete can't find its prefix.
func (s subinterface) hostRoutes(network Network, pod Pod) []Route {
	if s.layer3 {
		return pod.hostRoutes(network)
	}
	return slices.DeleteFunc(pod.hostRoutes(network), func(r Route) bool {
		gateway, known := network.gateway(r.Dst.Addr())
		return len(network.Routers) == 0 || known && !gateway.Contains(r.Dst.Addr())
	})
}

func (s subinterface) checkDevice(c *checker, h nsHandle, link, uplink netlink.Link) {
	if link == nil {
		return
	}
	if deviation := s.deviation(link); deviation != "" {
		c.add("device %q in %q %s", link.Attrs().Name, h.ns.Name(), deviation)
	}
	if uplink != nil && link.Attrs().ParentIndex != s.parentIndex(uplink) {
		c.add("device %q in %q is not on uplink %q", link.Attrs().Name, h.ns.Name(), uplink.Attrs().Name)
	}
}
