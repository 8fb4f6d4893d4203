// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestUplinkKinds stacks pods on an uplink that is itself a macvlan device, a
// veth device being what the other tests have.
func TestUplinkKinds(t *testing.T) {
	for _, name := range allIPVLAN() {
		t.Run(name, func(t *testing.T) {
			f := newHostOf(t, name)
			withHandle(t, f.network.Host, func(host nsHandle) error {
				device := &netlink.Macvlan{LinkAttrs: newAttrs("mac0"), Mode: netlink.MACVLAN_MODE_BRIDGE}
				if err := host.addOver(uplinkName, device); err != nil {
					return err
				}
				link, err := host.link("mac0")
				if err != nil {
					return err
				}
				if err := host.setUp(link); err != nil {
					return err
				}
				return host.awaitCarrier(link)
			})
			f.network.Uplink = "mac0"
			f.setUp(t, 2)
			testkit.Succeed(t, f.mode.Check(f.network, f.pods[0]))
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
	below := Network{Host: lower, Uplink: "nope"}
	uplink := Pod{Namespace: f.network.Host, IfName: uplinkName, LinkOnly: true}
	if _, err := f.mode.Create(below, uplink); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error without a device is %v", err)
	}
	below.Uplink = uplinkName
	testkit.Must(f.mode.Create(below, uplink))(t)
	f.setUp(t, 2)
	testkit.Succeed(t, f.mode.Check(f.network, f.pods[0]))
	echoOnce(t, f)
	echoToHost(t, f)
	devices := testkit.Must(rtnl.In(lower).Devices())(t)
	for _, device := range devices {
		if device.Kind == "macvlan" {
			t.Errorf("%s is in the namespace of the device below", device.Name)
		}
	}
}

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

// TestIPVLANModes refuses to set up a network on an uplink that has pods of
// another ipvlan mode, whose mode that would change.
func TestIPVLANModes(t *testing.T) {
	f := newHostOf(t, "ipvlan-l2")
	f.setUp(t, 2)
	err := newIPVLAN(netlink.IPVLAN_MODE_L3).Setup(f.network)
	testkit.Fails(t, err, `device "mst-ipvlan"`, "is in mode l2, not l3")
	pod := f.newPod(t, 2)
	if _, err := newIPVLAN(netlink.IPVLAN_MODE_L3S).Create(f.network, pod); err == nil || !strings.Contains(err.Error(), "is in mode l2, not l3s") {
		t.Errorf("error is %v", err)
	}
	testkit.Succeed(t, f.mode.Check(f.network, f.pods[0]))
	echoOnce(t, f)
}

// TestAddRenamed takes the way that kernels before 6.15 need, on any kernel:
// with a name that is free in the pod, and with one that is not.
func TestAddRenamed(t *testing.T) {
	for _, free := range []bool{true, false} {
		f := newHostOf(t, "macvlan")
		pod := f.newPod(t, 0)
		if !free {
			addBridge(t, pod.Namespace, pod.IfName)
		}
		var link netlink.Link
		var failed error
		before := describe(t, f.network.Host, pod.Namespace)
		withHandle(t, f.network.Host, func(host nsHandle) error {
			uplink, err := host.link(uplinkName)
			if err != nil {
				return err
			}
			device := &netlink.Macvlan{LinkAttrs: newAttrs(pod.IfName), Mode: netlink.MACVLAN_MODE_BRIDGE}
			device.ParentIndex = uplink.Attrs().Index
			device.Namespace = netlink.NsFd(pod.Namespace.FD())
			withHandle(t, pod.Namespace, func(inside nsHandle) error {
				link, failed = addRenamed(host, inside, device)
				inside.undo.onError(&failed)
				return nil
			})
			return nil
		})
		if !free {
			if !errors.Is(failed, fs.ErrExist) {
				t.Errorf("error is %v", failed)
			}
			nothingLeft(t, before, describe(t, f.network.Host, pod.Namespace))
			continue
		}
		if failed != nil || link.Attrs().Name != pod.IfName || link.Type() != "macvlan" {
			t.Fatalf("created %v, %v", link, failed)
		}
		if device := findDevice(t, pod.Namespace, pod.IfName); device.Index != link.Attrs().Index {
			t.Errorf("the pod has %+v", device)
		}
	}
}
