// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"io/fs"
	"net/netip"
	"strings"
	"testing"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// forEachDHCPMode runs a test for each mode whose pods can ask for addresses.
func forEachDHCPMode(t *testing.T, test func(t *testing.T, mode Mode)) {
	testkit.RequireRoot(t)
	for _, mode := range Modes() {
		if mode.Traits().DHCP {
			t.Run(mode.Name(), func(t *testing.T) { test(t, mode) })
		}
	}
}

// linkOnly creates a pod's device without addresses.
func linkOnly(mode Mode, network Network, pod Pod) error {
	pod.LinkOnly = true
	_, err := mode.Create(network, pod)
	return err
}

// TestLinkOnlyNeedsDHCP has every other mode refuse a pod without addresses.
func TestLinkOnlyNeedsDHCP(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		if mode.Traits().DHCP {
			return
		}
		f := newFixture(t, mode, 0)
		pod := f.newPod(t, 0)
		if err := linkOnly(mode, f.network, pod); err == nil || !strings.Contains(err.Error(), "DHCP") {
			t.Errorf("error is %v", err)
		}
	})
}

// TestLinkOnly creates pods' devices first, and gives them addresses then.
func TestLinkOnly(t *testing.T) {
	forEachDHCPMode(t, func(t *testing.T, mode Mode) {
		f := newFixture(t, mode, 1)
		pod := f.newPod(t, 1)
		bare, without := pod, f.network
		bare.Addresses, without.Gateways = nil, nil
		if err := linkOnly(mode, without, bare); err != nil {
			t.Fatal(err)
		}
		before := f.deviceOf(t, pod)
		if !before.Up || len(globals(before)) > 0 {
			t.Errorf("plugged in, the device is %+v", before)
		}
		if err := linkOnly(mode, without, bare); !errors.Is(err, fs.ErrExist) {
			t.Errorf("a pod is plugged in twice: %v", err)
		}
		pod.Linked = true
		wrong := pod
		wrong.Addresses = []netip.Addr{netip.MustParseAddr("192.168.11.7")}
		if _, err := mode.Create(f.network, wrong); err == nil {
			t.Error("an address of another network is taken")
		}
		f.create(t, pod)
		if after := f.deviceOf(t, pod); after.Index != before.Index || after.MAC.String() != before.MAC.String() || len(globals(after)) != 2 {
			t.Errorf("the device was %+v, and is %+v", before, after)
		}
		if err := mode.Check(f.network, pod); err != nil {
			t.Error(err)
		}
		for _, addr := range pod.Addresses {
			server := testkit.Echo(t, pod.Namespace, "udp", netip.AddrPortFrom(addr, 0).String())
			if _, err := testkit.RoundTrip(t, f.pods[0].Namespace, "udp", server.String(), []byte("x")); err != nil {
				t.Errorf("another pod can't reach %v: %v", addr, err)
			}
		}
		if err := mode.Delete(f.network, pod); err != nil {
			t.Fatal(err)
		}
		if has, err := rtnl.In(pod.Namespace).HasDevice(pod.IfName); err != nil || has {
			t.Errorf("the device is there after Delete: %t, %v", has, err)
		}
	})
}

// TestLinkOnlyFails leaves nothing of invalid pods.
func TestLinkOnlyFails(t *testing.T) {
	forEachDHCPMode(t, func(t *testing.T, mode Mode) {
		f := newFixture(t, mode, 0)
		for words, spoil := range map[string]func(*Network, *Pod){
			"has addresses": func(_ *Network, p *Pod) { p.Addresses = []netip.Addr{netip.MustParseAddr("192.168.10.9")} },
			"multicast":     func(_ *Network, p *Pod) { p.MAC = []byte{1, 2, 3, 4, 5, 6} },
			"no namespace":  func(_ *Network, p *Pod) { p.Namespace = nil },
			"interface":     func(_ *Network, p *Pod) { p.IfName = "a/b" },
			`"none"`:        func(n *Network, _ *Pod) { n.Uplink, n.Bridge = "none", "none" },
			"MTU":           func(n *Network, _ *Pod) { n.MTU = 1 },
		} {
			pod, network := f.newPod(t, 0), f.network
			pod.Addresses = nil
			at := pod.Namespace
			spoil(&network, &pod)
			if err := linkOnly(mode, network, pod); err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("%s: %v", words, err)
			}
			if has, err := rtnl.In(at).HasDevice("eth0"); err != nil || has {
				t.Errorf("%s: the device is there: %t, %v", words, has, err)
			}
			if has, err := rtnl.In(f.network.Host).HasDevice("msta"); err != nil || has {
				t.Errorf("%s: the host's device is there: %t, %v", words, has, err)
			}
		}
	})
}

func (f *fixture) deviceOf(t *testing.T, pod Pod) rtnl.Device {
	t.Helper()
	device, err := rtnl.In(pod.Namespace).Device(pod.IfName)
	if err != nil {
		t.Fatal(err)
	}
	return device
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
