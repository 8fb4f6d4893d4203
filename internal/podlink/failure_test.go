// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

// failure is a situation in which Create must return an error and leave everything unchanged. It is tested in each of
// its modes; or in all.
type failure struct {
	name    string
	modes   []string
	arrange func(s *situation)
	message string // part of the error
	is      error  // matched by the error, unless nil
}

// situation is the input that a failure's arrange changes: the network, or the pod that will be attached next to the
// first one.
type situation struct {
	t   *testing.T
	f   *fixture
	pod *Pod
}

// badInputs are failures that come from the network or the pod alone.
func badInputs() []failure {
	hostSide := append(allRouted(), allBridged()...)
	return []failure{
		{"host's name is taken by a pod", append(hostSide, allOVS()...), func(s *situation) {
			s.pod.HostIfName = s.f.pods[0].HostIfName
		}, `"msta"`, fs.ErrExist},
		{"address has a route already", allRouted(), func(s *situation) {
			s.pod.Addresses[1] = s.f.pods[0].Addresses[1] // the IPv4 route is added before
		}, "has a route already", fs.ErrExist},
		{"address is another pod's", allIPVLAN(), func(s *situation) {
			s.pod.Addresses[1] = s.f.pods[0].Addresses[1]
		}, "address already in use", unix.EADDRINUSE},
		{"pod's name is too long", nil, func(s *situation) {
			s.pod.IfName = "sixteen-letters-"
		}, "more than 15 bytes", nil},
		{"host's name is too long", append(hostSide, allOVS()...), func(s *situation) {
			s.pod.HostIfName = "sixteen-letters-"
		}, "more than 15 bytes", nil},
		{"pod's name has a slash", nil, func(s *situation) { s.pod.IfName = "../x" }, "invalid name", nil},
		{"pod's name is a pattern", nil, func(s *situation) { s.pod.IfName = "eth%d" }, "invalid name", nil},
		{"pod's name is empty", nil, func(s *situation) { s.pod.IfName = "" }, "empty", nil},
		{"no addresses", nil, func(s *situation) { s.pod.Addresses = nil }, "no addresses", nil},
		{"invalid address", nil, func(s *situation) {
			s.pod.Addresses[0] = netip.Addr{}
		}, "invalid pod address", nil},
		{"multicast address", nil, func(s *situation) {
			s.pod.Addresses[1] = netip.MustParseAddr("ff02::1")
		}, "invalid pod address ff02::1", nil},
		{"address twice", nil, func(s *situation) {
			s.pod.Addresses = append(s.pod.Addresses, s.pod.Addresses[0])
		}, "duplicate pod address 192.168.10.11", nil},
		{"the gateway's address", nil, func(s *situation) {
			s.pod.Addresses[0] = s.f.network.Gateways[0].Addr()
		}, "192.168.10.1 is the gateway's", nil},
		{"address elsewhere", allOnGateways(), func(s *situation) {
			s.pod.Addresses[0] = netip.MustParseAddr("10.0.0.1")
		}, "10.0.0.1 is not in the prefix of gateway 192.168.10.1/24", nil},
		{"no gateway of the family", append(allOnGateways(), subinterfacesInLayer3()...), func(s *situation) {
			s.f.network.Gateways = s.f.network.Gateways[:1]
		}, "no gateway of the family", nil},
		{"no gateways", append(allOnGateways(), subinterfacesInLayer3()...),
			func(s *situation) { s.f.network.Gateways = nil }, "no gateways", nil},
		{"two gateways of a family", nil, func(s *situation) {
			s.f.network.Gateways[1] = netip.MustParsePrefix("192.168.11.1/24")
		}, "second one of its family", nil},
		{"the pod is the host", nil, func(s *situation) {
			s.pod.Namespace = s.f.network.Host
		}, "both the pod's and the host's", nil},
		{"no pod", slices.Concat(allSubinterfaces(), allOVS(), []string{"veth", "bridge", "netkit", "tun"}),
			func(s *situation) { s.pod.Namespace = nil }, "no namespace", nil},
		{"no host", nil, func(s *situation) { s.f.network.Host = nil }, "no host namespace", nil},
		{"MTU is negative", nil, func(s *situation) { s.f.network.MTU = -1 }, "MTU -1", nil},
		{"multicast MAC", nil, func(s *situation) { s.pod.MAC = net.HardwareAddr{1, 0, 0, 0, 0, 1} },
			"is a multicast address", nil},
		{"no MAC", nil, func(s *situation) { s.pod.MAC = make(net.HardwareAddr, 6) }, "is all zero", nil},
		{"short MAC", nil, func(s *situation) { s.pod.MAC = net.HardwareAddr{2, 0, 0} }, "has 3 bytes", nil},
		{"MTU is too small for IPv6", nil, func(s *situation) { s.f.network.MTU = 1000 }, "MTU 1000 is less", nil},
		{"no bridge", append(allBridged(), allOVS()...), func(s *situation) {
			s.f.network.Bridge = "elsewhere"
		}, `"elsewhere"`, fs.ErrNotExist},
		{"no uplink", allSubinterfaces(), func(s *situation) {
			s.f.network.Uplink = "elsewhere"
		}, `uplink: device "elsewhere"`, fs.ErrNotExist},
		{"MTU is above the uplink's", allSubinterfaces(), func(s *situation) {
			s.f.network.MTU = 9000
		}, "MTU 1500, less than the pods' 9000", nil},
	}
}

// badRouters are failures of networks whose router is not the host.
func badRouters() []failure {
	return []failure{
		{"a router's address", allOnGateways(), func(s *situation) {
			s.f.network.Routers = s.pod.Addresses[:1]
		}, "192.168.10.11 is a router's", nil},
		{"the host is the router", allOnGateways(), func(s *situation) {
			s.f.network.Routers = []netip.Addr{s.f.network.Gateways[1].Addr()}
		}, "router fd00:10::1 is the host's own address", nil},
		{"two routers of a family", allOnGateways(), func(s *situation) {
			s.f.network.Routers = []netip.Addr{netip.MustParseAddr("192.168.10.2"), netip.MustParseAddr("192.168.10.3")}
		}, "router 192.168.10.3 is the second one of its family", nil},
		{"router of another family", allOnGateways(), func(s *situation) {
			s.f.network.Gateways, s.pod.Addresses = s.f.network.Gateways[:1], s.pod.Addresses[:1]
			s.f.network.Routers = []netip.Addr{netip.MustParseAddr("fe80::2")}
		}, "router fe80::2: the network lacks a gateway of its family", nil},
		{"router by multicast", allOnGateways(), func(s *situation) {
			s.f.network.Routers = []netip.Addr{netip.MustParseAddr("ff02::2")}
		}, "invalid router ff02::2", nil},
		{"router on no network", append(allRouted(), subinterfacesInLayer3()...), func(s *situation) {
			s.f.network.Routers = []netip.Addr{netip.MustParseAddr("192.168.10.2")}
		}, "router 192.168.10.2: the only neighbour of pods of link mode", nil},
	}
}

func badStates() []failure {
	hostSide := append(allRouted(), allBridged()...)
	return []failure{
		{"pod's name is taken", nil, func(s *situation) {
			addBridge(s.t, s.pod.Namespace, s.pod.IfName)
		}, `"eth0"`, fs.ErrExist},
		{"host's name is taken", append(hostSide, allOVS()...), func(s *situation) {
			addBridge(s.t, s.f.network.Host, s.pod.HostIfName)
		}, `"mstb"`, fs.ErrExist},
		{"address has a route elsewhere", subinterfacesInLayer3(), func(s *situation) {
			withLink(s.t, s.f.network.Host, "lo", func(host nsHandle, lo netlink.Link) error {
				return host.addRoute(lo, Route{Dst: hostPrefix(s.pod.Addresses[1])})
			})
		}, "has a route already", fs.ErrExist},
		{"pod has a default route", nil, func(s *situation) {
			withLink(s.t, s.pod.Namespace, "lo", func(in nsHandle, lo netlink.Link) error {
				return in.addRoute(lo, Route{Dst: defaultPrefix(s.pod.Addresses[0])})
			})
		}, "default route", fs.ErrExist},
		{"uplink is down", allSubinterfaces(), func(s *situation) {
			withLink(s.t, s.f.network.Host, uplinkName, down)
		}, `uplink "eth0" in`, nil},
		{"uplink has no carrier", allSubinterfaces(), func(s *situation) {
			withLink(s.t, s.f.network.Host, "wire", down)
		}, "no carrier", nil},
		{"slave is of another mode", allIPVLAN(), func(s *situation) {
			withLink(s.t, s.f.network.Host, IPVLANHostDevice,
				changeIPVLAN(func(d *netlink.IPVlan) { d.Mode = (d.Mode + 1) % 3 }))
		}, `device "mst-ipvlan"`, nil},
		{"no slave", allIPVLAN(), func(s *situation) {
			withLink(s.t, s.f.network.Host, IPVLANHostDevice, unlink)
		}, `device "mst-ipvlan"`, fs.ErrNotExist},
	}
}

// TestCreateFails has Create fail beside a pod that is connected: at bad input, and half-way.
func TestCreateFails(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		t.Parallel() // most of the time they wait for the kernel
		shared := newFixture(t, mode, 1)
		sharedPod := shared.newPod(t, 1)
		for _, row := range slices.Concat(badInputs(), badRouters(), badRoutes()) {
			row.run(t, mode, func(*testing.T) (*fixture, Pod) {
				f, pod := *shared, sharedPod
				f.network.Gateways, pod.Addresses = slices.Clone(f.network.Gateways), slices.Clone(pod.Addresses)
				return &f, pod
			})
		}
		for _, row := range badStates() {
			row.run(t, mode, func(t *testing.T) (*fixture, Pod) {
				f := newFixture(t, mode, 1)
				return f, f.newPod(t, 1)
			})
		}
	})
}

// run has Create fail, and compares the state before and after.
func (row failure) run(t *testing.T, mode Mode, begin func(*testing.T) (*fixture, Pod)) {
	if row.modes != nil && !slices.Contains(row.modes, mode.Name()) {
		return
	}
	t.Run(row.name, func(t *testing.T) {
		f, pod := begin(t)
		host, inside := f.network.Host, pod.Namespace
		row.arrange(&situation{t, f, &pod})
		before := describe(t, host, inside)
		_, err := mode.Create(f.network, pod)
		testkit.Fails(t, err, row.message)
		testkit.Check(t, row.is == nil || errors.Is(err, row.is), "error %v does not match %v", err, row.is)
		nothingLeft(t, before, describe(t, host, inside))
	})
}
