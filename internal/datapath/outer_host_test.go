// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

func listenIn(t testing.TB, ns *netns.Namespace, addr string) net.PacketConn {
	t.Helper()
	return listenAt(t, ns, net.JoinHostPort(addr, "4444"))
}

func listenAt(t testing.TB, ns *netns.Namespace, addr string) (conn net.PacketConn) {
	t.Helper()
	succeed(t, ns.Do(func() (err error) {
		conn, err = net.ListenPacket("udp", addr)
		return err
	}))
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// reachHost returns the MAC address of the host's device that has the gateway's address, and has it take packets from
// anywhere.
func (f *forger) reachHost(t *testing.T) []byte {
	t.Helper()
	devices := must(rtnl.In(f.network.host).Devices())(t)
	i := slices.IndexFunc(devices, func(d rtnl.Device) bool {
		return slices.ContainsFunc(d.Addrs, func(p netip.Prefix) bool { return p.Addr().String() == gateway4 })
	})
	testkit.Require(t, i >= 0, "the host has no device with the gateway's address")
	trustSources(t, f.network.host, devices[i].Name)
	return devices[i].MAC
}

// trustSources has a device of a namespace take packets from anywhere.
func trustSources(t *testing.T, ns *netns.Namespace, device string) {
	t.Helper()
	for _, name := range []string{"all", device} {
		succeed(t, rtnl.In(ns).SetSysctl("net/ipv4/conf/"+name+"/rp_filter", "0"))
	}
}

// TestUpgradeGuardsOutside has lost the programs at devices of the host, for pods that are endpoints and one that has
// the source guard alone.
func TestUpgradeGuardsOutside(t *testing.T) {
	onLinks(t, "macvlan, ipvlan-l3", func(t *testing.T, m linkMode) {
		n, d := m.make(t), openTest(t)
		must2(d.Endpoints().Put(t.Context(), n.attachment(0)))(t)
		must(d.Guards().Put(t.Context(), n.attachment(1)))(t)
		checks := []func() error{
			func() error { return d.Endpoints().Check(t.Context(), n.attachment(0)) },
			func() error { return d.Guards().Check(n.attachment(1)) },
		}
		forgetOuter(t, d)
		for i, check := range checks {
			failsAs[*DeviationError](t, check(), "pod %d before", i)
		}
		for _, want := range []Change{Updated, Unchanged} {
			equal(t, must(d.Upgrade(t.Context()))(t), want, "upgrade")
			for i, check := range checks {
				noError(t, check(), "pod %d", i)
			}
		}
	})
}

// forgetOuter removes the programs at devices of the host, and the rows of network namespaces.
func forgetOuter(t *testing.T, d *Datapath) {
	t.Helper()
	links, err := d.objects.Links()
	for _, k := range links {
		if isOuter(k) {
			err = errors.Join(err, d.objects.Detach(k))
		}
	}
	succeed(t, err)
	for row, err := range d.objects.Senders.All() {
		if err == nil && row.Key.Ifindex == 0 {
			err = d.objects.Senders.Delete(row.Key)
		}
		succeed(t, err)
	}
}

// TestDeviceAfterPods has the host reach a pod through a device on the same parent that was made after the pod, while
// a policy lets all in. The host reaches it once the device is guarded like others.
func TestDeviceAfterPods(t *testing.T) {
	n, d := slaves(t), openTest(t)
	n.labelled(t, d)
	n.run(t, `
		-n HOST link del mst-host
		-n HOST link add mst-late link up0 type macvlan mode bridge
		up HOST mst-late `+gateway4+`/24 `+gateway6+`/64`)
	applyPolicies(t, d, netpol("all", "", "ingress: [{}], egress: [{}]"))
	victims := []net.PacketConn{listenIn(t, n.pods[0], podA4), listenIn(t, n.pods[0], podA6)}
	reach := func() (err error) {
		for family := range victims {
			err = errors.Join(err, sendUDP(n.host, []string{gateway4, gateway6}[family], victims[family]))
		}
		return err
	}
	failIf(t, reach() == nil, "the host reaches the pod by a device that is not guarded")
	for _, want := range []Change{Updated, Unchanged} {
		equal(t, must(d.GuardParents(t.Context()))(t), want, "guard the parents")
		testkit.Eventually(t, 5*time.Second, reach) // it looks for the neighbour again after a second
	}
}

// translated has a machine behind the host send to a pod, in the host's name.
func (f *forger) translated(t *testing.T, family int, victim net.PacketConn) {
	t.Helper()
	testkit.RequireTool(t, "nft")
	behind := testkit.Namespace(t, "behind")
	own, via := []string{"192.168.31.31", "fd00:31::31"}[family], []string{"192.168.31.1", "fd00:31::1"}[family]
	device, table := fmt.Sprint("behind", family), []string{"ip", "ip6"}[family]
	length := []string{"/24", "/64"}[family]
	f.run(t, strings.NewReplacer("BEHIND", behind.Name(), "DEVICE", device).Replace(`
		-n HOST link add DEVICE type veth peer name eth0 netns BEHIND
		up HOST DEVICE `+via+length+`
		up BEHIND eth0 `+own+length+`
		default BEHIND `+via+`
		netns exec HOST nft add table `+table+` nat
		netns exec HOST nft add chain `+table+` nat post {type nat hook postrouting priority 100;}
		netns exec HOST nft add rule `+table+` nat post iifname DEVICE masquerade`))
	testkit.Eventually(t, 5*time.Second, func() error { return sendUDP(behind, own, victim) })
}

// parents are pods on macvlans of two parents, between which the host routes.
func parents(t *testing.T) network {
	t.Helper()
	n := newNetwork(t)
	n.uplink(t)
	n.run(t, `
		-n HOST link add up2 type veth peer name up3
		up HOST up2
		up HOST up3
		-n HOST link add mv0 link up0 type macvlan mode bridge
		-n HOST link add mv2 link up2 type macvlan mode bridge
		up HOST mv0 `+gateway4+`/24 `+gateway6+`/64
		up HOST mv2 `+elsewhereGateway4+`/24 `+elsewhereGateway6+`/64
		-n HOST link add link up0 name eth0 netns PODA type macvlan mode bridge
		-n HOST link add link up2 name eth0 netns PODB type macvlan mode bridge
		up PODA eth0 `+podA4+`/24 `+podA6+`/64
		up PODB eth0 `+elsewhere4+`/24 `+elsewhere6+`/64
		default PODA `+gateway4+` `+gateway6+`
		default PODB `+elsewhereGateway4+` `+elsewhereGateway6)
	return n
}

// TestParentsAreJoined has pods of two parents call each other and each other's services, as the host routes between
// them. What they send loses its seal on the way, also in fragments that the host puts together.
func TestParentsAreJoined(t *testing.T) {
	n, d := parents(t), openTest(t)
	testkit.Command(t, n.host,
		"nft table ip track { chain forward { type filter hook forward priority 0; ct state invalid drop; }; }")
	// devices that were set up just now may lose the first packets of neighbour discovery
	for _, pod := range []string{podA4, podA6} {
		backend := testkit.Echo(t, n.pods[0], "tcp", net.JoinHostPort(pod, "0"))
		testkit.Eventually(t, 10*time.Second, func() error {
			return errOf(testkit.RoundTrip(t, n.pods[1], "tcp", backend.String(), []byte("neighbours")))
		})
	}
	n.attachBoth(t, d)
	callEachOther(t, n, d)
}

// TestForgingBetweenParents has a process outside all pods, and root of a pod, send through the host to a pod on
// another parent, from the address of another pod. That gets neither.
func TestForgingBetweenParents(t *testing.T) {
	n, d := parents(t), openTest(t)
	n.attachBoth(t, d)
	rows := must(d.Endpoints().List(t.Context()))(t)
	third := rows[slices.IndexFunc(rows, func(e Endpoint) bool { return e.IP.String() == elsewhere4 })]
	third.ID = 99
	f, senders := &forger{network: n, d: d}, []sender{n.outsider(t), n.nested(t)}
	for family, addr := range []string{podA4, podA6} {
		third.IP = netip.MustParseAddr([]string{"192.168.20.12", "fd00:20::c"}[family])
		succeed(t, d.Endpoints().write([]Endpoint{third}))
		f.try(t, listenIn(t, n.pods[0], addr), []netip.Addr{third.IP}, senders)
	}
}

// outsider is a process behind a device of the host without a source guard.
func (n network) outsider(t *testing.T) sender {
	t.Helper()
	ns := testkit.Namespace(t, "outsider")
	n.run(t, strings.ReplaceAll(`
		-n HOST link add vo type veth peer name eth0 netns OUTSIDER
		-n HOST link set vo up
		-n OUTSIDER link set eth0 up`, "OUTSIDER", ns.Name()))
	return n.strangerTo(t, ns, "eth0", "vo")
}

// nested is a network namespace that root of the second pod has made, on a device on the pod's parent.
func (n network) nested(t *testing.T) sender {
	t.Helper()
	ns := testkit.Namespace(t, "nested")
	n.run(t, strings.ReplaceAll(`
		-n HOST link add link up2 name eth5 netns NESTED type macvlan mode bridge
		-n NESTED link set eth5 up`, "NESTED", ns.Name()))
	return n.strangerTo(t, ns, "eth5", "mv2")
}

func (n network) strangerTo(t *testing.T, ns *netns.Namespace, name, host string) sender {
	t.Helper()
	trustSources(t, n.host, host)
	by := senderBy(t, "from "+ns.Name(), ns, name)
	by.next = must(rtnl.In(n.host).Device(host))(t).MAC
	return by
}
