// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// Plugger is a mode whose pods can ask their network for addresses (DHCP): each has a
// MAC address of its own, by which it is answered before it has any.
type Plugger interface {
	Mode
	// Plug makes the pod's device as Create does, ready to send, without addresses and
	// routes: Create adds those, for a Pod that says that it is Plugged. Of the network it
	// needs the bridge or the uplink, which must be there, and no gateways. If it fails
	// there is no device.
	Plug(network Network, pod Pod) error
}

// validatePlug reports what is wrong with a pod that has no addresses yet.
func (p Pod) validatePlug(network Network) error {
	if err := network.validate(); err != nil {
		return err
	}
	if len(p.Addresses) > 0 {
		return errors.New("the pod has addresses before it is plugged in")
	}
	if err := p.validateMAC(); err != nil {
		return err
	}
	return p.validateInside(network)
}

// ownMACs is a stacked mode whose devices have a MAC address each.
type ownMACs struct{ stacked }

// Plug makes a device on the uplink inside the pod's namespace.
func (s ownMACs) Plug(network Network, pod Pod) (err error) {
	defer wrap(&err, "plug into "+s.name()+" network")
	if err := pod.validatePlug(network); err != nil {
		return err
	}
	host, inside, closeBoth, err := openSides(network, pod)
	if err != nil {
		return err
	}
	defer closeBoth()
	uplink, err := s.uplink(host, network)
	if err != nil {
		return err
	}
	link, err := s.add(host, inside, uplink, network.podAttrs(pod))
	if err != nil {
		return err
	}
	interior := interior{kind: s.kind(), mtu: network.mtu(), shared: true}
	if err := interior.ready(inside, link); err != nil {
		return errors.Join(err, inside.remove(pod.IfName, s.kind()))
	}
	return nil
}

// ports is a bridged mode whose pods' ends the kernel makes.
type ports struct{ bridged }

// Plug makes both ends, and the one on the host a port of the bridge.
func (b ports) Plug(network Network, pod Pod) (err error) {
	defer wrap(&err, "plug into "+b.name+" network")
	if err := pod.validatePlug(network); err != nil {
		return err
	}
	if err := pod.validateHostIfName(); err != nil {
		return err
	}
	host, inside, closeBoth, err := openSides(network, pod)
	if err != nil {
		return err
	}
	defer closeBoth()
	ends, master, err := b.join(host, inside, network, pod)
	if err != nil {
		return err
	}
	interior := interior{kind: b.wiring.kind(), mtu: network.mtu(), shared: true}
	err = interior.ready(inside, ends.pod)
	if err == nil {
		err = host.awaitPort(ends.host, master)
	}
	if err != nil {
		return errors.Join(err, removeEnds(b.wiring, host, inside, pod))
	}
	return nil
}

// ready configures a device without addresses, and sets it up.
func (i interior) ready(s side, link netlink.Link) error {
	if err := i.prepare(s, link); err != nil {
		return err
	}
	return s.awaitCarrier(link)
}
