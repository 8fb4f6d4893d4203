// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestAddRenamed takes the way that kernels before 6.15 need, on any kernel:
// with a name that is free in the pod, and with one that is not.
func TestAddRenamed(t *testing.T) {
	for _, free := range []bool{true, false} {
		f := newHostOf(t, "macvlan")
		pod := f.newPod(t, 0)
		if !free {
			addBridge(t, pod.Namespace, pod.IfName)
		}
		host, inside, closeBoth, err := openSides(f.network, pod)
		if err != nil {
			t.Fatal(err)
		}
		defer closeBoth()
		before := describe(t, f.network.Host, pod.Namespace)
		uplink, err := host.link(uplinkName)
		if err != nil {
			t.Fatal(err)
		}
		device := &netlink.Macvlan{LinkAttrs: attrs(pod.IfName), Mode: netlink.MACVLAN_MODE_BRIDGE}
		device.ParentIndex = uplink.Attrs().Index
		device.Namespace = netlink.NsFd(pod.Namespace.FD())
		link, err := addRenamed(host, inside, device)
		if !free {
			if !errors.Is(err, fs.ErrExist) {
				t.Errorf("error is %v", err)
			}
			if got := describe(t, f.network.Host, pod.Namespace); got != before {
				t.Errorf("left behind:\n%s", difference(before, got))
			}
			continue
		}
		if err != nil || link.Attrs().Name != pod.IfName || link.Type() != "macvlan" {
			t.Fatalf("created %v, %v", link, err)
		}
		if device := findDevice(t, pod.Namespace, pod.IfName); device.Index != link.Attrs().Index {
			t.Errorf("the pod has %+v", device)
		}
	}
}
