// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// parents are pods on macvlans of two parents, between which the host routes.
func parents(t *testing.T) network {
	t.Helper()
	n := newNetwork(t)
	n.uplink(t)
	n.run(t, `
		-n HOST link add up2 type veth peer name up3
		-n HOST link set up2 up
		-n HOST link set up3 up
		-n HOST link add mv0 link up0 type macvlan mode bridge
		-n HOST link add mv2 link up2 type macvlan mode bridge
		-n HOST addr add `+gateway4+`/24 dev mv0
		-n HOST addr add `+gateway6+`/64 dev mv0 nodad
		-n HOST addr add `+elsewhereGateway4+`/24 dev mv2
		-n HOST addr add `+elsewhereGateway6+`/64 dev mv2 nodad
		-n HOST link set mv0 up
		-n HOST link set mv2 up
		-n HOST link add link up0 name eth0 netns PODA type macvlan mode bridge
		-n HOST link add link up2 name eth0 netns PODB type macvlan mode bridge
		-n PODA addr add `+podA4+`/24 dev eth0
		-n PODA addr add `+podA6+`/64 dev eth0 nodad
		-n PODB addr add `+elsewhere4+`/24 dev eth0
		-n PODB addr add `+elsewhere6+`/64 dev eth0 nodad
		-n PODA link set eth0 up
		-n PODB link set eth0 up
		-n PODA route add default via `+gateway4+`
		-n PODA -6 route add default via `+gateway6+`
		-n PODB route add default via `+elsewhereGateway4+`
		-n PODB -6 route add default via `+elsewhereGateway6)
	return n
}

// TestParentsAreJoined has pods of two parents call each other and each other's services, as the host routes between them. What
// they send loses its seal on the way, also in fragments that the host puts together.
func TestParentsAreJoined(t *testing.T) {
	n, d := parents(t), openTest(t)
	testkit.RequireTool(t, "nft")
	n.run(t, "netns exec HOST nft add table ip track")
	n.run(t, "netns exec HOST nft add chain ip track forward {type filter hook forward priority 0;}")
	n.run(t, "netns exec HOST nft add rule ip track forward ct state invalid drop")
	for _, pod := range []string{podA4, podA6} { // devices that were set up just now may lose the first packets of neighbour discovery
		backend := testkit.Echo(t, n.pods[0], "tcp", net.JoinHostPort(pod, "0"))
		testkit.Eventually(t, 10*time.Second, func() error {
			_, err := testkit.RoundTrip(t, n.pods[1], "tcp", backend.String(), []byte("neighbours"))
			return err
		})
	}
	n.attachBoth(t, d)
	for _, addresses := range [][4]string{
		{podA4, elsewhere4, service4, "10.96.0.101"}, {podA6, elsewhere6, service6, "fd00:96::101"},
	} {
		for _, protocol := range []service.Protocol{service.TCP, service.UDP} {
			c := mixedCase{n, d, protocol}
			c.test(t, 0, addresses[1], addresses[0], addresses[2])
			c.test(t, 1, addresses[0], addresses[1], addresses[3])
		}
	}
	wantNoDrops(t, d)
}

// TestForgingBetweenParents has a process outside of all pods, and root of a pod, send by the host from the address of another
// pod to a pod on another parent. That gets neither.
func TestForgingBetweenParents(t *testing.T) {
	n, d := parents(t), openTest(t)
	n.attachBoth(t, d)
	rows := must(d.Endpoints().List(t.Context()))(t)
	third := rows[slices.IndexFunc(rows, func(e Endpoint) bool { return e.IP.String() == elsewhere4 })]
	third.ID = 99
	thirds := [2]netip.Addr{netip.MustParseAddr("192.168.20.12"), netip.MustParseAddr("fd00:20::c")}
	for _, third.IP = range thirds {
		succeed(t, d.Endpoints().write([]Endpoint{third}))
	}
	for name, sender := range map[string]stranger{"from outside": n.outsider(t), "from a pod's own namespace": n.nested(t)} {
		for family, addr := range []string{podA4, podA6} {
			t.Run(name+" to "+addr, func(t *testing.T) {
				victim := listenIn(t, n.pods[0], addr)
				f := &forger{network: n, d: d, next: sender.via}
				f.tryStranger(t, victim, thirds[family], [2]netip.Addr{outside4, outside6}[family], sender)
			})
		}
	}
}

// outsider is a process behind a device of the host that has no source guard.
func (n network) outsider(t *testing.T) stranger {
	t.Helper()
	ns := testkit.Namespace(t, "outsider")
	n.run(t, strings.ReplaceAll(`
		-n HOST link add vo type veth peer name eth0 netns OUTSIDER
		-n HOST link set vo up
		-n OUTSIDER link set eth0 up`, "OUTSIDER", ns.Name()))
	return n.strangerTo(t, ns, "eth0", "vo")
}

// nested is a network namespace that root of the second pod has made, on a device on the pod's parent.
func (n network) nested(t *testing.T) stranger {
	t.Helper()
	ns := testkit.Namespace(t, "nested")
	n.run(t, strings.ReplaceAll(`
		-n HOST link add link up2 name eth5 netns NESTED type macvlan mode bridge
		-n NESTED link set eth5 up`, "NESTED", ns.Name()))
	return n.strangerTo(t, ns, "eth5", "mv2")
}

// strangerTo is who sends by a device to one of the host, which takes packets from anywhere.
func (n network) strangerTo(t *testing.T, ns *netns.Namespace, name, host string) stranger {
	t.Helper()
	own := must(rtnl.In(ns).Device(name))(t)
	to := must(rtnl.In(n.host).Device(host))(t)
	for _, key := range []string{"all", host} {
		succeed(t, rtnl.In(n.host).SetSysctl("net/ipv4/conf/"+key+"/rp_filter", "0"))
	}
	return stranger{ns: ns, index: own.Index, mac: own.MAC, via: to.MAC}
}
