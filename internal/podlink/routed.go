// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"cmp"
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
func newVeth() Mode { return linkMode{routed{name: "veth", linkType: veth(), autoRank: 1}} }

// newNetkit routes over netkit devices in layer 3 mode, the kernel's default.
func newNetkit() Mode {
	ends := netkitMode(netlink.NETKIT_MODE_L3).linkType()
	return linkMode{routed{name: "netkit", linkType: ends, layer3: true, autoRank: 2}}
}

// newNetkitL2 routes over netkit devices with Ethernet, like newVeth.
func newNetkitL2() Mode {
	return linkMode{routed{name: "netkit-l2", linkType: netkitMode(netlink.NETKIT_MODE_L2).linkType()}}
}

// newTun routes over TUN devices.
func newTun() Mode {
	return linkMode{routed{name: "tun", linkType: tunLayer.linkType(), layer3: true}}
}

// Name implements Mode.
func (r routed) Name() string { return r.name }

// Traits implements Mode.
func (r routed) Traits() Traits {
	return Traits{
		Needs: r.linkType.needs(), HostSide: true, Routed: true, Layer3: r.layer3, BigTCP: !r.linkType.relayed,
		Delivery: r.linkType.delivery, AutoRank: r.autoRank, ResultLink: r.name,
	}
}

// Probe creates the ends of a link.
func (r routed) Probe() error { return probe(r.name, r.linkType.requirement) }

func (r routed) validateNetwork(network Network) error {
	return cmp.Or(network.validate(), network.rejectRouters(r.name))
}

// setup adds the gateways' addresses to the host's loopback device and enables forwarding.
func (routed) setup(host nsHandle, network Network) error {
	lo, err := host.link("lo")
	if err != nil {
		return err
	}
	return host.setUpHostDevice(lo, deviceSpec{addrs: network.gatewayAddrs()}, false)
}

// teardown removes the gateways' addresses from the host's loopback device.
func (r routed) teardown(host nsHandle, network Network) error {
	if err := r.validateNetwork(network); err != nil {
		return err
	}
	lo, err := host.link("lo")
	if err != nil {
		return err
	}
	for _, addr := range network.gatewayAddrs() {
		if err := host.removeAddress(lo, addr); err != nil {
			return err
		}
	}
	return nil
}

// create creates both ends and the routes through them.
func (r routed) create(s session) (out Attachment, err error) {
	ends, err := r.linkType.add(s)
	if err != nil {
		return out, err
	}
	if err := r.prepareHost(s.host, ends.host, s.pod); err != nil {
		return out, err
	}
	if err := r.linkType.configure(s, ends, func() error { return nil }); err != nil {
		return out, err
	}
	if err := s.host.awaitLocal(ends.host, r.hostAddrs(s.pod)); err != nil {
		return out, err
	}
	if err := s.host.addRoutes(ends.host, s.pod.hostRoutes(s.Network)); err != nil {
		return out, err
	}
	return s.pod.attachment(ends, macOf(ends.host)), nil
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
		if err := host.addAddress(link, addr, netlink.SCOPE_LINK); err != nil {
			return err
		}
	}
	return nil
}

func (r routed) check(c *checker, s session) {
	c.device(s.host, deviceSpec{
		name: "lo", kind: "loopback", addrs: s.gatewayAddrs(), settings: forwardingSettings(s.Gateways),
	})
	c.bothEnds(r.linkType, s, deviceSpec{
		addrs: r.hostAddrs(s.pod), routes: s.pod.hostRoutes(s.Network), settings: r.hostSettings(s.pod),
	})
}

func (r routed) remove(network Network, pod Pod) error { return r.linkType.remove(network, pod) }

func (r routed) podConfig(network Network, pod Pod) (podConfig, error) {
	out := podConfig{
		kind: r.linkType.kind, mtu: network.mtu(), addrs: hostPrefixes(pod.Addresses...),
		relayed: r.linkType.relayed, layer3: r.layer3,
	}
	err := cmp.Or(pod.validateEnds(network, false), network.rejectRouters(r.name))
	if err == nil && r.layer3 {
		err = pod.rejectMAC(r.name)
	}
	if err != nil {
		return out, err
	}
	if !r.layer3 {
		out.nextHops = linkNextHops(pod)
	}
	return out.withRoutes(network, pod, false), pod.ValidateRoutes(network, false)
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
