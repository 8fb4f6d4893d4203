// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"mustang/internal/rtnl"
)

// routed are the modes in which the host routes between pods: it has a route to the
// pod's addresses through its end of the link. On Ethernet, that end answers for all
// other addresses (proxy ARP); in layer 3 the pod's routes need no next hop.
type routed struct {
	name     string
	linkType linkType
	layer3   bool // the ends have no neighbours (IFF_NOARP)
	autoRank int
}

// newVeth routes over veth pairs.
func newVeth() Mode { return routed{name: "veth", linkType: vethPair{}, autoRank: 1} }

// newNetkit routes over netkit devices in layer 3 mode, the kernel's default.
func newNetkit() Mode {
	return routed{name: "netkit", linkType: netkitPair{mode: netlink.NETKIT_MODE_L3}, layer3: true, autoRank: 2}
}

// newNetkitL2 routes over netkit devices with Ethernet, like newVeth.
func newNetkitL2() Mode {
	return routed{name: "netkit-l2", linkType: netkitPair{mode: netlink.NETKIT_MODE_L2}}
}

// newTun routes over TUN devices.
func newTun() Mode {
	return routed{name: "tun", linkType: tuntapEnds{mode: netlink.TUNTAP_MODE_TUN}, layer3: true}
}

func (routed) sealed() {}

// Name implements Mode.
func (r routed) Name() string { return r.name }

// Traits implements Mode.
func (r routed) Traits() Traits {
	return Traits{
		Needs: r.linkType.needs(), HostSide: true, Routed: true, Layer3: r.layer3, BigTCP: !isRelayed(r.linkType),
		Delivery: r.linkType.delivery(), AutoRank: r.autoRank, ResultLink: r.name,
	}
}

// Probe creates the ends of a link.
func (r routed) Probe() error { return probe(r.name, r.linkType.requirement()) }

// Setup adds the gateways' addresses to the host's loopback device and enables forwarding.
func (r routed) Setup(network Network) (err error) {
	defer wrap(&err, "set up "+r.name+" network")
	host, lo, err := r.openLoopback(network)
	if err != nil {
		return err
	}
	defer host.Close()
	if err := host.ensureUp(lo); err != nil {
		return err
	}
	undo, err := host.addGateways(lo, network.gatewayAddrs())
	if err != nil {
		return err
	}
	if err := apply(network.Host, forwardingSettings(network.Gateways)); err != nil {
		return errors.Join(err, undo())
	}
	return nil
}

// Teardown removes the gateways' addresses from the host's loopback device.
func (r routed) Teardown(network Network) (err error) {
	defer wrap(&err, "tear down "+r.name+" network")
	host, lo, err := r.openLoopback(network)
	if err != nil {
		return err
	}
	defer host.Close()
	for _, addr := range network.gatewayAddrs() {
		if err := host.removeAddress(lo, addr); err != nil {
			return err
		}
	}
	return nil
}

// openLoopback opens the host of a valid network, and finds its loopback device.
func (r routed) openLoopback(network Network) (nsHandle, netlink.Link, error) {
	err := network.validate()
	if err == nil {
		err = network.rejectRouters(r.name)
	}
	if err != nil {
		return nsHandle{}, nil, err
	}
	host, err := network.openHost()
	if err != nil {
		return nsHandle{}, nil, err
	}
	lo, err := host.link("lo")
	if err != nil {
		host.Close()
		return nsHandle{}, nil, err
	}
	return host, lo, nil
}

// Create creates both ends and the routes through them.
func (r routed) Create(network Network, pod Pod) (out Attachment, err error) {
	defer wrap(&err, "create "+r.name+" link")
	if err := r.validate(network, pod); err != nil {
		return Attachment{}, err
	}
	host, inside, closeBoth, err := openBoth(network, pod)
	if err != nil {
		return Attachment{}, err
	}
	defer closeBoth()
	ends, err := r.linkType.add(host, inside, network, pod)
	if err != nil {
		return Attachment{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeEnds(r.linkType, host, inside, pod))
		}
	}()
	if err := r.prepareHost(host, ends.host, pod); err != nil {
		return Attachment{}, err
	}
	config := r.podConfig(network, pod)
	if err := config.prepare(inside, ends.pod); err != nil {
		return Attachment{}, err
	}
	if !config.relayed {
		if err := host.awaitCarrier(ends.host); err != nil {
			return Attachment{}, err
		}
	}
	if err := config.finish(inside, ends.pod); err != nil {
		return Attachment{}, err
	}
	if err := host.awaitLocal(ends.host, r.hostAddrs(pod)); err != nil {
		return Attachment{}, err
	}
	if err := host.addRoutes(ends.host, pod.hostRoutes(network)); err != nil {
		return Attachment{}, err
	}
	return config.complete(pod.attachment(ends, macOf(ends.host))), nil
}

func (r routed) validate(network Network, pod Pod) error {
	if err := pod.validateEnds(network); err != nil {
		return err
	}
	if err := network.rejectRouters(r.name); err != nil {
		return err
	}
	if r.layer3 {
		if err := pod.rejectMAC(r.name); err != nil {
			return err
		}
	}
	return pod.ValidateRoutes(network, false)
}

// prepareHost configures the host's end and sets it up.
func (r routed) prepareHost(host nsHandle, link netlink.Link, pod Pod) error {
	if err := apply(host.ns, r.hostSettings(pod)); err != nil {
		return err
	}
	if err := host.setUpOwn(link); err != nil {
		return err
	}
	for _, addr := range r.hostAddrs(pod) {
		if _, err := host.addAddress(link, addr, netlink.SCOPE_LINK); err != nil {
			return err
		}
	}
	return nil
}

// Check checks both ends, their routes, and the result of Setup.
func (r routed) Check(network Network, pod Pod) (err error) {
	if err := r.validate(network, pod); err != nil {
		return checkError(err, r, pod)
	}
	host, inside, closeBoth, err := openBoth(network, pod)
	if err != nil {
		return checkError(err, r, pod)
	}
	defer closeBoth()
	var c checker
	c.device(host, deviceSpec{name: "lo", kind: "loopback", addrs: network.gatewayAddrs(), settings: forwardingSettings(network.Gateways)})
	var ends linkEnds
	ends.host = c.device(host, deviceSpec{
		name: pod.HostIfName, kind: r.linkType.kind(), mtu: network.mtu(),
		addrs: r.hostAddrs(pod), routes: pod.hostRoutes(network), settings: r.hostSettings(pod),
	})
	ends.pod = c.device(inside, r.podConfig(network, pod).spec(pod))
	r.linkType.check(&c, host, inside, ends)
	return c.result(r, pod)
}

// Delete deletes both ends.
func (r routed) Delete(network Network, pod Pod) (err error) {
	defer wrap(&err, "delete "+r.name+" link")
	return deleteEnds(r.linkType, network, pod)
}

// podConfig is the configuration of the pod's end.
func (r routed) podConfig(network Network, pod Pod) podConfig {
	out := podConfig{
		kind: r.linkType.kind(), mtu: network.mtu(), addrs: hostPrefixes(pod.Addresses...),
		relayed: isRelayed(r.linkType), layer3: r.layer3,
	}
	if !r.layer3 {
		out.nextHops = linkNextHops(pod)
	}
	return out.withRoutes(network, pod, false)
}

// linkNextHops returns the next hops of a pod on Ethernet, one for each family of its
// addresses. They are the same on all hosts and links.
func linkNextHops(pod Pod) []netip.Addr {
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

// hostAddrs are the pod's next hops as addresses of the host's end.
func (r routed) hostAddrs(pod Pod) []netip.Prefix {
	if r.layer3 {
		return nil
	}
	var addrs []netip.Prefix
	for _, hop := range linkNextHops(pod) {
		bits := 64
		if hop.Is4() {
			bits = 32
		}
		addrs = append(addrs, netip.PrefixFrom(hop, bits))
	}
	return addrs
}

func (r routed) hostSettings(pod Pod) []rtnl.Sysctl {
	if r.layer3 {
		return layer3Settings(pod.HostIfName, hostPrefixes(pod.Addresses...))
	}
	return append(deviceSettings(pod.HostIfName, r.hostAddrs(pod)),
		rtnl.Sysctl{Key: "net/ipv4/conf/" + pod.HostIfName + "/proxy_arp", Value: "1"},
		rtnl.Sysctl{Key: "net/ipv4/neigh/" + pod.HostIfName + "/proxy_delay", Value: "0"})
}
