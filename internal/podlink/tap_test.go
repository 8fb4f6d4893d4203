// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"net/netip"
	"testing"

	"mustang/internal/testkit"
	"mustang/internal/tun"
)

// TestTapOfVM makes a port for a program that is an end of a link itself, such as
// a VM.
func TestTapOfVM(t *testing.T) {
	f := newHostOf(t, "tap")
	if err := f.mode.Setup(f.network); err != nil {
		t.Fatal(err)
	}
	empty := describe(t, f.network.Host)
	pod := Pod{HostIfName: "msta", Addresses: []netip.Addr{netip.MustParseAddr("192.168.10.10")}}
	link, err := f.mode.Create(f.network, pod)
	if err != nil {
		t.Fatal(err)
	}
	outside := findDevice(t, f.network.Host, "msta")
	bridge := findDevice(t, f.network.Host, DefaultBridge)
	if link.IfName != "" || link.IfIndex != 0 || link.MAC != nil {
		t.Errorf("attachment %+v has a pod's device", link)
	}
	if link.HostIfIndex != outside.Index || link.HostMAC.String() != outside.MAC.String() ||
		link.NodeMAC.String() != bridge.MAC.String() || len(link.Addresses) != 1 {
		t.Errorf("attachment %+v does not fit %+v", link, outside)
	}
	if outside.MasterIndex != bridge.Index {
		t.Errorf("%+v is not a port of the bridge", outside)
	}
	if err := f.mode.Check(f.network, pod); err != nil {
		t.Error(err)
	}
	if err := f.network.Host.SetSysctl("net/ipv6/conf/msta/disable_ipv6", "0"); err != nil {
		t.Fatal(err)
	}
	if err := f.mode.Check(f.network, pod); err == nil {
		t.Error("Check does not notice that the port has IPv6")
	}
	if _, err := f.mode.Create(f.network, pod); err == nil {
		t.Error("a second link of that name is no error")
	}
	device, err := tun.Open(f.network.Host, tun.Options{Name: "msta", Kind: tun.TAP})
	if err != nil {
		t.Fatal(err)
	}
	f.awaitCarrier(t, f.network.Host, "msta")
	if err := device.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := f.mode.Delete(f.network, pod); err != nil {
			t.Fatal(err)
		}
	}
	if got := describe(t, f.network.Host); got != empty {
		t.Errorf("left behind:\n%s", difference(empty, got))
	}
}

// TestRelayComesLate connects two pods whose relays start long after their links,
// and stop and start again: addresses and routes stay.
func TestRelayComesLate(t *testing.T) {
	for _, name := range allRelayed() {
		t.Run(name, func(t *testing.T) {
			f := newHostOf(t, name)
			if err := f.mode.Setup(f.network); err != nil {
				t.Fatal(err)
			}
			for i := range 2 {
				pod := f.newPod(t, i)
				link, err := f.mode.Create(f.network, pod)
				if err != nil {
					t.Fatal(err)
				}
				f.pods, f.links = append(f.pods, pod), append(f.links, link)
			}
			check := func() {
				t.Helper()
				for _, pod := range f.pods {
					if err := f.mode.Check(f.network, pod); err != nil {
						t.Error(err)
					}
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
