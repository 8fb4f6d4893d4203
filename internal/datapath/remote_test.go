// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// Addresses of the backend on another node, and of the host on the wire to it.
const (
	far4, far6   = "172.16.1.2", "fd00:99::2"
	near4, near6 = "172.16.1.1", "fd00:99::1"
)

// wire joins the host to another node. The ends make checksums themselves, so that the other node looks at each: what
// the pods left to be done, and what the programs made of it, must be right. The way there has a smaller MTU than
// the pods, and the wire has not, so that only an ICMP error tells.
func (n network) wire(t testing.TB) *netns.Namespace {
	t.Helper()
	testkit.RequireTool(t, "ethtool")
	far := testkit.Namespace(t, "far")
	for _, ns := range []*netns.Namespace{n.host, far} {
		succeed(t, rtnl.In(ns).SetSysctl("net/ipv6/conf/default/accept_dad", "0"))
	}
	n.run(t, `
		-n HOST link add wire type veth peer name wire netns `+far.Name()+`
		-n HOST addr add `+near4+`/24 dev wire
		-n HOST addr add `+near6+`/64 dev wire nodad
		-n `+far.Name()+` addr add `+far4+`/24 dev wire
		-n `+far.Name()+` addr add `+far6+`/64 dev wire nodad
		-n HOST link set wire up
		-n `+far.Name()+` link set wire up
		-n HOST route add `+far4+` dev wire mtu lock 1400
		-n HOST route add `+far6+` dev wire mtu lock 1400
		-n `+far.Name()+` route add default via `+near4+`
		-n `+far.Name()+` -6 route add default via `+near6+`
		netns exec HOST ethtool -K wire tx off tso off gso off
		netns exec `+far.Name()+` ethtool -K wire tx off tso off gso off`)
	return far
}

// TestRemote has the backend on another node, behind a smaller MTU: what the host answers to packets that are too big
// must reach the client.
func TestRemote(t *testing.T) {
	onLinks(t, "veth, bridge, macvlan, ipvlan-l2, netkit, netkit-l2, tap, tun", func(t *testing.T, mode linkMode) {
		n, d := mode.make(t), openTest(t)
		far := n.wire(t)
		n.attachBoth(t, d)
		eachFar(t, func(t *testing.T, c farCase) {
			diff := must(c.call(t, n, d, far))(t)
			if diff["forward"] == 0 || diff["reverse"] == 0 || diff["new_connection"] != 1 {
				t.Errorf("counted %v", diff)
			}
			if c.protocol == service.TCP && diff["icmp_error"] == 0 {
				t.Errorf("no packet was too big: counted %v", diff)
			}
		})
	})
}

// TestBehindUplink has the backend on another node where the pods' uplink leads. In mode L3S what comes in there passes the
// pod's programs by, so that answers are not translated.
func TestBehindUplink(t *testing.T) {
	for _, name := range []string{"macvlan", "ipvlan-l2", "ipvlan-l3", "ipvlan-l3s"} {
		t.Run(name, func(t *testing.T) {
			n, d := plugged(name)(t), openTest(t)
			far := n.behindUplink(t)
			n.attachBoth(t, d)
			eachFar(t, func(t *testing.T, c farCase) {
				diff, err := c.call(t, n, d, far)
				if diff["forward"] == 0 || diff["new_connection"] == 0 {
					t.Errorf("counted %v", diff)
				}
				if lost := name == "ipvlan-l3s"; (err != nil) != lost || (diff["reverse"] == 0) != lost {
					t.Errorf("error %v; counted %v", err, diff)
				}
			})
		})
	}
}

// behindUplink makes another node of the uplink's far end.
func (n network) behindUplink(t testing.TB) *netns.Namespace {
	t.Helper()
	far := testkit.Namespace(t, "far")
	n.run(t, `
		-n HOST link set up1 netns `+far.Name()+`
		-n HOST addr add `+near4+`/24 dev up0
		-n HOST addr add `+near6+`/64 dev up0 nodad
		-n `+far.Name()+` addr add `+far4+`/24 dev up1
		-n `+far.Name()+` addr add `+far6+`/64 dev up1 nodad
		-n `+far.Name()+` link set up1 up
		-n `+far.Name()+` route add default via `+near4+`
		-n `+far.Name()+` -6 route add default via `+near6)
	return far
}

// farCase is a service with its backend on another node.
type farCase struct {
	backend, service, client string
	protocol                 service.Protocol
}

func eachFar(t *testing.T, test func(*testing.T, farCase)) {
	for _, addresses := range [][3]string{{far4, service4, podB4}, {far6, service6, podB6}} {
		for _, protocol := range []service.Protocol{service.TCP, service.UDP} {
			c := farCase{addresses[0], addresses[1], addresses[2], protocol}
			t.Run(c.backend+"/"+protocol.String(), func(t *testing.T) { test(t, c) })
		}
	}
}

// call has the second pod call the service, and returns what was counted.
func (c farCase) call(t *testing.T, n network, d *Datapath, far *netns.Namespace) (map[string]uint64, error) {
	t.Helper()
	backend := testkit.Echo(t, far, c.protocol.String(), net.JoinHostPort(c.backend, "0"))
	frontend := netip.MustParseAddrPort(net.JoinHostPort(c.service, servicePort))
	s := service.Service{Frontend: frontend, Protocol: c.protocol, Backends: service.Backends(backend)}
	must2(d.Services().Put(t.Context(), service.CLI, s))(t)
	size := 1200
	if c.protocol == service.TCP {
		size = 300_000
	}
	before := counts(t, d)
	peer, err := testkit.RoundTrip(t, n.pods[1], c.protocol.String(), frontend.String(), bytes.Repeat([]byte("far "), size/4))
	if err == nil && peer.Addr().String() != c.client {
		t.Errorf("the backend saw %s", peer)
	}
	return delta(t, d, before), err
}
