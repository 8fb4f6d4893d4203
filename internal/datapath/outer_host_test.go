// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"mustang/internal/datapath/guard"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestForgingToHost has root in a pod send to the host's own device on the same parent, from another pod's address and one
// outside, in all ways that it has past its program too. The host gets none of that, and all with the guard off.
func TestForgingToHost(t *testing.T) {
	onLinks(t, "macvlan, ipvlan-l2", func(t *testing.T, m linkMode) {
		f := newForger(t, m)
		f.next = f.reachHost(t)
		for family, gateway := range []string{gateway4, gateway6} {
			own := [2]netip.Addr{own4, own6}[family]
			third := netip.MustParseAddr([]string{"192.168.10.12", "fd00:10::c"}[family])
			victim := listenIn(t, f.network.host, gateway)
			for _, way := range f.ways(t) {
				t.Run(gateway+" from another pod, "+way.name, func(t *testing.T) { f.try(t, victim, third, own, way) })
				t.Run(gateway+" from outside, "+way.name, func(t *testing.T) {
					f.try(t, victim, [2]netip.Addr{outside4, outside6}[family], own, way)
				})
			}
		}
	})
}

// listenIn opens a socket in a namespace.
func listenIn(t *testing.T, ns *netns.Namespace, addr string) net.PacketConn {
	t.Helper()
	var conn net.PacketConn
	succeed(t, ns.Do(func() (err error) {
		conn, err = net.ListenPacket("udp", netip.AddrPortFrom(netip.MustParseAddr(addr), 4444).String())
		return err
	}))
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// reachHost returns the MAC address of the host's device that has the gateway's address, and has it take packets from anywhere.
func (f *forger) reachHost(t *testing.T) []byte {
	t.Helper()
	devices := must(rtnl.In(f.network.host).Devices())(t)
	i := slices.IndexFunc(devices, func(d rtnl.Device) bool {
		return slices.ContainsFunc(d.Addrs, func(p netip.Prefix) bool { return p.Addr().String() == gateway4 })
	})
	if i < 0 {
		t.Fatal("the host has no device with the gateway's address")
	}
	for _, name := range []string{"all", devices[i].Name} {
		succeed(t, rtnl.In(f.network.host).SetSysctl("net/ipv4/conf/"+name+"/rp_filter", "0"))
	}
	return devices[i].MAC
}

// TestUpgradeGuardsOutside has lost the programs at devices of the host, for pods that are endpoints and one that has the source
// guard alone.
func TestUpgradeGuardsOutside(t *testing.T) {
	for _, m := range linkModes() {
		if m.name == "macvlan" || m.name == "ipvlan-l3" {
			t.Run(m.name, func(t *testing.T) { upgradeGuardsOutside(t, m.make(t)) })
		}
	}
}

func upgradeGuardsOutside(t *testing.T, n network) {
	t.Helper()
	d := openTest(t)
	must2(d.Endpoints().Put(t.Context(), n.attachment(0)))(t)
	must(d.Guards().Put(t.Context(), n.attachment(1)))(t)
	checks := []func() error{
		func() error { return d.Endpoints().Check(t.Context(), n.attachment(0)) },
		func() error { return d.Guards().Check(n.attachment(1)) },
	}
	forgetOuter(t, d)
	for i, check := range checks {
		var deviation *DeviationError
		if err := check(); !errors.As(err, &deviation) {
			t.Errorf("pod %d before: %v", i, err)
		}
	}
	for _, want := range []Change{Updated, Unchanged} {
		if change, err := d.Upgrade(t.Context()); err != nil || change != want {
			t.Errorf("upgrade: %v, %v, want %v", change, err, want)
		}
		for i, check := range checks {
			if err := check(); err != nil {
				t.Errorf("pod %d: %v", i, err)
			}
		}
	}
}

// forgetOuter removes the programs at devices of the host, and the rows of network namespaces.
func forgetOuter(t *testing.T, d *Datapath) {
	t.Helper()
	links, err := d.objects.Links()
	for _, k := range links {
		if guard.IsOuter(k) {
			err = errors.Join(err, d.objects.Detach(k))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	for row, err := range d.objects.Senders.All() {
		if err == nil && row.Key.Ifindex == 0 {
			err = d.objects.Senders.Delete(row.Key)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestDeviceAfterPods has the host reach a pod by a device on the same parent that was made after the pod, while a policy is in force that
// lets all in: once the device is guarded as others are.
func TestDeviceAfterPods(t *testing.T) {
	n, d := slaves(t), openTest(t)
	n.labelled(t, d)
	n.run(t, `
		-n HOST link del mst-host
		-n HOST link add mst-late link up0 type macvlan mode bridge
		-n HOST addr add `+gateway4+`/24 dev mst-late
		-n HOST addr add `+gateway6+`/64 dev mst-late nodad
		-n HOST link set mst-late up`)
	const all = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: all}, spec: {podSelector: {}, ingress: [{}], egress: [{}]}}`
	applyPolicies(t, d, all)
	victims := []net.PacketConn{listenIn(t, n.pods[0], podA4), listenIn(t, n.pods[0], podA6)}
	reach := func() (err error) {
		for family := range victims {
			err = errors.Join(err, sendUDP(n.host, []string{gateway4, gateway6}[family], victims[family]))
		}
		return err
	}
	if reach() == nil {
		t.Error("the host reaches the pod by a device that is not guarded")
	}
	for _, want := range []Change{Updated, Unchanged} {
		if change, err := d.GuardParents(t.Context()); err != nil || change != want {
			t.Errorf("%v, %v, want %v", change, err, want)
		}
		testkit.Eventually(t, 5*time.Second, reach) // it looks for the neighbour again after a second
	}
}
