// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"mustang/internal/nl"
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
func inPod(change func(s side, link netlink.Link) error) func(*testing.T, *fixture) {
	return func(t *testing.T, f *fixture) { changeDevice(t, f.pods[0].Namespace, "eth0", change) }
}

func inHost(name string, change func(s side, link netlink.Link) error) func(*testing.T, *fixture) {
	return func(t *testing.T, f *fixture) { changeDevice(t, f.network.Host, name, change) }
}

func changeDevice(t *testing.T, ns *nl.Namespace, name string, change func(s side, link netlink.Link) error) {
	t.Helper()
	withHandle(t, ns, func(s side) error {
		link, err := s.link(name)
		if err != nil {
			return err
		}
		return change(s, link)
	})
}

func removeAddr(addr string) func(s side, link netlink.Link) error {
	return func(s side, link netlink.Link) error { return s.removeAddress(link, netip.MustParsePrefix(addr)) }
}

func removeRoute(r route) func(s side, link netlink.Link) error {
	return func(s side, link netlink.Link) error { return s.RouteDel(r.netlink(link.Attrs().Index)) }
}

func setSysctl(host bool, key, value string) func(*testing.T, *fixture) {
	return func(t *testing.T, f *fixture) {
		ns := f.pods[0].Namespace
		if host {
			ns = f.network.Host
		}
		if err := ns.SetSysctl(key, value); err != nil {
			t.Fatal(err)
		}
	}
}

func down(s side, link netlink.Link) error    { return s.LinkSetDown(link) }
func unlink(s side, link netlink.Link) error  { return s.LinkDel(link) }
func release(s side, link netlink.Link) error { return s.LinkSetNoMaster(link) }
func smaller(s side, link netlink.Link) error { return s.LinkSetMTU(link, 1400) }

func deviationsOfAll() []deviation {
	return []deviation{
		{"pod's device is missing", nil, inPod(unlink), `device "eth0" is missing`},
		{"pod's device is down", nil, inPod(down), "is not up"},
		{"pod's MTU", nil, inPod(smaller), "has MTU 1400, not 1500"},
		{"pod's accept_ra", nil, setSysctl(false, "net/ipv6/conf/eth0/accept_ra", "1"), "net/ipv6/conf/eth0/accept_ra in"},
		{"forwarding is off", nil, setSysctl(true, "net/ipv4/ip_forward", "0"), "net/ipv4/ip_forward in"},
		{"IPv6 forwarding is off", nil, setSysctl(true, "net/ipv6/conf/all/forwarding", "0"), "conf/all/forwarding in"},
	}
}

func deviationsOfVeth() []deviation {
	modes := []string{"veth"}
	v4, v6 := netip.MustParseAddr("169.254.1.1"), netip.MustParseAddr("fe80::1")
	return []deviation{
		{"address", modes, inPod(removeAddr("192.168.10.10/32")), "lacks address 192.168.10.10/32"},
		{"IPv6 address", modes, inPod(removeAddr("fd00:10::10/128")), "lacks address fd00:10::10/128"},
		{"default route", modes, inPod(removeRoute(defaultRoute(v4))), "default route via 169.254.1.1"},
		{"IPv6 default route", modes, inPod(removeRoute(defaultRoute(v6))), "default route via fe80::1"},
		{"host's device is down", modes, inHost("msta", down), `device "msta" in`},
		{"host route", modes, inHost("msta", removeRoute(route{dst: netip.MustParsePrefix("192.168.10.10/32")})),
			"route to 192.168.10.10/32"},
		{"IPv6 host route", modes, inHost("msta", removeRoute(route{dst: netip.MustParsePrefix("fd00:10::10/128")})),
			"route to fd00:10::10/128"},
		{"next hop", modes, inHost("msta", removeAddr("169.254.1.1/32")), "lacks address 169.254.1.1/32"},
		{"proxy ARP", modes, setSysctl(true, "net/ipv4/conf/msta/proxy_arp", "0"), "msta/proxy_arp in"},
		{"proxy delay", modes, setSysctl(true, "net/ipv4/neigh/msta/proxy_delay", "80"), "msta/proxy_delay in"},
		{"gateway", modes, inHost("lo", removeAddr("192.168.10.1/32")), "lacks address 192.168.10.1/32"},
		{"another device", modes, replaceWithBridge("msta"), "is a bridge, not a veth"},
	}
}

func deviationsOfOthers() []deviation {
	bridge, macvlan, both := []string{"bridge"}, []string{"macvlan"}, []string{"bridge", "macvlan"}
	return []deviation{
		{"address", both, inPod(removeAddr("192.168.10.10/24")), "lacks address 192.168.10.10/24"},
		{"IPv6 address", both, inPod(removeAddr("fd00:10::10/64")), "lacks address fd00:10::10/64"},
		{"default route", both, inPod(removeRoute(defaultRoute(netip.MustParseAddr("192.168.10.1")))),
			"default route via 192.168.10.1"},
		{"no port", bridge, inHost("msta", release), `not a port of "mst0"`},
		{"hairpin", bridge, inHost("msta", func(s side, link netlink.Link) error { return s.LinkSetHairpin(link, false) }),
			"hairpin mode"},
		{"port has IPv6", bridge, setSysctl(true, "net/ipv6/conf/msta/disable_ipv6", "0"), "msta/disable_ipv6 in"},
		{"bridge is down", bridge, inHost("mst0", down), `device "mst0" in`},
		{"bridge is missing", bridge, inHost("mst0", unlink), `device "mst0" is missing`},
		{"gateway", bridge, inHost("mst0", removeAddr("fd00:10::1/64")), "lacks address fd00:10::1/64"},
		{"netfilter call", bridge, setSysctl(true, "net/bridge/bridge-nf-call-ip6tables", "1"), "netfilter call"},
		{"slave is missing", macvlan, inHost(HostSlave, unlink), `device "mst-host" is missing`},
		{"gateway", macvlan, inHost(HostSlave, removeAddr("192.168.10.1/24")), "lacks address 192.168.10.1/24"},
		{"uplink is down", macvlan, inHost(uplinkName, down), `uplink "eth0" in`},
		{"mode", macvlan, inPod(func(s side, link netlink.Link) error {
			return s.LinkSetMacvlanMode(link, netlink.MACVLAN_MODE_PRIVATE)
		}), "not in bridge mode"},
		{"uplink", macvlan, func(_ *testing.T, f *fixture) { f.network.Uplink = "wire" }, `not on uplink "wire"`},
	}
}

// replaceWithBridge deletes a device of the host, and gives its name to another.
func replaceWithBridge(name string) func(*testing.T, *fixture) {
	return func(t *testing.T, f *fixture) {
		inHost(name, unlink)(t, f)
		addBridge(t, f.network.Host, name)
	}
}

// TestCheck spoils one thing at a time.
func TestCheck(t *testing.T) {
	rows := slices.Concat(deviationsOfAll(), deviationsOfVeth(), deviationsOfOthers())
	forEachMode(t, func(t *testing.T, mode Mode) {
		for _, row := range rows {
			if row.modes != nil && !slices.Contains(row.modes, mode.Name()) {
				continue
			}
			t.Run(row.name, func(t *testing.T) {
				f := newFixture(t, mode, 1)
				if err := mode.Check(f.network, f.pods[0]); err != nil {
					t.Fatal(err)
				}
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

// TestOneFamily plugs in pods of one family, where the other is switched off.
func TestOneFamily(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		for i, name := range []string{"IPv4", "IPv6"} {
			t.Run(name, func(t *testing.T) {
				f := newHost(t, mode)
				f.network.Gateways = f.network.Gateways[i : i+1]
				pods := []Pod{f.newPod(t, 0), f.newPod(t, 1)}
				for j := range pods {
					pods[j].Addresses = pods[j].Addresses[i : i+1]
				}
				for _, ns := range []*nl.Namespace{f.network.Host, pods[0].Namespace, pods[1].Namespace} {
					if err := ns.SetSysctl("net/ipv6/conf/default/disable_ipv6", "1"); err != nil {
						t.Fatal(err)
					}
				}
				if err := mode.Setup(f.network); err != nil {
					t.Fatal(err)
				}
				f.create(t, pods[0])
				f.create(t, pods[1])
				if err := mode.Check(f.network, pods[0]); err != nil {
					t.Error(err)
				}
				echoOnce(t, f)
			})
		}
	})
}

// TestNoGateways has mode veth do without addresses of the host's own.
func TestNoGateways(t *testing.T) {
	f := newHost(t, veth{})
	f.network.Gateways = nil
	if err := f.mode.Setup(f.network); err != nil {
		t.Fatal(err)
	}
	f.create(t, f.newPod(t, 0))
	f.create(t, f.newPod(t, 1))
	echoOnce(t, f)
	for _, addr := range f.pods[0].Addresses {
		server := testkit.Echo(t, f.pods[0].Namespace, "tcp", netip.AddrPortFrom(addr, 0).String())
		if _, err := testkit.RoundTrip(t, f.network.Host, "tcp", server.String(), []byte("hello")); err != nil {
			t.Error(err)
		}
	}
}
