// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"mustang/internal/netns"
	"mustang/internal/ovs"
	"mustang/internal/qdisc"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// slow lets two datagrams of flood pass at once, and then one a second. Two or none wait.
var slow = qdisc.Limit{Rate: 8_000, Burst: 20_000}

// flooded is how many datagrams flood sends. Most of them must not come out, unless it takes half a minute.
const flooded = 60

// TestBandwidth limits one direction at a time, counts the limit's drops there, and expects none the other way.
func TestBandwidth(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newFixture(t, mode, 1)
		pod := f.pods[0]
		echoToHost(t, f) // so that both resolve each other's MAC address
		gateway := f.network.Gateways[0].Addr()
		for range 2 { // the second time changes nothing
			testkit.Succeed(t, (Bandwidth{FromPod: slow}).Apply(mode, f.network, pod))
		}
		flood(t, pod.Namespace, gateway)
		awaitDrops(t, pod.Namespace, pod.IfName)
		if !mode.Traits().HostSide {
			err := (Bandwidth{ToPod: slow}).Apply(mode, f.network, pod)
			testkit.Fails(t, err, "link mode "+mode.Name())
			return
		}
		testkit.Check(t, limitStatistics(t, f.network.Host, pod.HostIfName) == nil, "what comes to the pod is limited")
		testkit.Succeed(t, (Bandwidth{ToPod: slow}).Apply(mode, f.network, pod))
		flood(t, f.network.Host, pod.Addresses[0])
		awaitDrops(t, f.network.Host, pod.HostIfName)
		testkit.Check(t, limitStatistics(t, pod.Namespace, pod.IfName) == nil, "what comes from the pod is limited still")
	})
}

// TestBandwidthHolds has root of a pod delete its queues. If the host has a device of the pod, the pod's packets stay
// limited, and Check reports the missing queue. The pod's traffic passes when the limit is over.
func TestBandwidthHolds(t *testing.T) {
	testkit.RequireTool(t, "tc")
	forEachMode(t, func(t *testing.T, mode Mode) {
		if !mode.Traits().HostSide {
			t.Log("the pod's device is the only one")
			return
		}
		f := newFixture(t, mode, 1)
		pod := f.pods[0]
		echoToHost(t, f)
		limits := Bandwidth{FromPod: slow}
		testkit.Succeed(t, limits.Apply(mode, f.network, pod))
		testkit.Succeed(t, pod.Namespace.Do(exec.Command("tc", "qdisc", "del", "dev", pod.IfName, "root").Run))
		limit := limitStatistics(t, pod.Namespace, pod.IfName)
		testkit.Require(t, limit == nil, "the pod has a limit: %+v", limit)
		err := limits.Check(mode, f.network, pod)
		testkit.Fails(t, err, "is not limited")
		testkit.Check(t, !strings.Contains(fmt.Sprint(err), pod.HostIfName), "error %v names the host link", err)
		if mode.Traits().Needs == NeedsOpenVSwitch && strings.Contains(vsctl(t, f.network, "get", "Bridge", DefaultBridge,
			"datapath_type"), ovs.UserSpace) {
			t.Log("the switch takes packets before the device's programs")
			return
		}
		server := listenOn(t, f.network.Host, f.network.Gateways[0].Addr())
		for range 3 {
			send(t, pod.Namespace, server.LocalAddr())
		}
		got := received(server, 3*flooded, 300*time.Millisecond)
		testkit.Check(t, got <= flooded, "%d datagrams came, of %d", got, 3*flooded)
		testkit.Succeed(t, (Bandwidth{}).Apply(mode, f.network, pod))
		send(t, pod.Namespace, server.LocalAddr())
		got = received(server, flooded, 10*time.Second)
		testkit.Check(t, got == flooded, "%d datagrams came without a limit, of %d", got, flooded)
	})
}

// flood sends datagrams of 1000 bytes to a port that is closed.
func flood(t *testing.T, from *netns.Namespace, to netip.Addr) {
	t.Helper()
	send(t, from, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 9)))
}

func send(t *testing.T, from *netns.Namespace, to net.Addr) {
	t.Helper()
	conn := listenOn(t, from, netip.IPv4Unspecified())
	for range flooded {
		// The sender may get an error for a dropped packet, and for a closed port.
		_, _ = conn.WriteTo(make([]byte, 1000), to)
	}
}

func listenOn(t *testing.T, ns *netns.Namespace, addr netip.Addr) (conn net.PacketConn) {
	t.Helper()
	testkit.Succeed(t, ns.Do(func() (err error) {
		conn, err = net.ListenPacket("udp4", netip.AddrPortFrom(addr, 0).String())
		return err
	}))
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// received counts datagrams until there are as many as wanted, or none come any more.
func received(conn net.PacketConn, want int, quiet time.Duration) (count int) {
	for count < want {
		_ = conn.SetReadDeadline(time.Now().Add(quiet))
		if _, _, err := conn.ReadFrom(make([]byte, 2000)); err != nil {
			break
		}
		count++
	}
	return count
}

// awaitDrops returns when a device's limit has dropped some of a flood, which a switch in user space forwards late.
// If the kernel refuses one packet, such a switch drops the ones behind it itself, so the test checks how little the
// device has sent.
func awaitDrops(t *testing.T, ns *netns.Namespace, device string) {
	t.Helper()
	testkit.Eventually(t, 5*time.Second, func() error {
		limit := limitStatistics(t, ns, device)
		if limit == nil || limit.Queue.Drops == 0 {
			return fmt.Errorf("of %d datagrams, device %q in %q has dropped none", flooded, device, ns.Name())
		}
		return nil
	})
	sent := limitStatistics(t, ns, device).Basic.Packets
	testkit.Check(t, sent <= flooded/2, "of %d datagrams, device %q in %q has sent %d", flooded, device, ns.Name(), sent)
}

// limitStatistics are the counters of a device's limit of either kind; nil without a limit.
func limitStatistics(t *testing.T, ns *netns.Namespace, device string) (out *netlink.QdiscStatistics) {
	t.Helper()
	var drops uint32 // of the program that comes before the queue
	withLink(t, ns, device, func(s nsHandle, link netlink.Link) error {
		queues, err := s.QdiscList(link)
		for _, queue := range queues {
			switch statistics := queue.Attrs().Statistics; queue.Type() {
			case "tbf", "fq":
				out = statistics
			case "clsact":
				drops = statistics.Queue.Drops
			}
		}
		return err
	})
	if out != nil {
		out.Queue.Drops += drops
	}
	return out
}

// TestBigTCP has two pods exchange data. Packets of more than 64 KiB arrive in modes with Traits.BigTCP only.
// IPv6 packets are larger only where routers do not drop them. The host's own devices stay as they are.
func TestBigTCP(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newHost(t, mode)
		f.network.BigTCP, f.network.BigTCP6 = true, rtnl.TakesBigIPv6()
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
			packets := testkit.WatchPackets(t, f.pods[1].Namespace, findDevice(t, f.pods[1].Namespace, f.links[1].IfName).Index,
				nil)
			limit := want
			if addr.Is6() && !rtnl.TakesBigIPv6() {
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

// TestBigTCPOfSharedDevice alternates between networks with BIG TCP and without. The host's device has the limits of
// the first network, pods have their own network's. CHECK accepts pods of either.
func TestBigTCPOfSharedDevice(t *testing.T) {
	limits := map[bool]uint32{true: rtnl.BigTCPBytes, false: rtnl.PacketBytes}
	for _, name := range []string{"veth", "bridge", "macvlan"} {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " first ", first), func(t *testing.T) {
				f := newHostOf(t, name)
				for i, big := range []bool{first, !first, first, !first} {
					f.network.BigTCP, f.network.BigTCP6 = big, rtnl.TakesBigIPv6()
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

// TestBigTCPKeepsHostBridge adds a pod to a bridge of the host with a port outwards: the bridge forwards larger
// packets, and keeps its limits.
func TestBigTCPKeepsHostBridge(t *testing.T) {
	for _, bytes := range []uint32{rtnl.PacketBytes, 2 * rtnl.PacketBytes} {
		f := newHostOf(t, "bridge")
		f.network.BigTCP, f.network.BigTCP6 = true, rtnl.TakesBigIPv6()
		withLink(t, f.network.Host, uplinkName, func(h nsHandle, uplink netlink.Link) error {
			bridge := &netlink.Bridge{LinkAttrs: newAttrs(DefaultBridge)}
			return errors.Join(h.LinkAdd(bridge), h.LinkSetMaster(uplink, bridge), rtnl.SetUpWithPackets(h.Handle,
				bridge, bytes, rtnl.TakesBigIPv6()))
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

func wantPackets(t *testing.T, ns *netns.Namespace, device string, want uint32) {
	t.Helper()
	withLink(t, ns, device, func(_ nsHandle, link netlink.Link) error {
		a := link.Attrs()
		testkit.Check(t, a.GSOIPv4MaxSize == want && a.GROIPv4MaxSize == want,
			"device %q in %q has limits %d and %d, not %d", device, ns.Name(), a.GSOIPv4MaxSize, a.GROIPv4MaxSize, want)
		if !rtnl.TakesBigIPv6() {
			want = rtnl.PacketBytes
		}
		testkit.Check(t, a.GSOMaxSize == want && a.GROMaxSize == want, "device %q in %q has IPv6 limits %d and %d, not %d",
			device, ns.Name(), a.GSOMaxSize, a.GROMaxSize, want)
		return nil
	})
}
