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

// inPod and inHost change a device of the pod or of the host.
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

// unlink deletes a device. The kernel does not let anyone delete those of Open
// vSwitch's kernel datapath; they lose the name that they are looked up by.
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

// deviationsOfRoutes are those of modes that route each pod's addresses.
func deviationsOfRoutes() []deviation {
	v4, v6 := netip.MustParseAddr("169.254.1.1"), netip.MustParseAddr("fe80::1")
	all := append(allRouted(), subinterfacesInLayer3()...)
	to4, to6 := Route{Dst: netip.MustParsePrefix("192.168.10.10/32")}, Route{Dst: netip.MustParsePrefix("fd00:10::10/128")}
	return []deviation{
		{"address", all, inPod(removeAddr("192.168.10.10/32")), "lacks address 192.168.10.10/32"},
		{"IPv6 address", all, inPod(removeAddr("fd00:10::10/128")), "lacks address fd00:10::10/128"},
		{"default route", routedByEthernet(), inPod(removeRoute(defaultRoute(v4))), "default route via 169.254.1.1"},
		{"IPv6 default route", routedByEthernet(), inPod(removeRoute(defaultRoute(v6))), "default route via fe80::1"},
		{"default route", allInLayer3(), inPod(removeRoute(Route{Dst: defaultPrefix(v4)})), `default route through device "eth0" is missing`},
		{"IPv6 default route", allInLayer3(), inPod(removeRoute(Route{Dst: defaultPrefix(v6)})), "default route through device"},
		{"pod's link-local address", allInLayer3(), setSysctl(false, "net/ipv6/conf/eth0/addr_gen_mode", "0"), "addr_gen_mode in"},
		{"host's device is down", allRouted(), inHost("msta", down), `device "msta" in`},
		{"host route", allRouted(), inHost("msta", removeRoute(to4)), "route to 192.168.10.10/32"},
		{"IPv6 host route", allRouted(), inHost("msta", removeRoute(to6)), "route to fd00:10::10/128"},
		{"host route", subinterfacesInLayer3(), inHost(IPVLANHostDevice, removeRoute(to4)), "route to 192.168.10.10/32"},
		{"IPv6 host route", subinterfacesInLayer3(), inHost(IPVLANHostDevice, removeRoute(to6)), "route to fd00:10::10/128"},
		{"next hop", routedByEthernet(), inHost("msta", removeAddr("169.254.1.1/32")), "lacks address 169.254.1.1/32"},
		{"proxy ARP", routedByEthernet(), setSysctl(true, "net/ipv4/conf/msta/proxy_arp", "0"), "msta/proxy_arp in"},
		{"proxy delay", routedByEthernet(), setSysctl(true, "net/ipv4/neigh/msta/proxy_delay", "80"), "msta/proxy_delay in"},
		{"gateway", allRouted(), inHost("lo", removeAddr("192.168.10.1/32")), "lacks address 192.168.10.1/32"},
		{"gateway", subinterfacesInLayer3(), inHost(IPVLANHostDevice, removeAddr("192.168.10.1/32")), "lacks address 192.168.10.1/32"},
		{"another device", append(allRouted(), allBridged()...), replaceWithBridge("msta"), "is a bridge, not a"},
		{"no peer", []string{"veth", "bridge"}, rewire, `is not the peer of "eth0"`},
	}
}

// deviationsOfSegments are those of modes whose pods find each other directly.
func deviationsOfSegments() []deviation {
	return []deviation{
		{"address", allOnGateways(), inPod(removeAddr("192.168.10.10/24")), "lacks address 192.168.10.10/24"},
		{"IPv6 address", allOnGateways(), inPod(removeAddr("fd00:10::10/64")), "lacks address fd00:10::10/64"},
		{"default route", allOnGateways(), inPod(removeRoute(defaultRoute(netip.MustParseAddr("192.168.10.1")))),
			"default route via 192.168.10.1"},
		{"no port", allBridged(), inHost("msta", release), `not a port of "mst0"`},
		{"hairpin", allBridged(), inHost("msta", func(s nsHandle, link netlink.Link) error { return s.LinkSetHairpin(link, false) }),
			"hairpin mode"},
		{"port has IPv6", allBridged(), setSysctl(true, "net/ipv6/conf/msta/disable_ipv6", "0"), "msta/disable_ipv6 in"},
		{"bridge is down", allBridged(), inHost("mst0", down), `device "mst0" in`},
		{"bridge is missing", allBridged(), inHost("mst0", unlink), `device "mst0" is missing`},
		{"gateway", allBridged(), inHost("mst0", removeAddr("fd00:10::1/64")), "lacks address fd00:10::1/64"},
		{"netfilter call", allBridged(), callNetfilter, "netfilter call"},
	}
}

// deviationsOfDevices are those of some kinds of device.
func deviationsOfDevices() []deviation {
	macvlan := []string{"macvlan"}
	return []deviation{
		{"uplink is down", allSubinterfaces(), inHost(uplinkName, down), `uplink "eth0" in`},
		{"uplink", allSubinterfaces(), func(_ *testing.T, f *fixture) { f.network.Uplink = "wire" }, `not on uplink "wire"`},
		{"slave is missing", macvlan, inHost(MacvlanHostDevice, unlink), `device "mst-host" is missing`},
		{"slave is missing", allIPVLAN(), inHost(IPVLANHostDevice, unlink), `device "mst-ipvlan" is missing`},
		{"gateway", macvlan, inHost(MacvlanHostDevice, removeAddr("192.168.10.1/24")), "lacks address 192.168.10.1/24"},
		{"gateway", []string{"ipvlan-l2"}, inHost(IPVLANHostDevice, removeAddr("192.168.10.1/24")), "lacks address 192.168.10.1/24"},
		{"mode", macvlan, inPod(func(s nsHandle, link netlink.Link) error {
			return s.LinkSetMacvlanMode(link, netlink.MACVLAN_MODE_PRIVATE)
		}), "not in bridge mode"},
		{"mode", allIPVLAN(), inHost(IPVLANHostDevice, changeIPVLAN(func(d *netlink.IPVlan) { d.Mode = (d.Mode + 1) % 3 })), "is in mode l"},
		{"private", allIPVLAN(), inHost(IPVLANHostDevice, changeIPVLAN(func(d *netlink.IPVlan) {
			d.Flag = netlink.IPVLAN_FLAG_PRIVATE
		})), "isolates pods from each other"},
		{"policy", []string{"netkit", "netkit-l2"}, dropInNetkit(vnl.IFLA_NETKIT_POLICY), `device "msta" in`},
		{"peer's policy", []string{"netkit", "netkit-l2"}, dropInNetkit(vnl.IFLA_NETKIT_PEER_POLICY), "the peer of device"},
		{"not persistent", allRelayed(), loseDevice, "is not persistent"},
		{"TAP instead of TUN", []string{"tun"}, replaceTuntap(netlink.TUNTAP_MODE_TAP), "is a TAP device, not TUN"},
		{"TUN instead of TAP", []string{"tap"}, replaceTuntap(netlink.TUNTAP_MODE_TUN), "is a TUN device, not TAP"},
	}
}

// TestCheck spoils one thing at a time.
func TestCheck(t *testing.T) {
	rows := slices.Concat(deviationsOfAll(), deviationsOfRoutes(), deviationsOfSegments(), deviationsOfDevices(), deviationsOfOVS())
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
				if !errors.As(err, &deviation) || !strings.Contains(err.Error(), row.says) {
					t.Errorf("Check says %v, wanted: %s", err, row.says)
				}
			})
		}
	})
}
