// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"io/fs"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// setupFailure is a situation in which Setup must fail, and leave everything as it was, in each of its modes.
type setupFailure struct {
	name    string
	modes   []string
	arrange func(s *situation)
	message string
}

func setupFailures() []setupFailure {
	onHost := func(change func(host nsHandle) error) func(s *situation) {
		return func(s *situation) { withHandle(s.t, s.f.network.Host, change) }
	}
	return []setupFailure{
		{"uplink is missing", allSubinterfaces(), func(s *situation) { s.f.network.Uplink = "none0" }, `"none0"`},
		{"no uplink", allSubinterfaces(), func(s *situation) { s.f.network.Uplink = "" }, "uplink: the name is empty"},
		{"uplink is down", allSubinterfaces(), func(s *situation) { withLink(s.t, s.f.network.Host, uplinkName, down) },
			"not up"},
		{"slave's name is taken", []string{"macvlan"}, func(s *situation) {
			addBridge(s.t, s.f.network.Host, MacvlanHostDevice)
		}, MacvlanHostDevice},
		{"slave's name is taken", allIPVLAN(), func(s *situation) {
			addBridge(s.t, s.f.network.Host, IPVLANHostDevice)
		}, "is a bridge, not an ipvlan"},
		{"uplink is a bridge's port", allSubinterfaces(), onHost(func(host nsHandle) error {
			if err := host.LinkAdd(&netlink.Bridge{LinkAttrs: newAttrs("br0")}); err != nil {
				return err
			}
			return host.LinkSetMaster(byName(uplinkName), byName("br0"))
		}), `uplink "eth0"`},
		{"uplink has macvlan devices", allIPVLAN(), onHost(func(host nsHandle) error {
			return host.addOver(uplinkName, &netlink.Macvlan{LinkAttrs: newAttrs("mac0"), Mode: netlink.MACVLAN_MODE_BRIDGE})
		}), "has devices of another kind"},
		{"uplink has ipvlan devices in L3S mode", []string{"ipvlan-l2", "ipvlan-l3"}, onHost(func(host nsHandle) error {
			return host.addOver(uplinkName, &netlink.IPVlan{LinkAttrs: newAttrs("ipvl0"), Mode: netlink.IPVLAN_MODE_L3S})
		}), `device "ipvl0"`},
		{"uplink has private ipvlan devices", []string{"ipvlan-l3s"}, onHost(func(host nsHandle) error {
			return host.addOver(uplinkName, &netlink.IPVlan{
				LinkAttrs: newAttrs("ipvl0"), Mode: netlink.IPVLAN_MODE_L3S, Flag: netlink.IPVLAN_FLAG_PRIVATE,
			})
		}), "isolates pods from each other"},
		{"uplink is an ipvlan device", allIPVLAN(), func(s *situation) {
			onHost(func(host nsHandle) error {
				return host.addOver(uplinkName, &netlink.IPVlan{LinkAttrs: newAttrs("ipvl0"), Mode: netlink.IPVLAN_MODE_L2})
			})(s)
			s.f.network.Uplink = "ipvl0"
		}, "is itself a device of kind ipvlan"},
		{"router's address is the host's", allOnGateways(), func(s *situation) {
			s.f.network.Routers = []netip.Addr{netip.MustParseAddr("fd00:10::2")}
			withLink(s.t, s.f.network.Host, "lo", func(host nsHandle, lo netlink.Link) error {
				return host.addGateways(lo, []netip.Prefix{netip.MustParsePrefix("fd00:10::2/128")})
			})
		}, "address fd00:10::2 of a router other than the host is an address of"},
		{"bridge's name is taken", allBridged(), func(s *situation) { s.f.network.Bridge = uplinkName }, "not a bridge"},
		{"bridge's name is too long", allBridged(), func(s *situation) { s.f.network.Bridge = "sixteen-letters-" },
			"more than"},
		{"MTU too large", allBridged(), func(s *situation) { s.f.network.MTU = 70000 }, "MTU 70000"},
		{"invalid gateway", allRouted(), func(s *situation) { s.f.network.Gateways[0] = netip.Prefix{} }, "gateway"},
		{"IPv6 is off", allRouted(), func(s *situation) {
			testkit.Succeed(s.t, rtnl.In(s.f.network.Host).SetSysctl("net/ipv6/conf/lo/disable_ipv6", "1"))
		}, "fd00:10::1/128"},
	}
}

// byName is a device for calls that need only its name.
func byName(name string) netlink.Link { return &netlink.GenericLink{LinkAttrs: newAttrs(name)} }

func (s nsHandle) addOver(parent string, device netlink.Link) error {
	link, err := s.link(parent)
	if err != nil {
		return err
	}
	device.Attrs().ParentIndex = link.Attrs().Index
	return s.LinkAdd(device)
}

// TestSetupFails has Setup fail, and compares the host before and after.
func TestSetupFails(t *testing.T) {
	for _, row := range setupFailures() {
		for _, name := range row.modes {
			t.Run(name+"/"+row.name, func(t *testing.T) {
				newHostOf(t, name).setupFails(t, row.arrange, row.message)
			})
		}
	}
}

// setupFails has Setup fail in a situation, and compares the host before and after.
func (f *fixture) setupFails(t *testing.T, arrange func(*situation), message string) {
	t.Helper()
	arrange(&situation{t: t, f: f})
	before := describe(t, f.network.Host)
	testkit.Fails(t, f.mode.Setup(f.network), message)
	nothingLeft(t, before, describe(t, f.network.Host))
}

// TestNoTransientPeer watches the host while pods come and go: apart from
// its own devices nothing may appear in it, not even for a moment.
func TestNoTransientPeer(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newFixture(t, mode, 0)
		pod := f.newPod(t, 0)
		updates, done := make(chan netlink.LinkUpdate, 1000), make(chan struct{})
		testkit.Succeed(t, f.network.Host.Do(func() error { return netlink.LinkSubscribe(updates, done) }))
		f.create(t, pod)
		testkit.Succeed(t, mode.Delete(f.network, pod))
		addBridge(t, f.network.Host, "sentinel")
		ours := map[string]bool{
			"lo": true, uplinkName: true, "wire": true, DefaultBridge: true, MacvlanHostDevice: true, IPVLANHostDevice: true,
			pod.HostIfName: mode.Traits().HostSide || mode.Traits().Needs == NeedsOpenVSwitch,
		}
		deadline := time.After(5 * time.Second)
		for {
			select {
			case update := <-updates:
				name := update.Attrs().Name
				if name == "sentinel" {
					close(done)
					return
				}
				testkit.Check(t, ours[name], "device %q appeared in the host", name)
			case <-deadline:
				t.Fatal("no message for the last device")
			}
		}
	})
}

// linkOnly creates a pod's device without addresses.
func linkOnly(mode Mode, network Network, pod Pod) error {
	pod.LinkOnly = true
	_, err := mode.Create(network, pod)
	return err
}

// TestLinkOnly creates pods' devices first, and gives them addresses then. Modes without DHCP refuse pods without
// addresses.
func TestLinkOnly(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newFixture(t, mode, 1)
		pod := f.newPod(t, 1)
		if !mode.Traits().DHCP {
			testkit.Fails(t, linkOnly(mode, f.network, pod), "DHCP")
			return
		}
		f.linkOnlyFails(t)
		bare, without := pod, f.network
		bare.Addresses, without.Gateways = nil, nil
		testkit.Succeed(t, linkOnly(mode, without, bare))
		before := findDevice(t, pod.Namespace, pod.IfName)
		testkit.Check(t, before.Up && len(globals(before)) == 0, "plugged in, the device is %+v", before)
		err := linkOnly(mode, without, bare)
		testkit.Check(t, errors.Is(err, fs.ErrExist), "a pod is plugged in twice: %v", err)
		pod.Linked = true
		wrong := pod
		wrong.Addresses = []netip.Addr{netip.MustParseAddr("192.168.11.7")}
		_, err = mode.Create(f.network, wrong)
		testkit.Check(t, err != nil, "an address of another network is taken")
		f.create(t, pod)
		after := findDevice(t, pod.Namespace, pod.IfName)
		testkit.Check(t, after.Index == before.Index && after.MAC.String() == before.MAC.String() && len(globals(after)) == 2,
			"the device was %+v, and is %+v", before, after)
		testkit.Succeed(t, mode.Check(f.network, pod))
		for _, addr := range pod.Addresses {
			server := testkit.Echo(t, pod.Namespace, "udp", netip.AddrPortFrom(addr, 0).String())
			_, err := testkit.RoundTrip(t, f.pods[0].Namespace, "udp", server.String(), []byte("x"))
			testkit.Check(t, err == nil, "another pod can't reach %v: %v", addr, err)
		}
		testkit.Succeed(t, mode.Delete(f.network, pod))
		has, err := rtnl.In(pod.Namespace).HasDevice(pod.IfName)
		testkit.Check(t, err == nil && !has, "the device is there after Delete: %t, %v", has, err)
	})
}

// linkOnlyFails tries invalid pods, which leave nothing.
func (f *fixture) linkOnlyFails(t *testing.T) {
	t.Helper()
	for words, spoil := range map[string]func(*Network, *Pod){
		"not list addresses": func(_ *Network, p *Pod) { p.Addresses = []netip.Addr{netip.MustParseAddr("192.168.10.9")} },
		"multicast":          func(_ *Network, p *Pod) { p.MAC = []byte{1, 2, 3, 4, 5, 6} },
		"no namespace":       func(_ *Network, p *Pod) { p.Namespace = nil },
		"interface":          func(_ *Network, p *Pod) { p.IfName = "a/b" },
		`"none"`:             func(n *Network, _ *Pod) { n.Uplink, n.Bridge = "none", "none" },
		"MTU":                func(n *Network, _ *Pod) { n.MTU = 1 },
	} {
		pod, network := f.newPod(t, 2), f.network
		pod.Addresses = nil
		at := pod.Namespace
		spoil(&network, &pod)
		testkit.Fails(t, linkOnly(f.mode, network, pod), words)
		for ns, device := range map[*netns.Namespace]string{at: "eth0", f.network.Host: pod.HostIfName} {
			has, err := rtnl.In(ns).HasDevice(device)
			testkit.Check(t, err == nil && !has, "%s: device %s is there: %t, %v", words, device, has, err)
		}
	}
}

// globals are a device's addresses that aren't link-local.
func globals(d rtnl.Device) (out []netip.Prefix) {
	for _, addr := range d.Addrs {
		if !addr.Addr().IsLinkLocalUnicast() {
			out = append(out, addr)
		}
	}
	return out
}
