// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestNetfilterCall switches the call on and off, and back again under the same pods. It counts by rules of the host,
// in the tables for routed packets, what crosses the bridge from pod to pod.
func TestNetfilterCall(t *testing.T) {
	testkit.RequireTool(t, "nft")
	for _, first := range []bool{false, true} {
		t.Run(fmt.Sprintf("first %t", first), func(t *testing.T) {
			f := newHostOf(t, "bridge")
			if !hasNetfilterCall(f.network.Host) {
				testkit.Skip(t, "needs the kernel module br_netfilter")
			}
			testkit.Succeed(t, DisableNetfilterCall(f.network.Host))
			pods := []Pod{f.newPod(t, 0), f.newPod(t, 1)}
			for _, on := range []bool{first, !first, first} {
				f.network.NetfilterCall = on
				testkit.Succeed(t, f.mode.Setup(f.network))
				if f.pods == nil {
					f.create(t, pods[0])
					f.create(t, pods[1])
				}
				testNetfilterCall(t, f)
			}
		})
	}
}

func testNetfilterCall(t *testing.T, f *fixture) {
	t.Helper()
	want := f.network.NetfilterCall
	testkit.Succeed(t, f.mode.Check(f.network, f.pods[0]))
	for _, target := range f.pods[1].Addresses {
		count := countPackets(t, f, target, func() {
			server := testkit.Echo(t, f.pods[1].Namespace, "udp", netip.AddrPortFrom(target, 0).String())
			testkit.Must(testkit.RoundTrip(t, f.pods[0].Namespace, "udp", server.String(), []byte("hello")))(t)
		})
		testkit.Check(t, !want || count != 0, "the call is on, but no packet to %v was seen", target)
		testkit.Check(t, want || count == 0, "the call is off, but %d packets to %v were seen", count, target)
	}
}

// countPackets counts the UDP packets to addr that the host's prerouting rules see while send runs.
func countPackets(t *testing.T, f *fixture, addr netip.Addr, send func()) uint64 {
	t.Helper()
	const table, chain, counter = "mst-test", "prerouting", "seen"
	family := knftables.IPv4Family
	if addr.Is6() {
		family = knftables.IPv6Family
	}
	var rules knftables.Interface
	// Every step runs the program nft, so it has to be inside the host.
	inHost := func(step func(ctx context.Context) error) {
		t.Helper()
		testkit.Succeed(t, f.network.Host.Do(func() error { return step(context.Background()) }))
	}
	inHost(func(ctx context.Context) (err error) {
		if rules, err = knftables.New(family, table); err != nil {
			return err
		}
		tx := rules.NewTransaction()
		tx.Add(&knftables.Table{})
		tx.Add(&knftables.Chain{
			Name: chain, Type: knftables.PtrTo(knftables.FilterType), Hook: knftables.PtrTo(knftables.PreroutingHook),
			Priority: knftables.PtrTo(knftables.RawPriority),
		})
		tx.Add(&knftables.Counter{Name: counter, Packets: knftables.PtrTo(uint64(0)), Bytes: knftables.PtrTo(uint64(0))})
		tx.Add(&knftables.Rule{
			Chain: chain,
			Rule:  knftables.Concat(family, "daddr", addr, "meta l4proto udp counter name", counter),
		})
		return rules.Run(ctx, tx)
	})
	send()
	var count uint64
	inHost(func(ctx context.Context) error {
		counters, err := rules.ListCounters(ctx)
		for _, c := range counters {
			count += *c.Packets
		}
		tx := rules.NewTransaction()
		tx.Delete(&knftables.Table{})
		return errors.Join(err, rules.Run(ctx, tx))
	})
	return count
}

// TestNetfilterCallOfOthers sets up a bridge on a host whose other bridges pass their packets to its rules, as
// kube-proxy and Docker need it: they still do.
func TestNetfilterCallOfOthers(t *testing.T) {
	f := newHostOf(t, "bridge")
	if !hasNetfilterCall(f.network.Host) {
		testkit.Skip(t, "needs the kernel module br_netfilter")
	}
	tables := []string{"iptables", "ip6tables", "arptables"}
	for _, table := range tables {
		testkit.Succeed(t, rtnl.In(f.network.Host).SetSysctl(callSysctl+table, "1"))
	}
	f.setUp(t, 1)
	testkit.Succeed(t, f.mode.Check(f.network, f.pods[0]))
	for _, table := range tables {
		value, err := rtnl.In(f.network.Host).Sysctl(callSysctl + table)
		testkit.Check(t, err == nil && value == "1", "%s%s is %q, %v", callSysctl, table, value, err)
	}
}

func testTunnel() VXLAN {
	return VXLAN{ID: 42, Local: netip.MustParseAddr("10.0.0.1"), Remote: netip.MustParseAddr("10.0.0.2")}
}

// TestUplinkPort has an uplink and a tunnel be ports of each kind of bridge, with pods
// that must not notice, and takes them away again.
func TestUplinkPort(t *testing.T) {
	for _, name := range []string{"bridge", "ovs-veth"} {
		t.Run(name, func(t *testing.T) {
			f := newHostOf(t, name)
			before := describe(t, f.network.Host)
			f.network.UplinkPort, f.network.VXLAN, f.network.MTU = uplinkName, testTunnel(), 1450
			for range 2 { // the second finds all as it is to be
				testkit.Succeed(t, f.mode.Setup(f.network))
			}
			f.create(t, f.newPod(t, 0))
			f.create(t, f.newPod(t, 1))
			testkit.Succeed(t, f.mode.Check(f.network, f.pods[0]))
			uplink, bridge := findDevice(t, f.network.Host, uplinkName), findDevice(t, f.network.Host, DefaultBridge)
			testkit.Check(t, !bytes.Equal(uplink.MAC, bridge.MAC) && bridge.MTU == 1450,
				"bridge has MAC %v, its uplink port %v, and MTU %d", bridge.MAC, uplink.MAC, bridge.MTU)
			outside := question{f.network.Host, "wire", netip.MustParseAddr("192.168.10.77"), f.network.Gateways[0].Addr()}
			outside.wantAnswer(t, bridge.MAC)
			echoOnce(t, f)
			for _, pod := range f.pods {
				testkit.Succeed(t, f.mode.Delete(f.network, pod))
			}
			testkit.Succeed(t, f.mode.Teardown(f.network))
			nothingLeft(t, before, describe(t, f.network.Host))
		})
	}
}

// TestUplinkPortFails has Setup fail at a bridge's links to other hosts, and compares the host before and after.
func TestUplinkPortFails(t *testing.T) {
	for _, row := range []setupFailure{
		{"uplink port is missing", []string{"bridge", "ovs-veth"}, func(s *situation) { s.f.network.UplinkPort = "none0" },
			`"none0"`},
		{"uplink port's name", []string{"bridge"}, func(s *situation) { s.f.network.UplinkPort = "a/b" },
			"uplink port: invalid name"},
		{"uplink port is another bridge's port", []string{"bridge"}, func(s *situation) {
			addBridge(s.t, s.f.network.Host, "br0")
			withHandle(s.t, s.f.network.Host, func(host nsHandle) error {
				return host.LinkSetMaster(byName(uplinkName), byName("br0"))
			})
		}, "port of another switch"},
		{"VXLAN id", []string{"bridge", "ovs-veth"}, func(s *situation) { s.f.network.VXLAN.ID = 1 << 24 },
			"VXLAN id 16777216"},
		{"VXLAN to itself", []string{"bridge"}, func(s *situation) { s.f.network.VXLAN.Remote = s.f.network.VXLAN.Local },
			"VXLAN from"},
		{"VXLAN device of another", []string{"bridge"}, func(s *situation) { addBridge(s.t, s.f.network.Host, VXLANDevice) },
			"not a vxlan"},
	} {
		for _, name := range row.modes {
			t.Run(name+"/"+row.name, func(t *testing.T) {
				f := newHostOf(t, name)
				f.network.UplinkPort, f.network.VXLAN = uplinkName, testTunnel()
				f.setupFails(t, row.arrange, row.message)
			})
		}
	}
}

// TestAddRemote reads the forwarding entries of a VXLAN device: the default entry, and the added ones.
func TestAddRemote(t *testing.T) {
	f := newHostOf(t, "bridge")
	f.network.VXLAN, f.network.MTU = testTunnel(), 1450
	pod := net.HardwareAddr{2, 0, 0, 0, 0, 7}
	testkit.Fails(t, f.network.AddRemote(pod))
	testkit.Succeed(t, f.mode.Setup(f.network))
	for range 2 {
		testkit.Succeed(t, f.network.AddRemote(pod))
	}
	withLink(t, f.network.Host, VXLANDevice, func(host nsHandle, link netlink.Link) error {
		entries, err := rtnl.Dump(func() ([]netlink.Neigh, error) {
			return host.NeighList(link.Attrs().Index, unix.AF_BRIDGE)
		})
		var found []string
		for _, entry := range entries {
			if entry.IP != nil { // the bridge's own entries have none
				found = append(found, entry.HardwareAddr.String()+" "+entry.IP.String())
			}
		}
		slices.Sort(found)
		want := []string{"00:00:00:00:00:00 10.0.0.2", pod.String() + " 10.0.0.2"}
		testkit.Check(t, slices.Equal(found, want), "forwarding entries are %q, want %q", found, want)
		return err
	})
}
