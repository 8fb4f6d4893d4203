// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// routed is the modes that route: the host has nothing but a route to the pod's
// addresses on its end of the link. Where the link is Ethernet, that end answers
// for every other address; in layer 3 the pod's routes need no next hop.
type routed struct {
	name   string
	wiring wiring
	layer3 bool // the ends have no neighbours (IFF_NOARP)
}

func (routed) sealed() {}

// Name implements Mode.
func (r routed) Name() string { return r.name }

// HostSide is true: the link has an end on the host.
func (routed) HostSide() bool { return true }

// Routed is true: pods have nothing but the host in common.
func (routed) Routed() bool { return true }

// Switched is false: the host is the only neighbour.
func (routed) Switched() bool { return false }

// Needs implements Mode.
func (r routed) Needs() Need { return r.wiring.needs() }

// Probe creates the ends of a link.
func (r routed) Probe() error { return probe(r.name, r.wiring.requires()) }

// Setup gives the host the gateways' addresses, on its loopback device, and
// switches forwarding on.
func (r routed) Setup(network Network) (err error) {
	defer wrap(&err, "set up "+r.name+" network")
	host, lo, err := r.loopback(network)
	if err != nil {
		return err
	}
	defer host.Close()
	if err := host.upIfDown(lo); err != nil {
		return err
	}
	undo, err := host.addGateways(lo, alone(network.Gateways))
	if err != nil {
		return err
	}
	if err := apply(network.Host, forwarding()); err != nil {
		return errors.Join(err, undo())
	}
	return nil
}

// Teardown takes the gateways' addresses from the host's loopback device.
func (r routed) Teardown(network Network) (err error) {
	defer wrap(&err, "tear down "+r.name+" network")
	host, lo, err := r.loopback(network)
	if err != nil {
		return err
	}
	defer host.Close()
	for _, addr := range alone(network.Gateways) {
		if err := host.removeAddress(lo, addr); err != nil {
			return err
		}
	}
	return nil
}

// loopback opens the host of a valid network, and finds its loopback device.
func (r routed) loopback(network Network) (side, netlink.Link, error) {
	err := network.validate()
	if err == nil {
		err = network.hasNoRouters(r.name)
	}
	if err != nil {
		return side{}, nil, err
	}
	host, err := openSide(network.Host)
	if err != nil {
		return side{}, nil, err
	}
	lo, err := host.link("lo")
	if err != nil {
		host.Close()
		return side{}, nil, err
	}
	return host, lo, nil
}

// Create makes both ends, and the routes on them.
func (r routed) Create(network Network, pod Pod) (out Attachment, err error) {
	defer wrap(&err, "create "+r.name+" link")
	if err := r.validate(network, pod); err != nil {
		return Attachment{}, err
	}
	host, inside, closeBoth, err := openSides(network, pod)
	if err != nil {
		return Attachment{}, err
	}
	defer closeBoth()
	ends, err := r.wiring.add(host, inside, network, pod)
	if err != nil {
		return Attachment{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeEnds(r.wiring, host, inside, pod))
		}
	}()
	if err := r.prepareHost(host, ends.host, pod); err != nil {
		return Attachment{}, err
	}
	interior := r.interior(network, pod)
	if err := interior.prepare(inside, ends.pod); err != nil {
		return Attachment{}, err
	}
	if !interior.relayed {
		if err := host.awaitCarrier(ends.host); err != nil {
			return Attachment{}, err
		}
	}
	if err := interior.finish(inside, ends.pod); err != nil {
		return Attachment{}, err
	}
	if err := host.awaitLocal(ends.host, r.hostAddrs(pod)); err != nil {
		return Attachment{}, err
	}
	if err := host.addRoutes(ends.host, podRoutes(network, pod)); err != nil {
		return Attachment{}, err
	}
	return interior.complete(ends.attachment(pod, macOf(ends.host))), nil
}

// validate reports bad input.
func (r routed) validate(network Network, pod Pod) error {
	if err := pod.validateEnds(network); err != nil {
		return err
	}
	if err := network.hasNoRouters(r.name); err != nil {
		return err
	}
	if r.layer3 {
		if err := pod.hasNoMAC(r.name); err != nil {
			return err
		}
	}
	return pod.ValidateRoutes(network, false)
}

// prepareHost configures the host's end and sets it up.
func (r routed) prepareHost(host side, link netlink.Link, pod Pod) error {
	if err := apply(host.ns, r.hostSettings(pod)); err != nil {
		return err
	}
	if err := host.up(link); err != nil {
		return err
	}
	for _, addr := range r.hostAddrs(pod) {
		if _, err := host.addAddress(link, addr, netlink.SCOPE_LINK); err != nil {
			return err
		}
	}
	return nil
}

// Check compares both ends, their routes, and what Setup made.
func (r routed) Check(network Network, pod Pod) (err error) {
	if err := r.validate(network, pod); err != nil {
		return fmt.Errorf("check %s link: %w", r.name, err)
	}
	host, inside, closeBoth, err := openSides(network, pod)
	if err != nil {
		return fmt.Errorf("check %s link: %w", r.name, err)
	}
	defer closeBoth()
	var c checker
	c.device(host, wanted{name: "lo", kind: "loopback", addrs: alone(network.Gateways), settings: forwarding()})
	hostLink := c.device(host, wanted{
		name: pod.HostIfName, kind: r.wiring.kind(), mtu: network.mtu(),
		addrs: r.hostAddrs(pod), routes: podRoutes(network, pod), settings: r.hostSettings(pod),
	})
	podLink := c.device(inside, r.interior(network, pod).wanted(pod))
	r.wiring.check(&c, host, inside, pair{hostLink, podLink})
	return c.result(r, pod)
}

// Delete removes both ends.
func (r routed) Delete(network Network, pod Pod) (err error) {
	defer wrap(&err, "delete "+r.name+" link")
	return deleteEnds(r.wiring, network, pod)
}
