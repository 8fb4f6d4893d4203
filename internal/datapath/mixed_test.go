// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"net"
	"net/netip"
	"strings"
	"testing"

	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// The second pod's network, where the two are of different link modes.
const (
	elsewhere4, elsewhere6               = "192.168.20.11", "fd00:20::b"
	elsewhereGateway4, elsewhereGateway6 = "192.168.20.1", "fd00:20::1"
)

// TestMixedTraffic has pods of two link modes call each other's services, on a host that checks where sources are.
func TestMixedTraffic(t *testing.T) {
	for _, modes := range [][2]string{
		{"veth", "bridge"}, {"veth", "macvlan"}, {"veth", "tap"}, {"tun", "veth"}, {"tun", "tap"}, {"tun", "macvlan"},
		{"netkit", "veth"}, {"netkit-l2", "tun"}, {"netkit", "netkit-l2"}, {"netkit", "tap"},
		{"ipvlan-l2", "veth"}, {"ipvlan-l2", "netkit"}, {"ipvlan-l2", "tun"},
		{"ipvlan-l2", "macvlan"},
	} {
		t.Run(modes[0]+" and "+modes[1], func(t *testing.T) {
			n, d := mixed(t, modes), openTest(t)
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
		})
	}
}

func mixed(t *testing.T, names [2]string) network {
	t.Helper()
	a, b := usable(t, names[0]), usable(t, names[1])
	n := newNetwork(t)
	// 1 is strict; 2 refuses sources that the host has no route to. What ipvlan pods send to the host comes in by the
	// uplink, while the host's way to them is another; and the uplink must have an address, or all is refused.
	strictness := "1"
	if strings.HasPrefix(names[0], "ipvlan") {
		strictness = "2"
	}
	succeed(t, rtnl.In(n.host).SetSysctl("net/ipv4/conf/all/rp_filter", strictness))
	n.uplink(t)
	n.run(t, `
		-n HOST addr add 172.16.9.1/24 dev up0
		-n HOST link add up2 type veth peer name up3
		-n HOST link set up2 up
		-n HOST link set up3 up
		-n HOST addr add 172.16.8.1/24 dev up2`)
	n.plug(t, a, n.subnet(t, a, gateway4+"/24", gateway6+"/64"), 0, podA4, podA6)
	n.plug(t, b, n.subnetOn(t, b, "up2", elsewhereGateway4+"/24", elsewhereGateway6+"/64"), 1, elsewhere4, elsewhere6)
	n.relayed = [2]bool{a.Traits().Needs == podlink.NeedsRelay, b.Traits().Needs == podlink.NeedsRelay}
	return n
}

type mixedCase struct {
	network  network
	datapath *Datapath
	protocol service.Protocol
}

// test has the other pod call a service of pod i.
//
//revive:disable-next-line:argument-limit // t comes on top of the four that say who calls whom
func (c mixedCase) test(t *testing.T, i int, client, pod, vip string) {
	t.Helper()
	protocol := c.protocol.String()
	backend := testkit.Echo(t, c.network.pods[i], protocol, net.JoinHostPort(pod, "0"))
	frontend := netip.MustParseAddrPort(net.JoinHostPort(vip, servicePort))
	s := service.Service{Frontend: frontend, Protocol: c.protocol, Backends: service.Backends(backend)}
	must2(c.datapath.Services().Put(t.Context(), service.CLI, s))(t)
	size := 5000 // in fragments
	if c.protocol == service.TCP {
		size = 300_000
	}
	before := counts(t, c.datapath)
	peer, err := testkit.RoundTrip(t, c.network.pods[1-i], protocol, frontend.String(), bytes.Repeat([]byte("mix "), size/4))
	if err != nil {
		t.Fatalf("%s to %s: %v (counted %v)", client, pod, err, delta(t, c.datapath, before))
	}
	if peer.Addr().String() != client {
		t.Errorf("%s saw %s, want %s", pod, peer, client)
	}
	if diff := delta(t, c.datapath, before); diff["forward"] == 0 || diff["reverse"] == 0 {
		t.Errorf("%s to %s: counted %v", client, pod, diff)
	}
	if _, err := testkit.RoundTrip(t, c.network.pods[1-i], protocol, backend.String(), []byte("straight")); err != nil {
		t.Errorf("%s to %s straight: %v", client, pod, err)
	}
}
