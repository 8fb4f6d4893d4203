// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"crypto/rand"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// family is the addresses of one IP version.
type family struct{ name, pod, client, service, gateway string }

func families() []family {
	return []family{{"ipv4", podA4, podB4, service4, gateway4}, {"ipv6", podA6, podB6, service6, gateway6}}
}

// TestTraffic sends real traffic through each way of plugging in pods, or through some. Pod a has the label app=a, b
// has app=b.
func TestTraffic(t *testing.T) {
	const policed = "veth, bridge, macvlan, segment, ipvlan-l2, ipvlan-l3, ipvlan-l3s, netkit, netkit-l2, ovs-veth, " +
		"ovs-internal, tap, tun"
	onLinks(t, "", func(t *testing.T, m linkMode) {
		n, d := m.make(t), openTest(t)
		n.labelled(t, d)
		for _, part := range []struct {
			name, modes string
			test        func(*testing.T, network, *Datapath, family)
		}{
			{"policies of open connections", "veth, bridge, macvlan", testPoliciesOfOpen}, // while all ports are free
			{"pods", "", testPods},
			{"a backend on the host", "", testHostBackend},
			{"refused", "", testNoBackend},
			{"echo", "", testEchoes},
			{"SCTP", "", testSCTP},
			{"promises", "veth, bridge, macvlan, ipvlan-l2, netkit", testPromises},
			{"reset", "veth, bridge, macvlan, segment, ipvlan-l2, ipvlan-l3, netkit, tun, veth without offload", testResets},
			{"policies", policed, testPolicies},
			{"the node refuses", "", testNodeRefuses},
			{"once more", "", testAgain},
		} {
			if part.modes != "" && !slices.Contains(strings.Split(part.modes, ", "), m.name) {
				continue
			}
			t.Run(part.name, func(t *testing.T) {
				for _, f := range families() {
					part.test(t, n, d, f)
				}
			})
		}
	})
}

func testPods(t *testing.T, n network, d *Datapath, f family) {
	delivered, before := n.delivers(t), counts(t, d)
	for _, protocol := range []string{"tcp", "udp"} {
		t.Run(f.name+"/"+protocol, func(t *testing.T) {
			testTraffic(t, trafficCase{n, d, f, protocol, delivered, delivered == "l2_delivered"})
		})
	}
	wantNoDrops(t, d, before)
	wantAllCounted(t, d)
}

// delivers returns the counter of packets to another pod.
func (n network) delivers(t *testing.T) string {
	t.Helper()
	pod := must(rtnl.In(n.pods[0]).Device("eth0"))(t)
	switch {
	case n.segment != "" || pod.Kind == "macvlan" || pod.Kind == "ipvlan":
		return "l2_delivered"
	case n.relayed[0] || pod.Kind == "netkit":
		return "redirect_device"
	}
	return "redirect_peer"
}

// wantNoDrops fails the test if packets were dropped, since before if that is given.
func wantNoDrops(t *testing.T, d *Datapath, before ...map[string]uint64) {
	t.Helper()
	for name, count := range delta(t, d, append(before, nil)[0]) {
		failIf(t, strings.HasPrefix(name, "drop_"), "%s = %d, want nothing dropped", name, count)
	}
}

// testAgain deletes both pods, which then reach each other but no service, and makes them endpoints again.
func testAgain(t *testing.T, n network, d *Datapath, f family) {
	backend := testkit.Echo(t, n.pods[0], "udp", net.JoinHostPort(f.pod, "0"))
	frontend := net.JoinHostPort(f.service, "98")
	putService(t, d, newService(service.UDP, frontend, backend.String()))
	for _, ip := range []string{f.pod, f.client} {
		succeed(t, d.Endpoints().DeleteIP(t.Context(), netip.MustParseAddr(ip)))
	}
	before := counts(t, d)
	noError(t, errOf(testkit.RoundTrip(t, n.pods[1], "udp", backend.String(), []byte("without"))), "without programs")
	wantLen(t, delta(t, d, before), 0, "without programs: counted")
	for i := range n.pods {
		wantPut(t, d, n.attachment(i), Added)
	}
	noError(t, errOf(testkit.RoundTrip(t, n.pods[1], "udp", frontend, []byte("again"))), "once more")
}

// plain pods make all checksums and segments themselves.
func plain(build func(testing.TB) network) func(testing.TB) network {
	return func(t testing.TB) network {
		t.Helper()
		testkit.RequireTool(t, "ethtool")
		n := build(t)
		n.run(t, `
			netns exec PODA ethtool -K eth0 tx off tso off gso off
			netns exec PODB ethtool -K eth0 tx off tso off gso off`)
		return n
	}
}

type trafficCase struct {
	network   network
	datapath  *Datapath
	family    family
	protocol  string
	delivered string
	untouched bool // packets between pod addresses are left to the kernel
}

// marked is whether packets come with the mark that nothing is left to do for them.
func (c trafficCase) marked() bool { return c.delivered != "redirect_peer" && !c.network.inUserSpace }

func testTraffic(t *testing.T, c trafficCase) {
	backend := testkit.Echo(t, c.network.pods[0], c.protocol, net.JoinHostPort(c.family.pod, "0"))
	p := must(service.ParseProtocol(c.protocol))(t)
	s := newService(p, net.JoinHostPort(c.family.service, servicePort), backend.String())
	frontend := s.Frontend
	putService(t, c.datapath, s)
	client := netip.MustParseAddr(c.family.client)
	sizes := []int{1, 1400, 8000} // UDP's last is in fragments
	if c.protocol == "tcp" {
		sizes = []int{1, 1 << 20}
	}
	for _, size := range sizes {
		payload := make([]byte, size)
		_, _ = rand.Read(payload)
		before := counts(t, c.datapath)
		peer, err := testkit.RoundTrip(t, c.network.pods[1], c.protocol, frontend.String(), payload)
		succeed(t, err, "service, %d bytes", size)
		failIf(t, peer.Addr() != client, "the backend saw %s, want %s", peer, client)
		diff := delta(t, c.datapath, before)
		if diff["forward"] == 0 || diff["reverse"] == 0 || diff["new_connection"] != 1 ||
			diff[c.delivered] < diff["forward"]+diff["reverse"] || (diff["delivered"] > 0) != c.marked() {
			t.Errorf("service, %d bytes: counted %v", size, diff)
		}
		before = settled(t, c.datapath)
		peer, err = testkit.RoundTrip(t, c.network.pods[1], c.protocol, backend.String(), payload)
		testkit.Require(t, err == nil, "pod, %d bytes: %v", size, err)
		if diff = delta(t, c.datapath, before); diff["port_changed"] == 1 {
			continue // the client's port is by chance the one that it called the service from
		}
		if peer.Addr() != client || diff["new_connection"] != 0 ||
			(diff[c.delivered] == 0) != c.untouched || (diff["delivered"] > 0) != c.marked() {
			t.Errorf("pod, %d bytes: the backend saw %s; counted %v", size, peer, diff)
		}
		// Some packets may be between their two counters, or the kernel's own.
		testkit.Check(t, !c.untouched || !c.marked() || 2*diff["delivered"] >= diff["to_pod"],
			"pod, %d bytes: both programs worked on a packet; counted %v", size, diff)
	}
	testHairpin(t, c, frontend)
	testHost(t, c, backend)
}

// testHost sends between the host and a pod, which the programs must not disturb.
func testHost(t *testing.T, c trafficCase, backend netip.AddrPort) {
	payload := bytes.Repeat([]byte("host "), 1000)
	noError(t, errOf(testkit.RoundTrip(t, c.network.host, c.protocol, backend.String(), payload)), "host to pod")
	host := testkit.Echo(t, c.network.host, c.protocol, net.JoinHostPort(c.family.gateway, "0"))
	peer, err := testkit.RoundTrip(t, c.network.pods[1], c.protocol, host.String(), payload)
	failIf(t, err != nil || peer.Addr().String() != c.family.client, "pod to host: from %s, %v", peer, err)
}

// testHairpin lets the backend's pod call its own service.
func testHairpin(t *testing.T, c trafficCase, frontend netip.AddrPort) {
	payload := bytes.Repeat([]byte("hairpin "), 500)
	peer, err := testkit.RoundTrip(t, c.network.pods[0], c.protocol, frontend.String(), payload)
	succeed(t, err, "hairpin")
	failIf(t, peer.Addr() != frontend.Addr(), "hairpin: the backend saw %s, want the service's address", peer)
}

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
			callEachOther(t, n, d)
		})
	}
}

// callEachOther has two pods of different networks call each other's services.
func callEachOther(t *testing.T, n network, d *Datapath) {
	t.Helper()
	for _, addresses := range [][4]string{
		{podA4, elsewhere4, service4, "10.96.0.101"}, {podA6, elsewhere6, service6, "fd00:96::101"},
	} {
		for _, protocol := range tcpAndUDP {
			c := mixedCase{n, d, protocol}
			c.test(t, 0, addresses[1], addresses[0], addresses[2])
			c.test(t, 1, addresses[0], addresses[1], addresses[3])
		}
	}
	wantNoDrops(t, d)
}

func mixed(t *testing.T, names [2]string) network {
	t.Helper()
	a, b := usable(t, names[0]), usable(t, names[1])
	n := newNetwork(t)
	// 1 is strict; 2 drops sources to which the host lacks a route. Packets of ipvlan pods reach the host through the
	// uplink, while the host's route to them is another; and the uplink must have an address, or all packets are dropped.
	strictness := "1"
	if strings.HasPrefix(names[0], "ipvlan") {
		strictness = "2"
	}
	succeed(t, rtnl.In(n.host).SetSysctl("net/ipv4/conf/all/rp_filter", strictness))
	n.uplink(t)
	n.run(t, `
		-n HOST addr add 172.16.9.1/24 dev up0
		-n HOST link add up2 type veth peer name up3
		up HOST up2 172.16.8.1/24
		up HOST up3`)
	n.plug(t, a, n.subnetOn(t, a, "up0", gateway4+"/24", gateway6+"/64"), 0, podA4, podA6)
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
	frontend := net.JoinHostPort(vip, servicePort)
	putService(t, c.datapath, newService(c.protocol, frontend, backend.String()))
	size := 5000 // in fragments
	if c.protocol == service.TCP {
		size = 300_000
	}
	before := counts(t, c.datapath)
	peer, err := testkit.RoundTrip(t, c.network.pods[1-i], protocol, frontend, bytes.Repeat([]byte("mix "), size/4))
	succeed(t, err, "%s to %s", client, pod)
	failIf(t, peer.Addr().String() != client, "%s saw %s, want %s", pod, peer, client)
	diff := delta(t, c.datapath, before)
	testkit.Check(t, diff["forward"] != 0 && diff["reverse"] != 0, "%s to %s: counted %v", client, pod, diff)
	noError(t, errOf(testkit.RoundTrip(t, c.network.pods[1-i], protocol, backend.String(), []byte("straight"))),
		"%s to %s straight", client, pod)
}

// testHostBackend has services whose backend is a process of the host, at its own address.
func testHostBackend(t *testing.T, n network, d *Datapath, f family) {
	before := counts(t, d)
	callHostBackend(t, d, hostBackend{n.host, n.pods[1], f.gateway, f.service, f.client})
	wantNoDrops(t, d, before)
}

// TestFromOutside has a client outside call the host's own services, and services without backends, and ping their
// addresses. Pods that take jumbo frames get large answers.
func TestFromOutside(t *testing.T) {
	n, d := routed(t), openTest(t)
	far := n.wire(t)
	n.attachBoth(t, d)
	must(d.Uplinks().Put(t.Context(), n.host, "wire"))(t)
	for _, ends := range [][4]string{
		{gateway4, near4, far4}, {near4, near4, far4}, {gateway6, near6, far6}, {near6, near6, far6},
	} {
		callHostBackend(t, d, hostBackend{n.host, far, ends[0], ends[1], ends[2]})
	}
	wantNoDrops(t, d)
	for _, f := range families() {
		wantEcho(t, d, far, f.service, 56)
	}
	for _, host := range []string{near4, near6} {
		wantRefusal(t, d, far, host)
		before := counts(t, d)
		for _, client := range []*netns.Namespace{far, n.pods[1]} { // the kernel answers
			noError(t, testkit.Ping(client, netip.MustParseAddr(host), 56))
		}
		equal(t, delta(t, d, before)["icmp_echo"], 0, "icmp_echo")
	}
	n.run(t, "-n HOST link set vb mtu 9000\n-n PODB link set eth0 mtu 9000")
	for _, f := range families() {
		wantEcho(t, d, n.pods[1], f.service, 8952)
	}
}

// hostBackend is a backend on the host, and a client of its service.
type hostBackend struct {
	host, client              *netns.Namespace
	backend, service, address string // the last is the client's
}

func callHostBackend(t *testing.T, d *Datapath, b hostBackend) {
	t.Helper()
	for _, p := range []service.Protocol{service.TCP, service.UDP} {
		backend := testkit.Echo(t, b.host, p.String(), net.JoinHostPort(b.backend, "0"))
		s := newService(p, net.JoinHostPort(b.service, servicePort), backend.String())
		putService(t, d, s)
		for _, size := range []int{1, 8000} { // UDP's last is in fragments
			before := counts(t, d)
			peer, err := testkit.RoundTrip(t, b.client, p.String(), s.Frontend.String(), bytes.Repeat([]byte("h"), size))
			diff := delta(t, d, before)
			failIf(t, err != nil || peer.Addr().String() != b.address,
				"%s to %s at %s, %d bytes: the backend saw %s, want %s; %v (counted %v)", p, s.Frontend, b.backend, size, peer,
				b.address, err, diff)
			testkit.Check(t, diff["new_connection"] == 1 && diff["forward"] != 0 && diff["reverse"] != 0,
				"%s to %s at %s, %d bytes: counted %v", p, s.Frontend, b.backend, size, diff)
		}
		succeed(t, d.Services().Delete(t.Context(), service.CLI, s.Key()))
	}
}

// TestSocketHostBackend has a process of the host call a service whose backend is another process of the host.
func TestSocketHostBackend(t *testing.T) {
	s := newStage(t)
	must(s.Sockets().Put(t.Context(), service.CLI, s.host, HostScope))(t)
	host := place{s.host, s.cgroup}
	for _, ends := range [][2]string{{service4, gateway4}, {service6, gateway6}, {"127.0.0.1", gateway4}} {
		frontend := netip.MustParseAddrPort(net.JoinHostPort(ends[0], servicePort))
		backend := testkit.Echo(t, s.host, "udp", net.JoinHostPort(ends[1], "0"))
		s.serve(frontend.String(), backend)
		client := host.open(t, frontend.Addr().Is6(), unix.SOCK_DGRAM)
		client.mustConnect(frontend)
		client.ask(netip.AddrPort{}, frontend)
	}
}
