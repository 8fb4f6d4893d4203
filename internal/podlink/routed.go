// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"net/netip"

	"github.com/vishvananda/netlink"

	"mustang/internal/rtnl"
)

// routed are the modes in which the host routes between pods: it has a route to the pod's addresses through its end of
// the link. On Ethernet, that end answers for all others (proxy ARP); in layer 3 a pod's routes need no next hop.
type routed struct {
	linkType
	layer3 bool // the ends lack neighbours (IFF_NOARP)
}

func newRouted(name string, ends linkType, layer3 bool, rank int) linkMode {
	traits := Traits{
		Needs: ends.needs(), HostSide: true, Routed: true, Layer3: layer3, BigTCP: !ends.relayed, Delivery: ends.delivery,
		AutoRank: rank, ResultLink: name,
	}
	return linkMode{name, ends.kind, traits, []requirement{ends.requirement}, routed{ends, layer3}}
}

func (routed) setup(host nsHandle, network Network) error {
	lo, err := host.link("lo")
	if err != nil {
		return err
	}
	return host.setUpHostDevice(lo, deviceSpec{addrs: network.gatewayAddrs()}, false)
}

func (routed) teardown(host nsHandle, network Network) error {
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

func (r routed) create(s session) (out Attachment, err error) {
	ends, err := r.add(s)
	if err != nil {
		return out, err
	}
	if err := s.host.prepare(ends.host, r.hostSettings(s.pod), r.hostAddrs(s.pod), netlink.SCOPE_LINK); err != nil {
		return out, err
	}
	if err := r.configure(s, ends, func() error { return nil }); err != nil {
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

func (r routed) check(c *checker, s session) {
	c.device(s.host, deviceSpec{
		name: "lo", kind: "loopback", addrs: s.gatewayAddrs(), settings: forwardingSettings(s.Gateways),
	})
	c.bothEnds(r.linkType, s, deviceSpec{
		addrs: r.hostAddrs(s.pod), routes: s.pod.hostRoutes(s.Network), settings: r.hostSettings(s.pod),
	})
}

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
