// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"fmt"
	"testing"

	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestBigTCP adds pods by each value of the key. With auto, packets of BIG TCP depend on the uplink, which stays as it is.
func TestBigTCP(t *testing.T) {
	for _, link := range []string{"veth", "bridge", "macvlan"} {
		t.Run(link, func(t *testing.T) {
			requireLink(t, link)
			f := newFixture(t)
			for i, test := range []struct {
				more   string
				uplink int // its limits
				want   uint32
			}{
				{"", rtnl.PacketBytes, rtnl.PacketBytes},
				{`,"bigTCP":"auto"`, rtnl.BigTCPBytes, rtnl.BigTCPBytes},
				{`,"bigTCP":"off"`, rtnl.BigTCPBytes, rtnl.PacketBytes},
				{`,"bigTCP":"on"`, rtnl.PacketBytes, rtnl.BigTCPBytes},
			} {
				f.limit(test.uplink)
				id := fmt.Sprint("pod", i)
				p := f.added(id, network("net"+id, link, test.more))
				f.wantPackets(p.Namespace, "eth0", test.want)
				f.wantPackets(f.host, "uplink", uint32(test.uplink))
				f.checkAndDelete(p)
			}
		})
	}
}

// limit sets the limits of the uplink.
func (f *fixture) limit(bytes int) {
	f.t.Helper()
	handle, err := rtnl.In(f.host).Handle()
	f.must(err)
	defer handle.Close()
	link, err := handle.LinkByName("uplink")
	f.must(err)
	f.must(rtnl.SetUpWithPackets(handle, link, uint32(bytes)))
}

// wantPackets compares the limits of a device.
func (f *fixture) wantPackets(ns *netns.Namespace, device string, want uint32) {
	f.t.Helper()
	handle, err := rtnl.In(ns).Handle()
	f.must(err)
	defer handle.Close()
	link, err := handle.LinkByName(device)
	f.must(err)
	if have := link.Attrs().GSOIPv4MaxSize; have != want {
		f.t.Errorf("device %q in %q takes packets of %d bytes, not %d", device, ns.Name(), have, want)
	}
}

// TestBigTCPAutoIsStable adds pods before the host has a default route, and before and after the limits of its card have
// changed. ADD repairs the network in between: what auto decided first holds.
func TestBigTCPAutoIsStable(t *testing.T) {
	t.Parallel()
	config := func(name string) []byte {
		return bytes.Replace(network(name, "bridge", ""), []byte(`"parent":"uplink",`), nil, 1)
	}
	for name, test := range map[string]struct {
		route  bool
		limits []int // of the card, at each ADD
		want   uint32
	}{
		"late": {false, []int{rtnl.BigTCPBytes}, rtnl.PacketBytes},
		"on":   {true, []int{rtnl.BigTCPBytes, rtnl.PacketBytes}, rtnl.BigTCPBytes},
		"off":  {true, []int{rtnl.PacketBytes, rtnl.BigTCPBytes}, rtnl.PacketBytes},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			if !test.route {
				f.must(rtnl.In(f.host).SetUp("uplink", false)) // which removes the routes
			}
			for i, limit := range test.limits {
				if test.route {
					f.limit(limit)
				}
				p := f.added(fmt.Sprint("pod", i), config("net"))
				f.wantPackets(p.Namespace, "eth0", test.want)
				f.wantPackets(f.host, podlink.DefaultBridge, test.want)
				f.must(rtnl.In(f.host).SetSysctl("net/ipv4/conf/all/forwarding", "0")) // the next ADD repairs it
			}
		})
	}
}

// TestParentMTUChanges changes the MTU of the parent. New pods get the new MTU, and CHECK accepts older pods with the old one.
func TestParentMTUChanges(t *testing.T) {
	eachMode(t, func(t *testing.T, f *fixture, mode podlink.Mode) {
		config := network("net", mode.Name(), "")
		var pods []*pod
		for i, mtu := range []int{1400, 9000, 1500, 1300} {
			testkit.Command(t, f.host, fmt.Sprint("ip link set uplink mtu ", mtu))
			p := f.added(fmt.Sprint("p", i), config)
			device, err := rtnl.In(p.Namespace).Device("eth0")
			if want := min(1500, mtu); err != nil || device.MTU != want {
				t.Errorf("the parent has MTU %d, the pod %d, want %d, %v", mtu, device.MTU, want, err)
			}
			if i > 0 { // the kernel raises no MTU
				pods = append(pods, p)
			}
			for _, p := range pods {
				f.must(f.check(p))
			}
			f.reach(p.Namespace, f.host, gateway(p, 0))
		}
		for _, p := range pods {
			f.must(f.del(p))
		}
	})
}
