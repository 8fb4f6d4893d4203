// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/flows"
	"mustang/internal/netns"
	"mustang/internal/qdisc"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// testPromises tests services whose backends are chosen, change and go, in the link modes of the table in
// test/promises/services.md.
func testPromises(t *testing.T, n network, d *Datapath, f family) {
	p := promise{n, d, f, service.TCP, nil}
	p.start(t)
	t.Run(f.name, p.test)
	for _, p.protocol = range tcpAndUDP {
		p.backends = nil
		p.start(t)
		t.Run(f.name+"/changes of "+p.protocol.String(), p.changes)
	}
}

func (p *promise) start(t *testing.T) {
	t.Helper()
	for range 4 {
		p.backends = append(p.backends, testkit.Echo(t, p.network.pods[0], p.protocol.String(),
			net.JoinHostPort(p.family.pod, "0")))
	}
}

// promise is a service of one family, and the pods that it is for.
type promise struct {
	network  network
	datapath *Datapath
	family   family
	protocol service.Protocol
	backends []netip.AddrPort
}

// choice says how many connections go to backends: of some, how many at each is right.
type choice struct {
	connections int
	change      func(*service.Service)
	right       func(got []int) bool
}

func (p promise) test(t *testing.T) {
	leaving := func(s *service.Service) {
		s.Backends[0].State, s.Backends[1].State, s.Backends[2].State = service.Terminating, service.Draining,
			service.Quarantined
	}
	used := func(got []int) (n int) {
		for _, connections := range got {
			n += min(connections, 1)
		}
		return n
	}
	for name, c := range map[string]choice{
		"states": {12, leaving, func(got []int) bool { return got[3] > 0 && used(got) == 1 }},
		"states without an active one": {6, func(s *service.Service) { leaving(s); s.Backends = s.Backends[:3] },
			func(got []int) bool {
				return got[0] > 0 && used(got) == 1
			}},
		// 0.07 of 24 are the others'
		"weights": {24, func(s *service.Service) { s.Backends[0].Weight = 1000 }, func(got []int) bool {
			return got[0] > 0 && got[1]+got[2]+got[3] <= got[0]/3
		}},
		"maglev": {48, func(s *service.Service) { s.Choice = service.Maglev },
			func(got []int) bool { return used(got) > 1 }},
		"affinity": {16, func(s *service.Service) { s.Affinity = time.Hour }, func(got []int) bool { return used(got) == 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			p.put(t, c.change)
			got := p.chosen(t, c.connections)
			failIf(t, !c.right(got), "of %d connections, backends got %v", c.connections, got)
		})
	}
}

func (p promise) put(t *testing.T, change func(*service.Service)) service.Service {
	t.Helper()
	s := service.Service{Frontend: netip.MustParseAddrPort(net.JoinHostPort(p.family.service, servicePort)),
		Protocol: p.protocol, Backends: service.Backends(p.backends...)}
	change(&s)
	putService(t, p.datapath, s)
	return s
}

// chosen opens connections, and returns how many connections in the table each backend has. After about a second, new
// connections reuse the slots of ended ones.
func (p promise) chosen(t *testing.T, connections int) []int {
	t.Helper()
	must(p.datapath.ConnectionTable().Flush(t.Context(), flows.Filter{}))(t)
	for range connections {
		must(testkit.RoundTrip(t, p.network.pods[1], "tcp", net.JoinHostPort(p.family.service, servicePort), []byte("x")))(t)
	}
	list := must(p.datapath.Connections())(t)
	counts := make([]int, len(p.backends))
	for i, backend := range p.backends {
		for _, c := range list {
			if c.Backend == backend {
				counts[i]++
			}
		}
	}
	return counts
}

// changes takes backends away from open connections, the last one in the end: TCP connections stay, and UDP is refused.
func (p promise) changes(t *testing.T) {
	s := p.put(t, func(*service.Service) {})
	conn := dialFrom(t, p.network.pods[1], netip.AddrPort{}, p.protocol.String(), s.Frontend)
	for left := len(p.backends); left >= 0; left-- {
		p.put(t, func(s *service.Service) { s.Backends = s.Backends[len(s.Backends)-left:] })
		if left == 0 && p.protocol == service.UDP {
			failsWith(t, exchanged(conn), unix.ECONNREFUSED, "the last backend is gone")
			return
		}
		succeed(t, exchanged(conn), "%d backends left: an open connection", left)
	}
	failsWith(t, errOf(testkit.Dial(p.network.pods[1], "tcp", s.Frontend.String())), unix.ECONNREFUSED, "a new connection")
}

// Addresses of the backend on another node, and of the host on the wire to it.
const (
	far4, far6   = "172.16.1.2", "fd00:99::2"
	near4, near6 = "172.16.1.1", "fd00:99::1"
)

// wire joins the host to another node. The ends compute checksums themselves, so that the other node checks each: the
// checksums that the pods left open, and the programs' changes of them, must be right. The route there has a smaller
// MTU than the pods, but the wire does not: only an ICMP error reports it.
func (n network) wire(t testing.TB) *netns.Namespace {
	t.Helper()
	testkit.RequireTool(t, "ethtool")
	far := testkit.Namespace(t, "far")
	for _, ns := range []*netns.Namespace{n.host, far} {
		succeed(t, rtnl.In(ns).SetSysctl("net/ipv6/conf/default/accept_dad", "0"))
	}
	n.run(t, `
		-n HOST link add wire type veth peer name wire netns `+far.Name()+`
		up HOST wire `+near4+`/24 `+near6+`/64
		up `+far.Name()+` wire `+far4+`/24 `+far6+`/64
		-n HOST route add `+far4+` dev wire mtu lock 1400
		-n HOST route add `+far6+` dev wire mtu lock 1400
		default `+far.Name()+` `+near4+` `+near6+`
		netns exec HOST ethtool -K wire tx off tso off gso off
		netns exec `+far.Name()+` ethtool -K wire tx off tso off gso off`)
	return far
}

// TestRemote has the backend on another node, behind a smaller MTU: the host's answers to packets that are too big
// must reach the client.
func TestRemote(t *testing.T) {
	onLinks(t, "veth, bridge, macvlan, ipvlan-l2, netkit, netkit-l2, tap, tun", func(t *testing.T, mode linkMode) {
		n, d := mode.make(t), openTest(t)
		far := n.wire(t)
		n.attachBoth(t, d)
		eachFar(t, func(t *testing.T, c farCase) {
			diff := must(c.call(t, n, d, far))(t)
			failIf(t, diff["forward"] == 0 || diff["reverse"] == 0 || diff["new_connection"] != 1, "counted %v", diff)
			failIf(t, c.protocol == service.TCP && diff["icmp_error"] == 0, "no packet was too big: counted %v", diff)
		})
	})
}

// TestBehindUplink has the backend on another node behind the pods' uplink. In mode L3S packets from there bypass the
// pod's programs, so that answers are not translated.
func TestBehindUplink(t *testing.T) {
	for _, name := range []string{"macvlan", "ipvlan-l2", "ipvlan-l3", "ipvlan-l3s"} {
		t.Run(name, func(t *testing.T) {
			n, d := plugged(name)(t), openTest(t)
			far := n.behindUplink(t)
			n.attachBoth(t, d)
			eachFar(t, func(t *testing.T, c farCase) {
				diff, err := c.call(t, n, d, far)
				failIf(t, diff["forward"] == 0 || diff["new_connection"] == 0, "counted %v", diff)
				lost := name == "ipvlan-l3s"
				testkit.Check(t, (err != nil) == lost && (diff["reverse"] == 0) == lost, "error %v; counted %v", err, diff)
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
		up `+far.Name()+` up1 `+far4+`/24 `+far6+`/64
		default `+far.Name()+` `+near4+` `+near6)
	return far
}

// farCase is a service with its backend on another node.
type farCase struct {
	backend, service, client string
	protocol                 service.Protocol
}

func eachFar(t *testing.T, test func(*testing.T, farCase)) {
	for _, addresses := range [][3]string{{far4, service4, podB4}, {far6, service6, podB6}} {
		for _, protocol := range tcpAndUDP {
			c := farCase{addresses[0], addresses[1], addresses[2], protocol}
			t.Run(c.backend+"/"+protocol.String(), func(t *testing.T) { test(t, c) })
		}
	}
}

// call has the second pod call the service, and returns the counters' changes.
func (c farCase) call(t *testing.T, n network, d *Datapath, far *netns.Namespace) (map[string]uint64, error) {
	t.Helper()
	backend := testkit.Echo(t, far, c.protocol.String(), net.JoinHostPort(c.backend, "0"))
	frontend := net.JoinHostPort(c.service, servicePort)
	putService(t, d, newService(c.protocol, frontend, backend.String()))
	size := 1200
	if c.protocol == service.TCP {
		size = 300_000
	}
	before := counts(t, d)
	peer, err := testkit.RoundTrip(t, n.pods[1], c.protocol.String(), frontend, bytes.Repeat([]byte("far "), size/4))
	failIf(t, err == nil && peer.Addr().String() != c.client, "the backend saw %s", peer)
	return delta(t, d, before), err
}

// TestShaped has a limit at the host's device of a pod that lets next to nothing pass. Packets to the pod, via its
// own address, via a service, and from outside, must cross this device and be dropped there.
func TestShaped(t *testing.T) {
	testkit.RequireTool(t, "tc")
	onLinks(t, "veth, bridge, netkit, netkit-l2, tap", func(t *testing.T, mode linkMode) {
		n, d := mode.make(t), openTest(t)
		far := n.wire(t)
		shaped := n.attachment(0)
		shaped.Shaped = true
		wantPut(t, d, shaped, Added)
		wantPut(t, d, n.attachment(1), Added)
		wantPut(t, d, shaped, Unchanged)
		must(d.Uplinks().Put(t.Context(), n.host, "wire"))(t)
		server := listenUDP(t, n.pods[0], podA4, 1)[0]
		vip := netip.MustParseAddrPort(near4 + ":5201")
		putService(t, d, newService(service.UDP, vip.String(), server.addr.String()))
		for name, c := range map[string]struct {
			from *netns.Namespace
			to   netip.AddrPort
		}{
			"straight": {n.pods[1], server.addr}, "service": {n.pods[1], vip}, "outside": {far, vip},
		} {
			t.Run(name, func(t *testing.T) { flood(t, n, server, c.from, c.to) })
		}
		// Without it, the queue is passed by where there is a shorter way.
		_, change, err := d.Endpoints().Put(t.Context(), n.attachment(0))
		failIf(t, err != nil || (change == Updated) != strings.Contains("veth bridge netkit netkit-l2", mode.name),
			"Put without a queue: %v, %v", change, err)
	})
	t.Run("macvlan", func(t *testing.T) {
		n, d := slaves(t), openTest(t)
		a := n.attachment(0)
		a.Shaped = true
		testkit.Fails(t, errOf2(d.Endpoints().Put(t.Context(), a)), "no device on the host")
	})
}

// flood sends more at once than a limit of one kilobyte per second and, at first, five datagrams lets through.
//
//revive:disable-next-line:argument-limit // t comes on top of the four that say who calls whom
func flood(t *testing.T, n network, server *counter, from *netns.Namespace, to netip.AddrPort) {
	t.Helper()
	const count = 50
	conn := must(testkit.Dial(from, "udp", to.String()))(t)
	defer conn.Close()
	send := func() {
		must(conn.Write(make([]byte, 1000)))(t)
	}
	send() // neighbours find each other
	server.received(t, 0)
	succeed(t, qdisc.SetLimit(n.host, "va", qdisc.Limit{Rate: 8_000, Burst: 44_000}))
	defer func() {
		noError(t, qdisc.SetLimit(n.host, "va", qdisc.Limit{}))
	}()
	for range count {
		send()
	}
	const waiting = 5 // at most, in tbf; 2 in fq
	sent, dropped := 0, 0
	testkit.Eventually(t, time.Second, func() error { // on a busy machine packets reach the queue later
		sent, dropped = n.queued(t)
		if sent+dropped < count-2-waiting {
			return fmt.Errorf("the queue passed %d packets and dropped %d of %d", sent, dropped, count)
		}
		return nil
	})
	if got := len(server.received(t, 0)); sent == 0 || dropped < count/2 || got > count-dropped {
		t.Errorf("the queue passed %d packets and dropped %d; %d arrived", sent, dropped, got)
	}
}

// queued returns the packets that the queues of the host's first device passed and dropped.
func (n network) queued(t *testing.T) (sent, dropped int) {
	t.Helper()
	stats := testkit.Command(t, n.host, "tc -s qdisc show dev va")
	// The program before queue fq counts at clsact, which queues nothing.
	for _, found := range regexp.MustCompile(
		`qdisc (\w+)[^\n]*\n *Sent \d+ bytes (\d+) pkt \(dropped (\d+)`).FindAllStringSubmatch(stats, -1) {
		passed, _ := strconv.Atoi(found[2])
		drops, _ := strconv.Atoi(found[3])
		dropped += drops
		if found[1] != "clsact" {
			sent += passed
		}
	}
	return sent, dropped
}
