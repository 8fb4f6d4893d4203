// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// fixture is a host with an uplink, and pods of one mode on it, which all go when the test is over.
type fixture struct {
	mode    Mode
	network Network
	pods    []Pod
	links   []Attachment
	// large is whether packets larger than the MTU cross the links. Relays are started accordingly.
	large     bool
	stopRelay map[string]func() // ends a pod's relay, by the name of the host's device
}

// uplinkName is the host's uplink. It has the name that pods' devices have too, as is usual.
const uplinkName = "eth0"

// newHost makes a host that is not set up, with an uplink to nowhere.
func newHost(t *testing.T, mode Mode) *fixture {
	t.Helper()
	if shared, ok := mode.(sharedHost); ok {
		return shared.fixture(t)
	}
	host := testkit.Namespace(t, "host")
	addUplink(t, host)
	network := Network{
		Host:     host,
		Uplink:   uplinkName,
		Gateways: []netip.Prefix{netip.MustParsePrefix("192.168.10.1/24"), netip.MustParsePrefix("fd00:10::1/64")},
	}
	if mode.Traits().Needs == NeedsOpenVSwitch {
		network.OVSDB = startOpenVSwitch(t, host)
	}
	return &fixture{mode: mode, network: network, large: true, stopRelay: map[string]func(){}}
}

// newFixture makes a host that is set up, and pods as 192.168.10.10 and fd00:10::10, and so on.
func newFixture(t *testing.T, mode Mode, pods int) *fixture {
	t.Helper()
	f := newHost(t, mode)
	f.setUp(t, pods)
	return f
}

func (f *fixture) setUp(t *testing.T, pods int) {
	t.Helper()
	testkit.Succeed(t, f.mode.Setup(f.network))
	for i := range pods {
		f.create(t, f.newPod(t, i))
	}
}

// newPod describes the i-th pod, with a namespace but not yet plugged in.
func (f *fixture) newPod(t *testing.T, i int) Pod {
	t.Helper()
	suffix := string(rune('a' + i))
	return Pod{
		Namespace:  testkit.Namespace(t, "pod-"+suffix),
		IfName:     "eth0",
		HostIfName: "mst" + suffix,
		Addresses: []netip.Addr{
			netip.AddrFrom4([4]byte{192, 168, 10, byte(10 + i)}),
			netip.MustParseAddr("fd00:10::1" + string(rune('0'+i))),
		},
	}
}

func (f *fixture) create(t *testing.T, pod Pod) {
	t.Helper()
	link := testkit.Must(f.mode.Create(f.network, pod))(t)
	f.pods, f.links = append(f.pods, pod), append(f.links, link)
	if f.mode.Traits().Needs == NeedsRelay {
		f.startRelay(t, pod)
	}
}

func addUplink(t testing.TB, host *netns.Namespace) {
	t.Helper()
	withHandle(t, host, func(s nsHandle) error {
		link := &netlink.Veth{LinkAttrs: newAttrs(uplinkName), PeerName: "wire", PeerTxQLen: -1}
		if err := s.LinkAdd(link); err != nil {
			return err
		}
		steps := []func(netlink.Link) error{
			// A link-local address would change its state in the middle of a test.
			func(l netlink.Link) error { return apply(s.ns, layer3Settings(l.Attrs().Name, nil)) },
			s.setUp,
			s.awaitCarrier,
		}
		for _, step := range steps {
			for _, name := range []string{uplinkName, "wire"} {
				link, err := s.link(name)
				if err != nil {
					return err
				}
				if err := step(link); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// withHandle runs fn with a netlink socket inside ns.
func withHandle(t testing.TB, ns *netns.Namespace, fn func(s nsHandle) error) {
	t.Helper()
	s := testkit.Must(openHandle(ns))(t)
	defer s.Close()
	testkit.Succeed(t, fn(s))
}

// forEachMode runs a test for each mode that this kernel has.
func forEachMode(t *testing.T, test func(t *testing.T, mode Mode)) {
	testkit.RequireRoot(t)
	for _, mode := range Modes() {
		t.Run(mode.Name(), func(t *testing.T) {
			testkit.RequireMode(t, mode.Probe())
			test(t, mode)
		})
	}
}

// newHostOf makes a host for the mode of that name, if this kernel has it.
func newHostOf(t *testing.T, name string) *fixture {
	t.Helper()
	testkit.RequireRoot(t)
	mode := testkit.Must(Lookup(name))(t)
	testkit.RequireMode(t, mode.Probe())
	return newHost(t, mode)
}

// The modes of table rows, by common properties.
func routedByEthernet() []string { return []string{"veth", "netkit-l2"} }

func routedInLayer3() []string { return []string{"netkit", "tun"} }

func allRouted() []string { return append(routedByEthernet(), routedInLayer3()...) }

func allBridged() []string { return []string{"bridge", "tap"} }

func subinterfacesByEthernet() []string { return []string{"macvlan", "ipvlan-l2"} }

func subinterfacesInLayer3() []string { return []string{"ipvlan-l3", "ipvlan-l3s"} }

func allSubinterfaces() []string {
	return append(subinterfacesByEthernet(), subinterfacesInLayer3()...)
}

func allIPVLAN() []string { return append(subinterfacesInLayer3(), "ipvlan-l2") }

func allInLayer3() []string { return append(routedInLayer3(), subinterfacesInLayer3()...) }

func allOnGateways() []string {
	return slices.Concat(allBridged(), subinterfacesByEthernet(), allOVS())
}

func allRelayed() []string { return []string{"tap", "tun"} }

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
				for _, ns := range []*netns.Namespace{f.network.Host, pods[0].Namespace, pods[1].Namespace} {
					testkit.Succeed(t, rtnl.In(ns).SetSysctl("net/ipv6/conf/default/disable_ipv6", "1"))
				}
				testkit.Succeed(t, mode.Setup(f.network))
				f.create(t, pods[0])
				f.create(t, pods[1])
				testkit.Succeed(t, mode.Check(f.network, pods[0]))
				echoOnce(t, f)
			})
		}
	})
}

// TestNoGateways has modes that route do without addresses of the host's own.
func TestNoGateways(t *testing.T) {
	for _, name := range allRouted() {
		t.Run(name, func(t *testing.T) { testNoGateways(t, newHostOf(t, name)) })
	}
}

func testNoGateways(t *testing.T, f *fixture) {
	f.network.Gateways = nil
	withLink(t, f.network.Host, uplinkName, func(host nsHandle, uplink netlink.Link) error {
		// What the host's own packets come from.
		return host.addGateways(uplink, []netip.Prefix{
			netip.MustParsePrefix("10.9.9.1/24"), netip.MustParsePrefix("fd00:9::1/64"),
		})
	})
	f.setUp(t, 2)
	echoOnce(t, f)
	reach(t, f.network.Host, f.pods[0].Namespace, f.pods[0].Addresses...)
}
