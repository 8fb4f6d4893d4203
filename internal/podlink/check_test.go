// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// deviation is a change to a pod's link that Check must notice.
type deviation struct {
	name  string
	modes []string // nil means all
	spoil func(t *testing.T, f *fixture)
	says  string
}

func inPod(change func(s nsHandle, link netlink.Link) error) func(*testing.T, *fixture) {
	return func(t *testing.T, f *fixture) { withLink(t, f.pods[0].Namespace, "eth0", change) }
}

func inHost(name string, change func(s nsHandle, link netlink.Link) error) func(*testing.T, *fixture) {
	return func(t *testing.T, f *fixture) { withLink(t, f.network.Host, name, change) }
}

func withLink(t *testing.T, ns *netns.Namespace, name string, change func(s nsHandle, link netlink.Link) error) {
	t.Helper()
	withHandle(t, ns, func(s nsHandle) error {
		link, err := s.link(name)
		if err != nil {
			return err
		}
		return change(s, link)
	})
}

func removeAddr(addr string) func(s nsHandle, link netlink.Link) error {
	return func(s nsHandle, link netlink.Link) error { return s.removeAddress(link, netip.MustParsePrefix(addr)) }
}

func removeRoute(r Route) func(s nsHandle, link netlink.Link) error {
	return func(s nsHandle, link netlink.Link) error { return s.RouteDel(r.netlink(link.Attrs().Index)) }
}

func setSysctl(host bool, key, value string) func(*testing.T, *fixture) {
	return func(t *testing.T, f *fixture) {
		ns, own := f.pods[0].Namespace, strings.Replace(key, "/eth0/", "/"+f.links[0].IfName+"/", 1)
		if host {
			ns, own = f.network.Host, key
		}
		testkit.Succeed(t, rtnl.In(ns).SetSysctl(own, value))
	}
}

func down(s nsHandle, link netlink.Link) error { return s.LinkSetDown(link) }

func release(s nsHandle, link netlink.Link) error { return s.LinkSetNoMaster(link) }

func smaller(s nsHandle, link netlink.Link) error { return s.LinkSetMTU(link, 1400) }

// unlink deletes a device. The kernel does not delete devices of Open vSwitch's kernel datapath; these lose the name
// for look-ups.
func unlink(s nsHandle, link netlink.Link) error {
	err := s.LinkDel(link)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return s.LinkDelAltName(link, "eth0")
	}
	return err
}

func deviationsOfAll() []deviation {
	return []deviation{
		{"pod's device is missing", nil, inPod(unlink), `device "eth0" is missing`},
		{"pod's device is down", nil, inPod(down), "is not up"},
		{"pod's MTU", nil, inPod(smaller), "has MTU 1400, not 1500"},
		{"pod's accept_ra", nil, setSysctl(false, "net/ipv6/conf/eth0/accept_ra", "1"), "/accept_ra in"},
		{"forwarding is off", nil, setSysctl(true, "net/ipv4/ip_forward", "0"), "net/ipv4/ip_forward in"},
		{"IPv6 forwarding is off", nil, setSysctl(true, "net/ipv6/conf/all/forwarding", "0"), "conf/all/forwarding in"},
	}
}

func deviationsOfRoutes() []deviation {
	v4, v6 := netip.MustParseAddr("169.254.1.1"), netip.MustParseAddr("fe80::1")
	all := append(allRouted(), subinterfacesInLayer3()...)
	to4, to6 := Route{Dst: netip.MustParsePrefix("192.168.10.10/32")}, Route{Dst: netip.MustParsePrefix("fd00:10::10/128")}
	return []deviation{
		{"address", all, inPod(removeAddr("192.168.10.10/32")), "lacks address 192.168.10.10/32"},
		{"IPv6 address", all, inPod(removeAddr("fd00:10::10/128")), "lacks address fd00:10::10/128"},
		{"default route", routedByEthernet(), inPod(removeRoute(defaultRoute(v4))), "default route via 169.254.1.1"},
		{"IPv6 default route", routedByEthernet(), inPod(removeRoute(defaultRoute(v6))), "default route via fe80::1"},
		{"default route", allInLayer3(), inPod(removeRoute(Route{Dst: defaultPrefix(v4)})),
			`default route through device "eth0" is missing`},
		{"IPv6 default route", allInLayer3(), inPod(removeRoute(Route{Dst: defaultPrefix(v6)})),
			"default route through device"},
		{"pod's link-local address", allInLayer3(), setSysctl(false, "net/ipv6/conf/eth0/addr_gen_mode", "0"),
			"addr_gen_mode in"},
		{"host's device is down", allRouted(), inHost("msta", down), `device "msta" in`},
		{"host route", allRouted(), inHost("msta", removeRoute(to4)), "route to 192.168.10.10/32"},
		{"IPv6 host route", allRouted(), inHost("msta", removeRoute(to6)), "route to fd00:10::10/128"},
		{"host route", subinterfacesInLayer3(), inHost(IPVLANHostDevice, removeRoute(to4)), "route to 192.168.10.10/32"},
		{"IPv6 host route", subinterfacesInLayer3(), inHost(IPVLANHostDevice, removeRoute(to6)), "route to fd00:10::10/128"},
		{"next hop", routedByEthernet(), inHost("msta", removeAddr("169.254.1.1/32")), "lacks address 169.254.1.1/32"},
		{"proxy ARP", routedByEthernet(), setSysctl(true, "net/ipv4/conf/msta/proxy_arp", "0"), "msta/proxy_arp in"},
		{"proxy delay", routedByEthernet(), setSysctl(true, "net/ipv4/neigh/msta/proxy_delay", "80"), "msta/proxy_delay in"},
		{"gateway", allRouted(), inHost("lo", removeAddr("192.168.10.1/32")), "lacks address 192.168.10.1/32"},
		{"gateway", subinterfacesInLayer3(), inHost(IPVLANHostDevice, removeAddr("192.168.10.1/32")),
			"lacks address 192.168.10.1/32"},
		{"another device", append(allRouted(), allBridged()...), replaceWithBridge("msta"), "is a bridge, not a"},
		{"no peer", []string{"veth", "bridge"}, rewire, `is not the peer of "eth0"`},
	}
}

// deviationsOfSegments are the deviations of modes whose pods find each other directly.
func deviationsOfSegments() []deviation {
	return []deviation{
		{"address", allOnGateways(), inPod(removeAddr("192.168.10.10/24")), "lacks address 192.168.10.10/24"},
		{"IPv6 address", allOnGateways(), inPod(removeAddr("fd00:10::10/64")), "lacks address fd00:10::10/64"},
		{"default route", allOnGateways(), inPod(removeRoute(defaultRoute(netip.MustParseAddr("192.168.10.1")))),
			"default route via 192.168.10.1"},
		{"no port", allBridged(), inHost("msta", release), `not a port of "mst0"`},
		{"hairpin", allBridged(),
			inHost("msta", func(s nsHandle, link netlink.Link) error { return s.LinkSetHairpin(link, false) }),
			"hairpin mode"},
		{"port has IPv6", allBridged(), setSysctl(true, "net/ipv6/conf/msta/disable_ipv6", "0"), "msta/disable_ipv6 in"},
		{"bridge is down", allBridged(), inHost("mst0", down), `device "mst0" in`},
		{"bridge is missing", allBridged(), inHost("mst0", unlink), `device "mst0" is missing`},
		{"gateway", allBridged(), inHost("mst0", removeAddr("fd00:10::1/64")), "lacks address fd00:10::1/64"},
	}
}

func deviationsOfDevices() []deviation {
	macvlan := []string{"macvlan"}
	return []deviation{
		{"uplink is down", allSubinterfaces(), inHost(uplinkName, down), `uplink "eth0" in`},
		{"uplink", allSubinterfaces(), func(_ *testing.T, f *fixture) { f.network.Uplink = "wire" }, `not on uplink "wire"`},
		{"slave is missing", macvlan, inHost(MacvlanHostDevice, unlink), `device "mst-host" is missing`},
		{"slave is missing", allIPVLAN(), inHost(IPVLANHostDevice, unlink), `device "mst-ipvlan" is missing`},
		{"gateway", macvlan, inHost(MacvlanHostDevice, removeAddr("192.168.10.1/24")), "lacks address 192.168.10.1/24"},
		{"gateway", []string{"ipvlan-l2"}, inHost(IPVLANHostDevice, removeAddr("192.168.10.1/24")),
			"lacks address 192.168.10.1/24"},
		{"mode", macvlan, inPod(func(s nsHandle, link netlink.Link) error {
			return s.LinkSetMacvlanMode(link, netlink.MACVLAN_MODE_PRIVATE)
		}), "not in bridge mode"},
		{"mode", allIPVLAN(), inHost(IPVLANHostDevice, changeIPVLAN(func(d *netlink.IPVlan) { d.Mode = (d.Mode + 1) % 3 })),
			"is in mode l"},
		{"private", allIPVLAN(), inHost(IPVLANHostDevice, changeIPVLAN(func(d *netlink.IPVlan) {
			d.Flag = netlink.IPVLAN_FLAG_PRIVATE
		})), "isolates pods from each other"},
		{"policy", []string{"netkit", "netkit-l2"}, dropInNetkit(vnl.IFLA_NETKIT_POLICY), `device "msta" in`},
		{"peer's policy", []string{"netkit", "netkit-l2"}, dropInNetkit(vnl.IFLA_NETKIT_PEER_POLICY), "the peer of device"},
	}
}

// TestCheck spoils one thing at a time.
func TestCheck(t *testing.T) {
	rows := slices.Concat(deviationsOfAll(), deviationsOfRoutes(), deviationsOfSegments(), deviationsOfDevices(),
		deviationsOfOVS())
	forEachMode(t, func(t *testing.T, mode Mode) {
		t.Parallel() // most of the time they wait for the kernel
		mode = shareHost(t, mode)
		for _, row := range rows {
			if row.modes != nil && !slices.Contains(row.modes, mode.Name()) {
				continue
			}
			t.Run(row.name, func(t *testing.T) {
				f := newFixture(t, mode, 1)
				testkit.Succeed(t, mode.Check(f.network, f.pods[0]))
				row.spoil(t, f)
				err := mode.Check(f.network, f.pods[0])
				var deviation *DeviationError
				testkit.Check(t, errors.As(err, &deviation) && strings.Contains(err.Error(), row.says),
					"Check says %v, wanted: %s", err, row.says)
			})
		}
	})
}

func givenRoutes(mode Mode) (given []Route, want []Route) {
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	gateway4, gateway6 := addr("192.168.10.1"), addr("fd00:10::1")
	given = []Route{
		{Dst: prefix("10.9.0.0/16")},
		{Dst: prefix("0.0.0.0/0")},
		{Dst: prefix("10.8.0.0/16"), Via: gateway4, AdvMSS: 1000, Priority: 7},
		{Dst: prefix("fd00:9::/48"), MTU: 1400},
		{Dst: prefix("fd00:8::1/128"), Via: gateway6, Priority: 9},
		{Dst: prefix("::/0"), Priority: 99},
	}
	if mode.Traits().Switched {
		given = append(given, Route{Dst: prefix("10.7.0.0/16"), Via: addr("192.168.10.77")},
			Route{Dst: prefix("fd00:7::/48"), Via: addr("fd00:10::77")}, Route{Dst: prefix("fd00:6::/48"),
				Via: addr("fe80::77")})
	}
	for _, r := range given {
		switch i := 0; {
		case slices.Contains(allInLayer3(), mode.Name()):
			r.Via = netip.Addr{}
		case !mode.Traits().Switched:
			if r.Dst.Addr().Is6() {
				i = 1
			}
			r.Via = []netip.Addr{addr("169.254.1.1"), addr("fe80::1")}[i]
		case !r.Via.IsValid() && r.Dst.Addr().Is4():
			r.Via = gateway4
		case !r.Via.IsValid():
			r.Via = gateway6
		}
		want = append(want, r)
	}
	return given, want
}

// TestRoutes gives a pod routes: they exist, Create returns them, and Check detects a missing or different one. Then
// the pod's default routes are elsewhere.
func TestRoutes(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newFixture(t, mode, 0)
		pod := f.newPod(t, 0)
		var want []Route
		pod.Routes, want = givenRoutes(mode)
		f.create(t, pod)
		if len(f.links[0].Routes) != len(want) { // without default routes of ours
			t.Errorf("there are the routes %v, want %v", f.links[0].Routes, want)
		}
		for i, r := range want {
			testkit.Check(t, f.links[0].Routes[i] == r, "route %d is %v, want %v", i, f.links[0].Routes[i], r)
			f.faultOf(t, "")
			f.change(t, func(s nsHandle, link netlink.Link) error { return s.removeRoutes(link, []Route{r}) })
			f.faultOf(t, r.text()+" through device")
			other := r
			other.MTU = 1300
			f.change(t, func(s nsHandle, link netlink.Link) error { return s.addRoute(link, other) })
			f.faultOf(t, r.text()+" through device")
			f.change(t, func(s nsHandle, link netlink.Link) error {
				if err := s.removeRoutes(link, []Route{other}); err != nil {
					return err
				}
				return s.addRoute(link, r)
			})
		}
		f.faultOf(t, "")
		testkit.Succeed(t, mode.Delete(f.network, pod))
		f.pods, f.links = nil, nil
		pod.Secondary = true
		f.create(t, pod)
		defaults := slices.DeleteFunc(slices.Clone(f.links[0].Routes), func(r Route) bool { return !r.IsDefault() })
		testkit.Check(t, len(defaults) == 1 && defaults[0].Priority == 99, "default routes are %v", defaults)
		f.faultOf(t, "")
	})
}

func (f *fixture) change(t *testing.T, change func(s nsHandle, link netlink.Link) error) {
	t.Helper()
	withLink(t, f.pods[0].Namespace, "eth0", change)
}

// faultOf expects an error of Check that contains says, or none if it is empty.
func (f *fixture) faultOf(t *testing.T, says string) {
	t.Helper()
	err := f.mode.Check(f.network, f.pods[0])
	testkit.Check(t, (says != "" || err == nil) && (says == "" || err != nil && strings.Contains(err.Error(), says)),
		"Check says %v, wanted: %q", err, says)
}

func badRoutes() []failure {
	var rows []failure
	for _, row := range []struct {
		name    string
		modes   []string
		route   Route
		message string
	}{
		{"route nowhere", nil, Route{}, "routes[1].dst: missing"},
		{"route to a host", nil, to("10.9.0.1/16"), "routes[1].dst: invalid network prefix 10.9.0.1/16"},
		{"route twice", nil, to("10.9.0.0/16"), "routes[1].dst: duplicate route to 10.9.0.0/16"},
		{"route to the own network", allOnGateways(), to("192.168.10.0/24"),
			"routes[1].dst: 192.168.10.0/24 is the pods' own"},
		{"MTU of a route", nil, Route{Dst: to("10.8.0.0/16").Dst, MTU: 1501}, "routes[1].mtu: 1501"},
		{"MTU of an IPv6 route", nil, Route{Dst: to("fd00:9::/48").Dst, MTU: 1279}, "routes[1].mtu: 1279"},
		{"MSS of a route", nil, Route{Dst: to("10.8.0.0/16").Dst, AdvMSS: -1}, "routes[1].advmss: -1"},
		{"priority of a route", nil, Route{Dst: to("10.8.0.0/16").Dst, Priority: -1}, "routes[1].priority: -1"},
		{"next hop of another family", nil, by("10.8.0.0/16", "fd00:10::9"), "routes[1].gw: fd00:10::9 is not of the family"},
		{"next hop far away", nil, by("10.8.0.0/16", "10.1.0.1"), "routes[1].gw: 10.1.0.1 is unreachable"},
		{"next hop is nobody", nil, by("10.8.0.0/16", "0.0.0.0"), "routes[1].gw: 0.0.0.0 is unreachable"},
		{"next hop is the pod", nil, by("10.8.0.0/16", "192.168.10.11"), "routes[1].gw: 192.168.10.11 is the pod's own"},
		{"next hop is the network", allOnGateways(), by("10.8.0.0/16", "192.168.10.0"),
			"routes[1].gw: 192.168.10.0 is not a host's"},
		{"next hop is all", allOnGateways(), by("10.8.0.0/16", "192.168.10.255"),
			"routes[1].gw: 192.168.10.255 is not a host's"},
		{"next hop is no neighbour", append(allRouted(), subinterfacesInLayer3()...), by("fd00:9::/48", "fd00:10::9"),
			"routes[1].gw: fd00:10::9 is unreachable: the pod's only neighbour is the host"},
	} {
		rows = append(rows, failure{row.name, row.modes, func(s *situation) {
			s.pod.Routes = []Route{to("10.9.0.0/16"), row.route}
		}, row.message, nil})
	}
	return append(rows, failure{"route of a missing family", nil, func(s *situation) {
		s.pod.Addresses, s.pod.Routes = s.pod.Addresses[:1], []Route{to("::/0")}
	}, "routes[0].dst: ::/0: the pod lacks an address", nil})
}

func to(dst string) Route { return Route{Dst: netip.MustParsePrefix(dst)} }
func by(dst, via string) Route {
	return Route{Dst: netip.MustParsePrefix(dst), Via: netip.MustParseAddr(via)}
}

// TestRouters tests a router other than the host, with only a link-local address for IPv6. Pods have their default
// routes via the router, the host has its own address and not the router's, and nothing is left after Delete. Check
// finds the router's address on the host.
func TestRouters(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		if !mode.Traits().Switched {
			return // refused: TestCreateFails, TestSetupFails
		}
		f := newHost(t, mode)
		f.network.Routers = []netip.Addr{netip.MustParseAddr("192.168.10.254"), netip.MustParseAddr("fe80::fe")}
		testkit.Succeed(t, mode.Setup(f.network))
		before := describe(t, f.network.Host)
		f.create(t, f.newPod(t, 0))
		for i, route := range f.links[0].Routes {
			testkit.Check(t, len(f.links[0].Routes) == 2 && route.Via == f.network.Routers[i],
				"routes are %v, want those by %v", f.links[0].Routes, f.network.Routers)
		}
		testkit.Succeed(t, mode.Check(f.network, f.pods[0]))
		swapped := f.network
		swapped.Gateways = slices.Clone(f.network.Gateways)
		swapped.Gateways[0] = netip.MustParsePrefix("192.168.10.2/24")
		swapped.Routers = []netip.Addr{f.network.Gateways[0].Addr(), f.network.Routers[1]}
		testkit.Fails(t, mode.Check(swapped, f.pods[0]), "address 192.168.10.1 of a router")
		testkit.Succeed(t, mode.Delete(f.network, f.pods[0]))
		nothingLeft(t, before, describe(t, f.network.Host))
	})
}
