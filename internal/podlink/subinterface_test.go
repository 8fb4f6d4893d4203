// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
	"mustang/internal/tun"
)

// TestMacvlanBesideIPVLAN has macvlan and ipvlan pods on one host, on an uplink each.
func TestMacvlanBesideIPVLAN(t *testing.T) {
	f := newHostOf(t, "macvlan")
	other := *f
	other.mode = newHostOf(t, "ipvlan-l3").mode
	other.network.Uplink = "wire"
	for _, each := range []*fixture{&other, f} { // the routes to pods by ipvlan are the longer ones
		testkit.Succeed(t, each.mode.Setup(each.network))
	}
	other.create(t, other.newPod(t, 0))
	f.create(t, f.newPod(t, 1))
	for _, each := range []*fixture{&other, f} {
		testkit.Succeed(t, each.mode.Check(each.network, each.pods[0]))
		reach(t, f.network.Host, each.pods[0].Namespace, each.pods[0].Addresses...)
	}
}

// TestTapOfVM makes a port for a program that is itself an end of a link, such as a VM. A link for VMs refuses a pod
// with a namespace.
func TestTapOfVM(t *testing.T) {
	for _, name := range []string{"tap", "ovs-tap"} {
		t.Run(name, func(t *testing.T) { testTapOfVM(t, name) })
	}
}

func testTapOfVM(t *testing.T, name string) {
	f := newHostOf(t, name)
	testkit.Succeed(t, f.mode.Setup(f.network))
	empty := describe(t, f.network.Host)
	if name == "ovs-tap" {
		_, err := f.mode.Create(f.network, f.newPod(t, 0))
		testkit.Fails(t, err, "is for VMs")
	}
	pod := Pod{HostIfName: "msta", Addresses: []netip.Addr{netip.MustParseAddr("192.168.10.10")}}
	link := testkit.Must(f.mode.Create(f.network, pod))(t)
	outside := findDevice(t, f.network.Host, "msta")
	bridge := findDevice(t, f.network.Host, DefaultBridge)
	testkit.Check(t, link.IfName == "" && link.IfIndex == 0 && link.MAC == nil, "attachment %+v has a pod's device", link)
	testkit.Check(t, link.HostIfIndex == outside.Index && link.HostMAC.String() == outside.MAC.String() &&
		link.NodeMAC.String() == bridge.MAC.String() && len(link.Addresses) == 1,
		"attachment %+v does not fit %+v", link, outside)
	testkit.Check(t, name != "tap" || outside.MasterIndex == bridge.Index, "%+v is not a port of the bridge", outside)
	testkit.Succeed(t, f.mode.Check(f.network, pod))
	settings := portSettings("msta")
	if name == "ovs-tap" {
		settings = ovsPortSettings("msta")
	}
	for _, s := range settings {
		testkit.Succeed(t, rtnl.In(f.network.Host).SetSysctl(s.Key, "0"))
		wantDeviation(t, f.mode.Check(f.network, pod), s.Key)
		testkit.Succeed(t, rtnl.In(f.network.Host).SetSysctl(s.Key, s.Value))
	}
	_, err := f.mode.Create(f.network, pod)
	testkit.Check(t, err != nil, "a second link of that name is no error")
	device := testkit.Must(tun.Open(f.network.Host, tun.Options{Name: "msta", Kind: tun.TAP}))(t)
	f.awaitCarrier(t, f.network.Host, "msta")
	testkit.Succeed(t, device.Close())
	spoilPort(t, f, pod)
	for range 2 {
		testkit.Succeed(t, f.mode.Delete(f.network, pod))
	}
	nothingLeft(t, empty, describe(t, f.network.Host))
}

// spoilPort takes the port of a VM out of the switch, which Check detects, and creates the link again.
func spoilPort(t *testing.T, f *fixture, pod Pod) {
	t.Helper()
	if f.mode.Name() == "tap" {
		inHost("msta", func(s nsHandle, link netlink.Link) error { return s.LinkSetNoMaster(link) })(t, f)
	} else {
		vsctl(t, f.network, "del-port", "msta")
	}
	var deviation *DeviationError
	err := f.mode.Check(f.network, pod)
	testkit.Check(t, errors.As(err, &deviation), "Check of a device that is no port: %v", err)
	testkit.Succeed(t, f.mode.Delete(f.network, pod))
	testkit.Must(f.mode.Create(f.network, pod))(t)
	testkit.Succeed(t, f.mode.Check(f.network, pod))
}

// TestRelayComesLate connects two pods whose relays start long after their links,
// and stop and start again: addresses and routes stay.
func TestRelayComesLate(t *testing.T) {
	for _, name := range allRelayed() {
		t.Run(name, func(t *testing.T) {
			f := newHostOf(t, name)
			testkit.Succeed(t, f.mode.Setup(f.network))
			for i := range 2 {
				pod := f.newPod(t, i)
				link := testkit.Must(f.mode.Create(f.network, pod))(t)
				f.pods, f.links = append(f.pods, pod), append(f.links, link)
			}
			check := func() {
				t.Helper()
				for _, pod := range f.pods {
					testkit.Succeed(t, f.mode.Check(f.network, pod))
				}
			}
			for range 2 {
				check()
				for _, pod := range f.pods {
					f.startRelay(t, pod)
				}
				check()
				echoOnce(t, f)
				for _, pod := range f.pods {
					f.stopRelay[pod.HostIfName]()
				}
			}
			server := testkit.Echo(t, f.pods[1].Namespace, "udp", netip.AddrPortFrom(f.pods[1].Addresses[0], 0).String())
			conn, err := testkit.Dial(f.pods[0].Namespace, "udp", server.String())
			if err != nil {
				t.Errorf("the route is gone with the relay: %v", err)
			} else {
				_ = conn.Close()
			}
		})
	}
}

// startRelay joins the ends of a pod's link, and returns when both can send.
func (f *fixture) startRelay(t *testing.T, pod Pod) {
	t.Helper()
	open := func(ns *netns.Namespace, name string) *tun.Device {
		t.Helper()
		kind := tun.TUN
		if f.mode.Name() == "tap" {
			kind = tun.TAP
		}
		return testkit.Must(tun.Open(ns, tun.Options{Name: name, Kind: kind, Offload: f.large}))(t)
	}
	outer, inner := open(f.network.Host, pod.HostIfName), open(pod.Namespace, pod.IfName)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tun.Switch(ctx, outer, inner) // an error when the devices are deleted
	}()
	stop := sync.OnceFunc(func() {
		cancel()
		<-done
		_ = outer.Close()
		_ = inner.Close()
	})
	t.Cleanup(stop)
	f.stopRelay[pod.HostIfName] = stop
	f.awaitCarrier(t, f.network.Host, pod.HostIfName)
	f.awaitCarrier(t, pod.Namespace, pod.IfName)
	if f.mode.Name() == "tap" {
		f.awaitCarrier(t, f.network.Host, f.network.bridge())
	}
}

func (f *fixture) awaitCarrier(t *testing.T, ns *netns.Namespace, name string) {
	t.Helper()
	withLink(t, ns, name, nsHandle.awaitCarrier)
}
