// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"mustang/internal/rtnl"
)

type linkMode struct {
	name   string
	kind   string // of the pods' devices; empty if it depends on the network
	traits Traits
	needs  []requirement
	driver
}

// driver is the part that differs between link modes. Its networks and pods are valid.
type driver interface {
	// setup and teardown implement Setup and Teardown of Mode in the host's namespace.
	setup(host nsHandle, network Network) error
	teardown(host nsHandle, network Network) error
	create(s session) (Attachment, error)
	check(c *checker, s session)
	// remove deletes a pod's link, as far as it exists. If a device in the pod's namespace does not end with the host's
	// device, the session has that namespace, unless the pod is gone.
	remove(s session) error
}

// session is a pod of a network with open namespaces. A pod without a namespace has a handle without one.
type session struct {
	Network
	pod          Pod
	config       podConfig
	host, inside nsHandle
}

func (linkMode) sealed() {}

// Name implements Mode.
func (l linkMode) Name() string { return l.name }

// Traits implements Mode.
func (l linkMode) Traits() Traits { return l.traits }

// Probe implements Mode.
func (l linkMode) Probe() error { return probe(l.name, l.needs...) }

// Setup implements Mode.
func (l linkMode) Setup(network Network) (err error) {
	defer wrap(&err, "set up "+l.name+" network")
	if err := l.validateNetwork(network); err != nil {
		return err
	}
	host, err := network.openHost()
	if err != nil {
		return err
	}
	defer host.Close()
	defer host.undo.onError(&err)
	return l.setup(host, network)
}

// Teardown implements Mode.
func (l linkMode) Teardown(network Network) (err error) {
	defer wrap(&err, "tear down "+l.name+" network")
	host, err := network.openHost()
	if err != nil {
		return err
	}
	defer host.Close()
	return l.teardown(host, network)
}

// Create implements Mode.
func (l linkMode) Create(network Network, pod Pod) (out Attachment, err error) {
	defer wrap(&err, "create "+l.name+" link")
	err = l.open(network, pod, func(s session) (err error) {
		defer s.host.undo.onError(&err)
		if out, err = l.create(s); err == nil {
			out.Prefixes, out.MTU, out.Routes = slices.Clone(s.config.addrs), s.config.mtu, slices.Clone(s.config.routes)
		}
		return err
	})
	return out, err
}

// Check implements Mode.
func (l linkMode) Check(network Network, pod Pod) error {
	var c checker
	err := l.open(network, pod, func(s session) error {
		l.check(&c, s)
		return c.err
	})
	if err != nil {
		return fmt.Errorf("check %s link of pod %q: %w", l.name, pod.name(), err)
	}
	return c.result(l, pod)
}

// Delete implements Mode.
func (l linkMode) Delete(network Network, pod Pod) (err error) {
	defer wrap(&err, "delete "+l.name+" link")
	s, t := session{Network: network, pod: pod}, l.traits
	if s.host, err = network.openHost(); err != nil {
		return err
	}
	defer s.host.Close()
	if t.HostSide || t.Needs == NeedsOpenVSwitch {
		err = pod.validateHostIfName()
	}
	if err == nil && pod.Namespace != nil && (!t.HostSide || t.Needs == NeedsRelay) {
		if err = pod.validateIfName(); err == nil {
			s.inside, err = network.open(pod.Namespace)
		}
		defer s.inside.close()
	}
	if err != nil {
		return err
	}
	return l.remove(s)
}

func (l linkMode) open(network Network, pod Pod, do func(session) error) error {
	config, err := l.podConfig(network, pod)
	if err != nil {
		return err
	}
	s := session{Network: network, pod: pod, config: config}
	if s.host, err = network.open(network.Host); err != nil {
		return err
	}
	defer s.host.Close()
	if pod.Namespace != nil {
		if s.inside, err = network.open(pod.Namespace); err != nil {
			return err
		}
		defer s.inside.Close()
		s.inside.undo = s.host.undo
	}
	return do(s)
}

func (l linkMode) validateNetwork(n Network) error {
	err, t := n.validate(), l.traits
	switch {
	case err != nil:
		return err
	case !t.Switched && len(n.Routers) > 0:
		return fmt.Errorf("router %v: the only neighbour of pods of link mode %s is the host", n.Routers[0], l.name)
	case t.Needs == NeedsUplink:
		err = validateName("uplink", n.Uplink)
	case t.Bridge:
		err = cmp.Or(validateName("bridge", n.bridge()), n.VXLAN.validate())
		if err == nil && n.UplinkPort != "" {
			err = validateName("uplink port", n.UplinkPort)
		}
	}
	switch {
	case err != nil:
		return err
	case !t.Routed && len(n.Gateways) == 0 && n.UplinkPort == "" && !n.VXLAN.enabled():
		return errors.New("no gateways in the network")
	case t.Needs == NeedsOpenVSwitch && n.OVSDB == "":
		return errNoSwitch
	}
	return nil
}

func (l linkMode) podConfig(n Network, p Pod) (c podConfig, err error) {
	t := l.traits
	c = podConfig{kind: l.kind, mtu: n.mtu(), layer3: t.Layer3, switched: t.Switched, relayed: t.Needs == NeedsRelay}
	var hostName error
	if t.HostSide || t.Needs == NeedsOpenVSwitch {
		hostName = p.validateHostIfName()
	}
	if p.LinkOnly && t.DHCP {
		return c, cmp.Or(p.validateLinkOnly(n), hostName)
	}
	if err := l.validateNetwork(n); err != nil {
		return c, err
	}
	if t.GuestsOnly && p.Namespace != nil {
		return c, fmt.Errorf("the pod has a namespace: link mode %s is for VMs", l.name)
	}
	if err := cmp.Or(p.validate(n, t.Guests), hostName); err != nil {
		return c, err
	}
	if p.MAC != nil && (t.Layer3 || l.kind == "ipvlan") {
		return c, fmt.Errorf("link mode %s can't set the pod's MAC address %v: its devices have none of their own",
			l.name, p.MAC)
	}
	if t.Switched {
		err = c.addGateways(n, p)
	} else if c.addrs = hostPrefixes(p.Addresses...); !t.Layer3 {
		c.nextHops = linkNextHops(p)
	}
	for _, addr := range p.Addresses {
		if _, ok := n.gateway(addr); !ok && !t.Routed {
			return c, fmt.Errorf("no gateway of the family of the pod's address %v", addr)
		}
	}
	c.addRoutes(n, p)
	return c, cmp.Or(err, p.ValidateRoutes(n, t.Switched))
}

func (c *checker) bothEnds(t linkType, s session, outside deviceSpec) (ends linkEnds) {
	outside.name, outside.kind, outside.mtu = s.pod.HostIfName, t.kind, s.mtu()
	ends.host = c.device(s.host, outside)
	if s.inside.ns != nil {
		ends.pod = c.device(s.inside, s.config.spec(s.pod))
	}
	if t.check != nil {
		t.check(c, s, ends)
	}
	return ends
}

// podConfig is the configuration of a pod's own device, for Create and for Check.
type podConfig struct {
	kind  string
	mtu   int
	addrs []netip.Prefix
	// nextHops are the gateways for routes without a gateway, one per family. Layer 3 needs none: routes name the device.
	nextHops []netip.Addr
	routes   []Route
	layer3   bool
	switched bool // true if neighbours cache the pod's MAC address
	relayed  bool // true if the device lacks a carrier until a program opens it
}

// addGateways adds the pod's addresses with the prefix lengths of their gateways, and its next hops. Each address
// must be in a gateway's prefix, unless that prefix is a single address.
func (c *podConfig) addGateways(network Network, pod Pod) error {
	for _, addr := range pod.Addresses {
		gateway, ok := network.gateway(addr)
		switch {
		case !ok:
			continue
		case gateway.IsSingleIP():
			c.routes = append(c.routes, Route{Dst: gateway})
		case !gateway.Contains(addr):
			return fmt.Errorf("pod's address %v is not in the prefix of gateway %v", addr, gateway)
		}
		c.addrs = append(c.addrs, netip.PrefixFrom(addr, gateway.Bits()))
		if hop := network.nextHop(gateway); !slices.Contains(c.nextHops, hop) {
			c.nextHops = append(c.nextHops, hop)
		}
	}
	return nil
}

// addRoutes adds the pod's routes. Pod.Routes replace the mode's own routes to the same destinations.
func (c *podConfig) addRoutes(network Network, pod Pod) {
	custom := slices.DeleteFunc(slices.Clone(pod.Routes), func(r Route) bool {
		return pod.Secondary && r.IsDefault() && r.Priority == 0
	})
	for _, dst := range pod.destinations(network, c.switched) {
		if !slices.ContainsFunc(custom, func(r Route) bool { return r.Dst == dst }) {
			c.routes = append(c.routes, Route{Dst: dst, Via: c.nextHop(dst)})
		}
	}
	for _, r := range custom {
		if !r.Via.IsValid() && !r.OnLink || !c.switched {
			r.Via = c.nextHop(r.Dst)
		}
		r.OnLink = false // the kernel takes each next hop as a neighbour
		c.routes = append(c.routes, r)
	}
}

// nextHop returns the next hop of dst's family; invalid in layer 3.
func (c podConfig) nextHop(dst netip.Prefix) netip.Addr {
	for _, hop := range c.nextHops {
		if hop.Is4() == dst.Addr().Is4() {
			return hop
		}
	}
	return netip.Addr{}
}

func (c podConfig) settings(name string) []rtnl.Sysctl {
	if c.layer3 {
		return layer3Settings(name, c.addrs)
	}
	if c.switched {
		return append(deviceSettings(name, c.addrs), // announce the addresses whenever the MAC address is set
			rtnl.Sysctl{Key: "net/ipv4/conf/" + name + "/arp_notify", Value: "1"},
			rtnl.Sysctl{Key: "net/ipv6/conf/" + name + "/ndisc_notify", Value: "1"})
	}
	return deviceSettings(name, c.addrs)
}

func (c podConfig) spec(pod Pod) deviceSpec {
	return deviceSpec{
		name: pod.IfName, kind: c.kind, mtu: c.mtu, mac: pod.MAC, addrs: c.addrs, routes: c.routes,
		settings: c.settings(pod.IfName),
	}
}

// prepare prepares the pod's device. Routes follow in finish, when the device has a carrier.
func (c podConfig) prepare(h nsHandle, link netlink.Link) error {
	return h.prepare(link, c.settings(link.Attrs().Name), c.addrs, netlink.SCOPE_UNIVERSE)
}

// prepare configures a device that is down, and sets it up.
func (h nsHandle) prepare(link netlink.Link, settings []rtnl.Sysctl, addrs []netip.Prefix, scope netlink.Scope) error {
	if err := apply(h.ns, settings); err != nil {
		return err
	}
	if err := h.setUpOwn(link); err != nil {
		return err
	}
	for _, addr := range addrs {
		if err := h.addAddress(link, addr, scope); err != nil {
			return err
		}
	}
	return nil
}

// finish waits until the device can send, unless that depends on a relay, adds the
// pod's routes and announces its addresses.
func (c podConfig) finish(h nsHandle, link netlink.Link) error {
	if !c.relayed {
		if err := h.awaitCarrier(link); err != nil {
			return err
		}
	}
	if err := h.awaitLocal(link, c.addrs); err != nil {
		return err
	}
	if err := h.addRoutes(link, c.routes); err != nil {
		return err
	}
	if c.switched && !c.relayed && len(c.addrs) > 0 {
		return h.announce(link, c.addrs)
	}
	return nil
}

// announce announces that addrs are at the device's MAC address to all neighbours on its network. Otherwise,
// neighbours of an earlier pod with the same address would send to that pod's MAC address until their caches expire.
//
// The kernel does so when the device's MAC address is set, even to the same value, if the device has
// the sysctls for that. Where it can't be set (ipvlan), rtnl sends the packets. For ARP that takes a packet socket, and
// to close one the kernel waits for an RCU grace period (packet_release), some 10 ms.
func (h nsHandle) announce(link netlink.Link, addrs []netip.Prefix) error {
	if h.LinkSetHardwareAddr(link, macOf(link)) == nil {
		return nil
	}
	return rtnl.In(h.ns).Announce(link.Attrs().Name, rtnl.Addrs(addrs)...)
}
