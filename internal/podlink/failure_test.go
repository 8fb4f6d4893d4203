// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"mustang/internal/nl"
)

// failure is a situation in which Create must fail, say so, and leave everything
// as it was. It is tested in each of its modes; or in all.
type failure struct {
	name    string
	modes   []string
	arrange func(s *situation)
	message string // part of the error
	is      error  // matched by the error, unless nil
}

// situation is what a failure's arrange changes: the network, or the pod that is
// going to be plugged into it beside the first one.
type situation struct {
	t   *testing.T
	f   *fixture
	pod *Pod
}

func failures() []failure {
	hostSide := []string{"veth", "bridge"}
	shared := []string{"bridge", "macvlan"}
	return []failure{
		{"pod's name is taken", nil, func(s *situation) {
			addBridge(s.t, s.pod.Namespace, s.pod.IfName)
		}, `"eth0"`, fs.ErrExist},
		{"host's name is taken", hostSide, func(s *situation) {
			addBridge(s.t, s.f.network.Host, s.pod.HostIfName)
		}, `"mstb"`, fs.ErrExist},
		{"host's name is taken by a pod", hostSide, func(s *situation) {
			s.pod.HostIfName = s.f.pods[0].HostIfName
		}, `"msta"`, fs.ErrExist},
		{"address has a route already", []string{"veth"}, func(s *situation) {
			s.pod.Addresses[1] = s.f.pods[0].Addresses[1] // the IPv4 route is added before
		}, "has a route already", fs.ErrExist},
		{"pod has a default route", nil, func(s *situation) {
			withHandle(s.t, s.pod.Namespace, func(in side) error {
				lo, err := in.link("lo")
				if err != nil {
					return err
				}
				return in.addRoute(lo, route{dst: defaultRoute(netip.MustParseAddr("192.168.10.1")).dst})
			})
		}, "default route via", fs.ErrExist},
		{"pod's name is too long", nil, func(s *situation) {
			s.pod.IfName = "sixteen-letters-"
		}, "more than 15 bytes", nil},
		{"host's name is too long", hostSide, func(s *situation) {
			s.pod.HostIfName = "sixteen-letters-"
		}, "more than 15 bytes", nil},
		{"pod's name has a slash", nil, func(s *situation) { s.pod.IfName = "../x" }, "not valid", nil},
		{"pod's name is a pattern", nil, func(s *situation) { s.pod.IfName = "eth%d" }, "not valid", nil},
		{"pod's name is empty", nil, func(s *situation) { s.pod.IfName = "" }, "empty", nil},
		{"no addresses", nil, func(s *situation) { s.pod.Addresses = nil }, "no addresses", nil},
		{"invalid address", nil, func(s *situation) {
			s.pod.Addresses[0] = netip.Addr{}
		}, "not an address for a pod", nil},
		{"multicast address", nil, func(s *situation) {
			s.pod.Addresses[1] = netip.MustParseAddr("ff02::1")
		}, "ff02::1 is not an address for a pod", nil},
		{"address twice", nil, func(s *situation) {
			s.pod.Addresses = append(s.pod.Addresses, s.pod.Addresses[0])
		}, "192.168.10.11 is there twice", nil},
		{"the gateway's address", nil, func(s *situation) {
			s.pod.Addresses[0] = s.f.network.Gateways[0].Addr()
		}, "192.168.10.1 is the gateway's", nil},
		{"address elsewhere", shared, func(s *situation) {
			s.pod.Addresses[0] = netip.MustParseAddr("10.0.0.1")
		}, "10.0.0.1 is not in the prefix of gateway 192.168.10.1/24", nil},
		{"no gateway of the family", shared, func(s *situation) {
			s.f.network.Gateways = s.f.network.Gateways[:1]
		}, "no gateway of the family", nil},
		{"no gateways", shared, func(s *situation) { s.f.network.Gateways = nil }, "no gateways", nil},
		{"two gateways of a family", nil, func(s *situation) {
			s.f.network.Gateways[1] = netip.MustParsePrefix("192.168.11.1/24")
		}, "second one of its family", nil},
		{"the pod is the host", nil, func(s *situation) {
			s.pod.Namespace = s.f.network.Host
		}, "at once", nil},
		{"no pod", nil, func(s *situation) { s.pod.Namespace = nil }, "no namespace", nil},
		{"no host", nil, func(s *situation) { s.f.network.Host = nil }, "no host namespace", nil},
		{"MTU is negative", nil, func(s *situation) { s.f.network.MTU = -1 }, "MTU -1", nil},
		{"MTU is too small for IPv6", nil, func(s *situation) { s.f.network.MTU = 1000 }, "MTU 1000 is less", nil},
		{"no bridge", []string{"bridge"}, func(s *situation) {
			s.f.network.Bridge = "elsewhere"
		}, `"elsewhere"`, fs.ErrNotExist},
		{"no uplink", []string{"macvlan"}, func(s *situation) {
			s.f.network.Uplink = "elsewhere"
		}, `uplink: device "elsewhere"`, fs.ErrNotExist},
		{"uplink is down", []string{"macvlan"}, func(s *situation) {
			setDown(s.t, s.f.network.Host, uplinkName)
		}, `uplink "eth0" in`, nil},
		{"uplink has no carrier", []string{"macvlan"}, func(s *situation) {
			setDown(s.t, s.f.network.Host, "wire")
		}, "no carrier", nil},
		{"MTU is above the uplink's", []string{"macvlan"}, func(s *situation) {
			s.f.network.MTU = 9000
		}, "MTU 1500, less than the pods' 9000", nil},
	}
}

func setDown(t *testing.T, ns *nl.Namespace, name string) {
	t.Helper()
	withHandle(t, ns, func(s side) error {
		link, err := s.link(name)
		if err != nil {
			return err
		}
		return s.LinkSetDown(link)
	})
}

// TestCreateFails has Create fail beside a pod that is connected: at bad input,
// and half-way.
func TestCreateFails(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		for _, row := range failures() {
			if row.modes != nil && !slices.Contains(row.modes, mode.Name()) {
				continue
			}
			t.Run(row.name, func(t *testing.T) {
				f := newFixture(t, mode, 1)
				pod := f.newPod(t, 1)
				host, inside := f.network.Host, pod.Namespace
				row.arrange(&situation{t, f, &pod})
				before := describe(t, host, inside)
				_, err := mode.Create(f.network, pod)
				if err == nil || !strings.Contains(err.Error(), row.message) {
					t.Errorf("error is %v, wanted: %s", err, row.message)
				}
				if row.is != nil && !errors.Is(err, row.is) {
					t.Errorf("error %v does not match %v", err, row.is)
				}
				if got := describe(t, host, inside); got != before {
					t.Errorf("left behind:\n%s", difference(before, got))
				}
			})
		}
	})
}

// TestSetupFails has Setup fail, and compares the host before and after.
func TestSetupFails(t *testing.T) {
	rows := []struct {
		name, mode string
		arrange    func(s *situation)
		message    string
	}{
		{"uplink is missing", "macvlan", func(s *situation) { s.f.network.Uplink = "none0" }, `"none0"`},
		{"no uplink", "macvlan", func(s *situation) { s.f.network.Uplink = "" }, "uplink: the name is empty"},
		{"uplink is down", "macvlan", func(s *situation) { setDown(s.t, s.f.network.Host, uplinkName) }, "not up"},
		{"slave's name is taken", "macvlan", func(s *situation) { addBridge(s.t, s.f.network.Host, HostSlave) }, HostSlave},
		{"MTU too small for IPv6", "macvlan", func(s *situation) { s.f.network.MTU = 1000 }, "MTU 1000 is less"},
		{"bridge's name is taken", "bridge", func(s *situation) { s.f.network.Bridge = uplinkName }, "not a bridge"},
		{"bridge's name is too long", "bridge", func(s *situation) { s.f.network.Bridge = "sixteen-letters-" }, "more than"},
		{"MTU too small for IPv6", "bridge", func(s *situation) { s.f.network.MTU = 1000 }, "MTU 1000 is less"},
		{"MTU too large", "bridge", func(s *situation) { s.f.network.MTU = 70000 }, "MTU 70000"},
		{"invalid gateway", "veth", func(s *situation) { s.f.network.Gateways[0] = netip.Prefix{} }, "gateway"},
		{"IPv6 is off", "veth", func(s *situation) {
			if err := s.f.network.Host.SetSysctl("net/ipv6/conf/lo/disable_ipv6", "1"); err != nil {
				s.t.Fatal(err)
			}
		}, "fd00:10::1/128"},
	}
	for _, row := range rows {
		t.Run(row.mode+"/"+row.name, func(t *testing.T) {
			mode, err := Lookup(row.mode)
			if err != nil {
				t.Fatal(err)
			}
			f := newHost(t, mode)
			row.arrange(&situation{t: t, f: f})
			before := describe(t, f.network.Host)
			if err := mode.Setup(f.network); err == nil || !strings.Contains(err.Error(), row.message) {
				t.Errorf("error is %v, wanted: %s", err, row.message)
			}
			if got := describe(t, f.network.Host); got != before {
				t.Errorf("left behind:\n%s", difference(before, got))
			}
		})
	}
}

// describe lists the devices and routes of namespaces, without what passes by
// itself. It is quicker than a snapshot.
func describe(t *testing.T, namespaces ...*nl.Namespace) string {
	t.Helper()
	var out strings.Builder
	for _, ns := range namespaces {
		devices, err := ns.Devices()
		if err != nil {
			t.Fatal(err)
		}
		for _, device := range devices {
			out.WriteString(ns.Name() + " " + summary(device) + "\n")
		}
		withHandle(t, ns, func(s side) error {
			for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
				routes, err := s.RouteList(nil, family)
				if err != nil {
					return err
				}
				for _, r := range routes {
					if r.Dst == nil || !r.Dst.IP.IsLinkLocalUnicast() {
						out.WriteString(ns.Name() + " " + r.String() + "\n")
					}
				}
			}
			return nil
		})
	}
	return out.String()
}

func summary(device nl.Device) string {
	device.RxPackets, device.TxPackets, device.RxBytes, device.TxBytes = 0, 0, 0, 0
	return strings.Join([]string{
		device.Name, device.Kind, device.MAC.String(), prefixes(device.Addrs), strconv.Itoa(device.MTU), strconv.Itoa(device.MasterIndex),
	}, " ")
}

func prefixes(list []netip.Prefix) string {
	var out []string
	for _, prefix := range list {
		if !prefix.Addr().IsLinkLocalUnicast() { // the kernel adds these when there is a carrier
			out = append(out, prefix.String())
		}
	}
	return strings.Join(out, ",")
}
