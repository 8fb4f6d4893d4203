// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"mustang/internal/netns"
	"mustang/internal/ovs"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestBigTCP has two pods exchange data. IPv4 packets of more than 64 KiB arrive in modes with Traits.BigTCP, in others
// none. IPv6 packets are never larger: routers would drop them. The host's own devices stay as they are.
func TestBigTCP(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newHost(t, mode)
		f.network.BigTCP = true
		f.setUp(t, 2)
		want := uint32(rtnl.BigTCPBytes)
		if !takesBigTCP(t, f) {
			want = rtnl.PacketBytes
		}
		for i, link := range f.links {
			wantPackets(t, f.pods[i].Namespace, link.IfName, want)
			if link.HostIfName != "" {
				wantPackets(t, f.network.Host, link.HostIfName, want)
			}
		}
		if device := mode.Traits().HostDevice; device != "" && mode.Traits().Needs != NeedsOpenVSwitch {
			wantPackets(t, f.network.Host, device, want)
		}
		wantPackets(t, f.network.Host, uplinkName, rtnl.PacketBytes)
		wantPackets(t, f.network.Host, "lo", rtnl.PacketBytes)
		for i, addr := range f.pods[1].Addresses {
			server := testkit.Echo(t, f.pods[1].Namespace, "tcp", netip.AddrPortFrom(addr, 0).String())
			packets := testkit.WatchPackets(t, f.pods[1].Namespace, findDevice(t, f.pods[1].Namespace, f.links[1].IfName).Index, nil)
			limit := want
			if addr.Is6() {
				limit = rtnl.PacketBytes
			}
			payload := make([]byte, 16<<20)
			_, _ = rand.Read(payload)
			testkit.Eventually(t, 30*time.Second, func() error {
				testkit.Must(testkit.RoundTrip(t, f.pods[0].Namespace, "tcp", server.String(), payload))(t)
				if largest := packets.Load(); limit == rtnl.BigTCPBytes && largest <= rtnl.PacketBytes {
					return fmt.Errorf("the largest packet to %v has %d bytes", addr, largest)
				}
				return nil
			})
			if largest := packets.Load(); largest > int64(limit)+etherHeader {
				t.Errorf("address %d: a packet has %d bytes, more than %d", i, largest, limit)
			}
		}
	})
}

// TestBigTCPOfSharedDevice has networks with BIG TCP and without take turns. The host's device has the limits of the first
// one, pods those of their own. CHECK takes pods of either.
func TestBigTCPOfSharedDevice(t *testing.T) {
	limits := map[bool]uint32{true: rtnl.BigTCPBytes, false: rtnl.PacketBytes}
	for _, name := range []string{"veth", "bridge", "macvlan"} {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " first ", first), func(t *testing.T) {
				f := newHostOf(t, name)
				for i, big := range []bool{first, !first, first, !first} {
					f.network.BigTCP = big
					testkit.Succeed(t, f.mode.Setup(f.network))
					f.create(t, f.newPod(t, i))
					wantPackets(t, f.pods[i].Namespace, f.links[i].IfName, limits[big])
					if device := f.mode.Traits().HostDevice; device != "" {
						wantPackets(t, f.network.Host, device, limits[first])
					}
				}
				for _, pod := range f.pods {
					for _, big := range []bool{true, false} {
						f.network.BigTCP = big
						testkit.Succeed(t, f.mode.Check(f.network, pod))
					}
				}
			})
		}
	}
}

// TestBigTCPKeepsHostBridge adds a pod to a bridge of the host whose port leads out: it takes larger packets, and keeps the
// limits that it has.
func TestBigTCPKeepsHostBridge(t *testing.T) {
	for _, bytes := range []uint32{rtnl.PacketBytes, 2 * rtnl.PacketBytes} {
		f := newHostOf(t, "bridge")
		f.network.BigTCP = true
		withLink(t, f.network.Host, uplinkName, func(h nsHandle, uplink netlink.Link) error {
			bridge := &netlink.Bridge{LinkAttrs: newAttrs(DefaultBridge)}
			return errors.Join(h.LinkAdd(bridge), h.LinkSetMaster(uplink, bridge), rtnl.SetUpWithPackets(h.Handle, bridge, bytes))
		})
		f.setUp(t, 1)
		wantPackets(t, f.pods[0].Namespace, f.links[0].IfName, rtnl.BigTCPBytes)
		wantPackets(t, f.network.Host, DefaultBridge, bytes)
		wantPackets(t, f.network.Host, uplinkName, rtnl.PacketBytes)
	}
}

// takesBigTCP reports whether packets of BIG TCP cross the links of a fixture that is set up.
func takesBigTCP(t *testing.T, f *fixture) bool {
	t.Helper()
	if f.mode.Traits().Needs != NeedsOpenVSwitch {
		return f.mode.Traits().BigTCP
	}
	datapath := testkit.Must(f.network.ovsDatapath())(t)
	return f.mode.Traits().BigTCP && datapath == ovs.Kernel
}

// wantPackets compares all limits of a device.
func wantPackets(t *testing.T, ns *netns.Namespace, device string, want uint32) {
	t.Helper()
	withLink(t, ns, device, func(_ nsHandle, link netlink.Link) error {
		a := link.Attrs()
		if a.GSOIPv4MaxSize != want || a.GROIPv4MaxSize != want {
			t.Errorf("device %q in %q has limits %d and %d, not %d", device, ns.Name(), a.GSOIPv4MaxSize, a.GROIPv4MaxSize, want)
		}
		if a.GSOMaxSize != rtnl.PacketBytes || a.GROMaxSize != rtnl.PacketBytes {
			t.Errorf("device %q in %q has limits %d and %d for IPv6", device, ns.Name(), a.GSOMaxSize, a.GROMaxSize)
		}
		return nil
	})
}
