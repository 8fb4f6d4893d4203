// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// TestUplinkKinds stacks pods on an uplink that is itself a macvlan device, a
// veth device being what the other tests have.
func TestUplinkKinds(t *testing.T) {
	for _, name := range allIPVLAN() {
		t.Run(name, func(t *testing.T) {
			f := newHostOf(t, name)
			withHandle(t, f.network.Host, func(host side) error {
				device := &netlink.Macvlan{LinkAttrs: attrs("mac0"), Mode: netlink.MACVLAN_MODE_BRIDGE}
				if err := host.addOver(uplinkName, device); err != nil {
					return err
				}
				link, err := host.link("mac0")
				if err != nil {
					return err
				}
				if err := host.up(link); err != nil {
					return err
				}
				return host.awaitCarrier(link)
			})
			f.network.Uplink = "mac0"
			if err := f.mode.Setup(f.network); err != nil {
				t.Fatal(err)
			}
			f.create(t, f.newPod(t, 0))
			f.create(t, f.newPod(t, 1))
			if err := f.mode.Check(f.network, f.pods[0]); err != nil {
				t.Error(err)
			}
			echoOnce(t, f)
			echoToHost(t, f)
		})
	}
}

// TestMacvlanUplink stacks pods on an uplink that is a macvlan device of one in
// another namespace: they are beside it, on that one.
func TestMacvlanUplink(t *testing.T) {
	f := newHostOf(t, "macvlan")
	lower := f.network.Host
	f.network.Host = testkit.Namespace(t, "host")
	if _, err := AddMacvlan(nl.WireEnd{Namespace: lower, Name: "nope"}, nl.WireEnd{Namespace: f.network.Host, Name: "up0"}); err == nil {
		t.Error("no error without a device")
	}
	mtu, err := AddMacvlan(nl.WireEnd{Namespace: lower, Name: uplinkName}, nl.WireEnd{Namespace: f.network.Host, Name: uplinkName})
	if err != nil || mtu != DefaultMTU {
		t.Fatalf("MTU %d, %v", mtu, err)
	}
	if err := f.mode.Setup(f.network); err != nil {
		t.Fatal(err)
	}
	f.create(t, f.newPod(t, 0))
	f.create(t, f.newPod(t, 1))
	if err := f.mode.Check(f.network, f.pods[0]); err != nil {
		t.Error(err)
	}
	echoOnce(t, f)
	echoToHost(t, f)
	devices, err := lower.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, device := range devices {
		if device.Kind == "macvlan" {
			t.Errorf("%s is in the namespace of the device below", device.Name)
		}
	}
}

// TestStackedBeside has macvlan and ipvlan pods on one host, on an uplink each.
func TestStackedBeside(t *testing.T) {
	f := newHostOf(t, "macvlan")
	other := *f
	other.mode = newHostOf(t, "ipvlan-l3").mode
	other.network.Uplink = "wire"
	for _, each := range []*fixture{&other, f} { // the routes to pods by ipvlan are the longer ones
		if err := each.mode.Setup(each.network); err != nil {
			t.Fatal(err)
		}
	}
	other.create(t, other.newPod(t, 0))
	f.create(t, f.newPod(t, 1))
	for _, each := range []*fixture{&other, f} {
		if err := each.mode.Check(each.network, each.pods[0]); err != nil {
			t.Error(err)
		}
		for _, addr := range each.pods[0].Addresses {
			server := testkit.Echo(t, each.pods[0].Namespace, "tcp", netip.AddrPortFrom(addr, 0).String())
			if _, err := testkit.RoundTrip(t, f.network.Host, "tcp", server.String(), []byte("hello")); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestIPVLANModes refuses to set up a network on an uplink that has pods of
// another ipvlan mode, whose mode that would change.
func TestIPVLANModes(t *testing.T) {
	f := newHostOf(t, "ipvlan-l2")
	if err := f.mode.Setup(f.network); err != nil {
		t.Fatal(err)
	}
	f.create(t, f.newPod(t, 0))
	f.create(t, f.newPod(t, 1))
	err := newIPVLANL3().Setup(f.network)
	if err == nil || !strings.Contains(err.Error(), `device "mst-ipvlan"`) || !strings.Contains(err.Error(), "is in mode l2, not l3") {
		t.Errorf("error is %v", err)
	}
	pod := f.newPod(t, 2)
	if _, err := newIPVLANL3S().Create(f.network, pod); err == nil || !strings.Contains(err.Error(), "is in mode l2, not l3s") {
		t.Errorf("error is %v", err)
	}
	if err := f.mode.Check(f.network, f.pods[0]); err != nil {
		t.Error(err)
	}
	echoOnce(t, f)
}
