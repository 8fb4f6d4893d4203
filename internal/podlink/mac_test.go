// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestMAC gives a pod's device an address, has Check notice another one, and has
// modes refuse that can't.
func TestMAC(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newFixture(t, mode, 0)
		pod := f.newPod(t, 0)
		pod.MAC = net.HardwareAddr{2, 0, 0, 0, 0x10, 0xaa}
		if slices.Contains(append(allInLayer3(), allIPVLAN()...), mode.Name()) {
			before := describe(t, f.network.Host, pod.Namespace)
			_, err := mode.Create(f.network, pod)
			if err == nil || !strings.Contains(err.Error(), "link mode "+mode.Name()) {
				t.Errorf("error is %v", err)
			}
			if got := describe(t, f.network.Host, pod.Namespace); got != before {
				t.Errorf("left behind:\n%s", difference(before, got))
			}
			return
		}
		f.create(t, pod)
		if have := findDevice(t, pod.Namespace, pod.IfName).MAC; !slices.Equal(have, pod.MAC) || !slices.Equal(f.links[0].MAC, pod.MAC) {
			t.Errorf("the device has %v, the attachment %v", have, f.links[0].MAC)
		}
		if err := mode.Check(f.network, pod); err != nil {
			t.Error(err)
		}
		echoToHost(t, f)
		other := pod
		other.MAC = net.HardwareAddr{2, 0, 0, 0, 0x10, 0xbb}
		if err := mode.Check(f.network, other); err == nil || !strings.Contains(err.Error(), "has MAC address 02:00:00:00:10:aa, not") {
			t.Errorf("Check says %v", err)
		}
	})
}

// TestAttachmentRoutes compares what Create says of addresses and routes with
// what the pod's device has.
func TestAttachmentRoutes(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newFixture(t, mode, 1)
		link := f.links[0]
		inside := findDevice(t, f.pods[0].Namespace, link.IfName)
		if link.MTU != inside.MTU {
			t.Errorf("MTU is %d, the attachment says %d", inside.MTU, link.MTU)
		}
		have := slices.DeleteFunc(inside.Addrs, func(p netip.Prefix) bool { return p.Addr().IsLinkLocalUnicast() })
		if !slices.Equal(have, link.Prefixes) {
			t.Errorf("the device has %v, the attachment %v", have, link.Prefixes)
		}
		var want []Route
		withHandle(t, f.pods[0].Namespace, func(s nsHandle) error {
			for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
				routes, err := s.RouteList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: inside.Index}}, family)
				if err != nil {
					return err
				}
				for _, r := range routes {
					if ones, _ := r.Dst.Mask.Size(); ones == 0 {
						via, _ := netip.AddrFromSlice(r.Gw)
						everything := defaultPrefix(f.pods[0].Addresses[0])
						if family == netlink.FAMILY_V6 {
							everything = defaultPrefix(f.pods[0].Addresses[1])
						}
						want = append(want, Route{Dst: everything, Via: via.Unmap()})
					}
				}
			}
			return nil
		})
		if len(want) != 2 || !slices.Equal(link.Routes, want) {
			t.Errorf("the device has the routes %v, the attachment %v", want, link.Routes)
		}
	})
}
