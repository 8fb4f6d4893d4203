// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/vishvananda/netlink"
)

// Create makes a device on the uplink inside the pod's namespace.
func (s stacked) Create(network Network, pod Pod) (out Attachment, err error) {
	defer wrap(&err, "create "+s.name()+" link")
	interior, err := s.validate(network, pod)
	if err != nil {
		return Attachment{}, err
	}
	host, inside, closeBoth, err := openSides(network, pod)
	if err != nil {
		return Attachment{}, err
	}
	defer closeBoth()
	uplink, err := s.uplink(host, network)
	if err != nil {
		return Attachment{}, err
	}
	own, err := s.find(host, uplink)
	if err != nil {
		return Attachment{}, err
	}
	var link netlink.Link
	if pod.Plugged {
		link, err = inside.link(pod.IfName)
	} else {
		link, err = s.add(host, inside, uplink, network.podAttrs(pod))
	}
	if err != nil {
		return Attachment{}, err
	}
	defer func() {
		if err != nil && !pod.Plugged {
			err = errors.Join(err, inside.remove(pod.IfName, s.kind()))
		}
	}()
	if err := interior.prepare(inside, link); err != nil {
		return Attachment{}, err
	}
	if err := interior.finish(inside, link); err != nil {
		return Attachment{}, err
	}
	if err := s.routeTo(host, own, s.hostRoutes(network, pod)); err != nil {
		return Attachment{}, err
	}
	return interior.complete(Attachment{
		IfName:    pod.IfName,
		IfIndex:   link.Attrs().Index,
		MAC:       macOf(link),
		Addresses: slices.Clone(pod.Addresses),
		NodeMAC:   macOf(own),
	}), nil
}

// podAttrs are the attributes of a pod's new device.
func (n Network) podAttrs(pod Pod) netlink.LinkAttrs {
	out := n.attrs(pod.IfName)
	out.HardwareAddr = pod.MAC
	return out
}

// hostRoutes are the host's routes to a pod. Over Ethernet the gateways' prefixes
// are enough, unless another router's network is the uplink's too: then the host may
// have the same prefix on the uplink, by which it reaches no pod.
func (s stacked) hostRoutes(network Network, pod Pod) []route {
	if !s.layer3() && len(network.Routers) == 0 {
		return nil
	}
	return podRoutes(network, pod)
}

// routeTo adds routes to a pod by the host's own device. If it fails, it has
// removed those that it added. A route that is there already was left by an
// earlier pod that nobody deleted: the kernel makes sure that no two pods on an
// uplink have one address.
func (s stacked) routeTo(host side, own netlink.Link, routes []route) error {
	var missing []route
	for _, r := range routes {
		has, err := host.hasRoute(own.Attrs().Index, r)
		if err != nil {
			return err
		}
		if !has {
			missing = append(missing, r)
		}
	}
	return host.addRoutes(own, missing)
}

// Check compares the uplink, the host's own device and the pod's.
func (s stacked) Check(network Network, pod Pod) (err error) {
	interior, err := s.validate(network, pod)
	if err != nil {
		return fmt.Errorf("check %s link: %w", s.name(), err)
	}
	host, inside, closeBoth, err := openSides(network, pod)
	if err != nil {
		return fmt.Errorf("check %s link: %w", s.name(), err)
	}
	defer closeBoth()
	var c checker
	uplink, err := s.uplink(host, network)
	if err != nil {
		c.add("%v", err)
	}
	want := s.slaveWanted(network)
	want.routes = s.hostRoutes(network, pod)
	want.settings = append(want.settings, forwarding()...)
	own := c.device(host, want)
	link := c.device(inside, interior.wanted(pod))
	s.compare(&c, host, own, uplink)
	s.compare(&c, inside, link, uplink)
	return c.result(s, pod)
}

// compare notes whether a device is not one of this mode on the uplink.
func (s stacked) compare(c *checker, in side, link, uplink netlink.Link) {
	if c.err != nil || link == nil {
		return
	}
	if says := s.deviation(link); says != "" {
		c.add("device %q in %q %s", link.Attrs().Name, in.ns.Name(), says)
	}
	if uplink != nil && link.Attrs().ParentIndex != s.parent(uplink) {
		c.add("device %q in %q is not on uplink %q", link.Attrs().Name, in.ns.Name(), uplink.Attrs().Name)
	}
}

// Delete deletes the pod's device, if the pod has a namespace still (the device
// goes with that), and the host's routes to it.
func (s stacked) Delete(network Network, pod Pod) (err error) {
	defer wrap(&err, "delete "+s.name()+" link")
	return errors.Join(s.deleteDevice(pod), s.deleteRoutes(network, pod))
}

func (s stacked) deleteDevice(pod Pod) error {
	if pod.Namespace == nil {
		return nil
	}
	inside, err := pod.openInside()
	if err != nil {
		return err
	}
	defer inside.Close()
	return inside.remove(pod.IfName, s.kind())
}

func (s stacked) deleteRoutes(network Network, pod Pod) error {
	routes := s.hostRoutes(network, pod)
	if len(routes) == 0 {
		return nil
	}
	host, err := network.openHost()
	if err != nil {
		return err
	}
	defer host.Close()
	own, err := host.link(s.slave())
	if errors.Is(err, fs.ErrNotExist) {
		return nil // and so are its routes
	}
	if err != nil {
		return err
	}
	return host.removeRoutes(own, routes)
}

func (s stacked) validate(network Network, pod Pod) (interior, error) {
	if err := s.validateNetwork(network); err != nil {
		return interior{}, err
	}
	if err := pod.validate(network); err != nil {
		return interior{}, err
	}
	if !s.ownMAC() {
		if err := pod.hasNoMAC(s.name()); err != nil {
			return interior{}, err
		}
	}
	out := interior{kind: s.kind(), mtu: network.mtu()}
	if !s.layer3() {
		out.shared = true
		return out.onGateways(network, pod)
	}
	for _, addr := range pod.Addresses {
		if _, ok := network.gateway(addr); !ok {
			return interior{}, noGateway(addr)
		}
	}
	out.layer3, out.addrs = true, pod.alone()
	return out.withRoutes(network, pod, false), pod.ValidateRoutes(network, false)
}
