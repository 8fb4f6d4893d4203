// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// vethHops returns the next hops of a pod in mode veth, one for each family that
// the pod has. Every host end has the same, so that no pod needs one of its own.
func vethHops(pod Pod) []netip.Addr {
	hops := map[bool]netip.Addr{
		true:  netip.AddrFrom4([4]byte{169, 254, 1, 1}),
		false: netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 15: 1}),
	}
	var out []netip.Addr
	for _, addr := range pod.Addresses {
		if hop := hops[addr.Is4()]; !slices.Contains(out, hop) {
			out = append(out, hop)
		}
	}
	return out
}

// veth routes: each pod has a veth pair with nothing but a route to the pod's
// addresses on the host's end, which answers for every other address.
type veth struct{}

func (veth) sealed() {}

// Name implements Mode.
func (veth) Name() string { return "veth" }

// HostSide is true: the pair has an end on the host.
func (veth) HostSide() bool { return true }

// Needs implements Mode.
func (veth) Needs() Need { return NeedsNothing }

// Probe creates a veth pair.
func (veth) Probe() error { return probe("veth", needsVeth()) }

// Setup gives the host the gateways' addresses, on its loopback device, and
// switches forwarding on.
func (v veth) Setup(network Network) (err error) {
	defer wrap(&err, "set up veth network")
	if err := network.validate(); err != nil {
		return err
	}
	host, err := openSide(network.Host)
	if err != nil {
		return err
	}
	defer host.Close()
	lo, err := host.link("lo")
	if err != nil {
		return err
	}
	if err := host.up(lo); err != nil {
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
func (v veth) Teardown(network Network) (err error) {
	defer wrap(&err, "tear down veth network")
	if err := network.validate(); err != nil {
		return err
	}
	host, err := openSide(network.Host)
	if err != nil {
		return err
	}
	defer host.Close()
	lo, err := host.link("lo")
	if err != nil {
		return err
	}
	for _, addr := range alone(network.Gateways) {
		if err := host.removeAddress(lo, addr); err != nil {
			return err
		}
	}
	return nil
}

// Create makes the pair, and routes on both of its ends.
func (v veth) Create(network Network, pod Pod) (out Attachment, err error) {
	defer wrap(&err, "create veth link")
	if err := v.validate(network, pod); err != nil {
		return Attachment{}, err
	}
	host, inside, closeBoth, err := openSides(network, pod)
	if err != nil {
		return Attachment{}, err
	}
	defer closeBoth()
	pair, err := addVeth(host, inside, network, pod)
	if err != nil {
		return Attachment{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, host.remove(pod.HostIfName, "veth"))
		}
	}()
	if err := v.exterior(host, pair.host, pod); err != nil {
		return Attachment{}, err
	}
	interior := v.interior(network, pod)
	if err := interior.prepare(inside, pair.pod); err != nil {
		return Attachment{}, err
	}
	if err := host.awaitCarrier(pair.host); err != nil {
		return Attachment{}, err
	}
	if err := interior.finish(inside, pair.pod); err != nil {
		return Attachment{}, err
	}
	for _, r := range v.hostRoutes(network, pod) {
		if err := host.addRoute(pair.host, r); err != nil {
			return Attachment{}, err
		}
	}
	return pair.attachment(pod, pair.host.Attrs().HardwareAddr), nil
}

// exterior configures the host's end and sets it up.
func (v veth) exterior(host side, link netlink.Link, pod Pod) error {
	if err := apply(host.ns, v.hostSettings(pod)); err != nil {
		return err
	}
	if err := host.up(link); err != nil {
		return err
	}
	for _, addr := range v.hostAddrs(pod) {
		if _, err := host.addAddress(link, addr, netlink.SCOPE_LINK); err != nil {
			return err
		}
	}
	return nil
}

func (v veth) hostSettings(pod Pod) []setting {
	return append(device(pod.HostIfName, v.hostAddrs(pod)),
		setting{"net/ipv4/conf/" + pod.HostIfName + "/proxy_arp", "1"},
		setting{"net/ipv4/neigh/" + pod.HostIfName + "/proxy_delay", "0"})
}

// hostAddrs are the pod's next hops, as the host's end has them.
func (veth) hostAddrs(pod Pod) []netip.Prefix {
	var addrs []netip.Prefix
	for _, hop := range vethHops(pod) {
		bits := 64
		if hop.Is4() {
			bits = 32
		}
		addrs = append(addrs, netip.PrefixFrom(hop, bits))
	}
	return addrs
}

// hostRoutes lead to the pod. The host's own packets come from its gateway
// address.
func (veth) hostRoutes(network Network, pod Pod) []route {
	var routes []route
	for _, addr := range pod.Addresses {
		gateway, _ := network.gateway(addr)
		routes = append(routes, route{dst: single(addr), src: gateway.Addr()})
	}
	return routes
}

func (veth) interior(network Network, pod Pod) interior {
	out := interior{kind: "veth", mtu: network.mtu(), hops: vethHops(pod)}
	for _, addr := range pod.Addresses {
		out.addrs = append(out.addrs, single(addr))
	}
	return out
}

// Check compares both ends, their routes, and what Setup made.
func (v veth) Check(network Network, pod Pod) (err error) {
	if err := v.validate(network, pod); err != nil {
		return fmt.Errorf("check veth link: %w", err)
	}
	host, inside, closeBoth, err := openSides(network, pod)
	if err != nil {
		return fmt.Errorf("check veth link: %w", err)
	}
	defer closeBoth()
	var c checker
	c.device(host, wanted{name: "lo", kind: "loopback", addrs: alone(network.Gateways), settings: forwarding()})
	c.pair(host, inside, wanted{
		name: pod.HostIfName, kind: "veth", mtu: network.mtu(),
		addrs: v.hostAddrs(pod), routes: v.hostRoutes(network, pod), settings: v.hostSettings(pod),
	}, v.interior(network, pod).wanted(pod))
	return c.result(v, pod)
}

// Delete removes the pair by its end on the host.
func (v veth) Delete(network Network, pod Pod) (err error) {
	defer wrap(&err, "delete veth link")
	return deleteVeth(network, pod)
}

// validate reports bad input before anything is changed.
func (veth) validate(network Network, pod Pod) error {
	if err := pod.validate(network); err != nil {
		return err
	}
	if err := validateName(pod.HostIfName); err != nil {
		return fmt.Errorf("host's interface: %w", err)
	}
	return nil
}

// wrap says what was tried, if err is an error.
func wrap(err *error, doing string) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", doing, *err)
	}
}

// macOf reads a device's address as the kernel has it.
func macOf(link netlink.Link) net.HardwareAddr { return link.Attrs().HardwareAddr }
