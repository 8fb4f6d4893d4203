// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"mustang/internal/testkit"
)

// givenRoutes are routes of each kind that a mode has, and what is to come of them.
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
			Route{Dst: prefix("fd00:7::/48"), Via: addr("fd00:10::77")}, Route{Dst: prefix("fd00:6::/48"), Via: addr("fe80::77")})
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

// TestRoutes gives a pod routes: they are there, and told, and Check finds when one is
// gone or another.
func TestRoutes(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newFixture(t, mode, 0)
		pod := f.newPod(t, 0)
		var want []Route
		pod.Routes, want = givenRoutes(mode)
		f.create(t, pod)
		if len(f.links[0].Routes) != len(want) { // no default routes of ours besides
			t.Errorf("there are the routes %v, want %v", f.links[0].Routes, want)
		}
		for i, r := range want {
			if f.links[0].Routes[i] != r {
				t.Errorf("route %d is %v, want %v", i, f.links[0].Routes[i], r)
			}
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
	})
}

// TestSecondaryRoutes gives routes to a pod whose default routes are elsewhere.
func TestSecondaryRoutes(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newFixture(t, mode, 0)
		pod := f.newPod(t, 0)
		pod.Routes, _ = givenRoutes(mode)
		pod.Secondary = true
		f.create(t, pod)
		var defaults []Route
		for _, r := range f.links[0].Routes {
			if r.IsDefault() {
				defaults = append(defaults, r)
			}
		}
		if len(defaults) != 1 || defaults[0].Priority != 99 {
			t.Errorf("default routes are %v", defaults)
		}
		f.faultOf(t, "")
	})
}

func (f *fixture) change(t *testing.T, change func(s nsHandle, link netlink.Link) error) {
	t.Helper()
	withLink(t, f.pods[0].Namespace, "eth0", change)
}

// faultOf has Check find what says tells, or nothing.
func (f *fixture) faultOf(t *testing.T, says string) {
	t.Helper()
	err := f.mode.Check(f.network, f.pods[0])
	if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
		t.Errorf("Check says %v, wanted: %q", err, says)
	}
}

// badRoutes are those that can't be.
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
		{"route to the own network", allOnGateways(), to("192.168.10.0/24"), "routes[1].dst: 192.168.10.0/24 is the pods' own"},
		{"MTU of a route", nil, Route{Dst: to("10.8.0.0/16").Dst, MTU: 1501}, "routes[1].mtu: 1501"},
		{"MTU of an IPv6 route", nil, Route{Dst: to("fd00:9::/48").Dst, MTU: 1279}, "routes[1].mtu: 1279"},
		{"MSS of a route", nil, Route{Dst: to("10.8.0.0/16").Dst, AdvMSS: -1}, "routes[1].advmss: -1"},
		{"priority of a route", nil, Route{Dst: to("10.8.0.0/16").Dst, Priority: -1}, "routes[1].priority: -1"},
		{"next hop of another family", nil, by("10.8.0.0/16", "fd00:10::9"), "routes[1].gw: fd00:10::9 is not of the family"},
		{"next hop far away", nil, by("10.8.0.0/16", "10.1.0.1"), "routes[1].gw: 10.1.0.1 is unreachable"},
		{"next hop is nobody", nil, by("10.8.0.0/16", "0.0.0.0"), "routes[1].gw: 0.0.0.0 is unreachable"},
		{"next hop is the pod", nil, by("10.8.0.0/16", "192.168.10.11"), "routes[1].gw: 192.168.10.11 is the pod's own"},
		{"next hop is the network", allOnGateways(), by("10.8.0.0/16", "192.168.10.0"), "routes[1].gw: 192.168.10.0 is not a host's"},
		{"next hop is all", allOnGateways(), by("10.8.0.0/16", "192.168.10.255"), "routes[1].gw: 192.168.10.255 is not a host's"},
		{"next hop is no neighbour", append(allRouted(), subinterfacesInLayer3()...), by("fd00:9::/48", "fd00:10::9"), "routes[1].gw: fd00:10::9 is unreachable: the pod's only neighbour is the host"},
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

// TestRouters has another than the host be the router, by an address of the link
// alone for IPv6: pods have their default routes by it, the host has its own address
// and not the router's, and nothing is left after Delete. Check finds the router's
// address on the host.
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
			if len(f.links[0].Routes) != 2 || route.Via != f.network.Routers[i] {
				t.Errorf("routes are %v, want those by %v", f.links[0].Routes, f.network.Routers)
			}
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
