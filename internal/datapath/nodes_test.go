// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// Addresses of a client outside, and of the host on the way to it; of the pod of another node, and of that node's own
// way to clients.
const (
	outer4, outer6     = "172.16.2.2", "fd00:98::2"
	gate4, gate6       = "172.16.2.1", "fd00:98::1"
	farPod4, farPod6   = "192.168.20.10", "fd00:20::a"
	farGate4, farGate6 = "172.16.3.1", "fd00:97::1"
	back4, back6       = "172.16.3.2", "fd00:97::2"
)

// cluster is a client outside, a host with pods, and another node, which lacks a route to the client. With its own
// datapath, the other node has a pod and a route to the client, which all its answers take.
type cluster struct {
	network
	d, other            *Datapath
	client, far, farPod *netns.Namespace
}

func newCluster(t testing.TB) cluster {
	t.Helper()
	n, d := routed(t), openTest(t)
	c := cluster{network: n, d: d, client: testkit.Namespace(t, "client"), far: n.wire(t)}
	c.run(t, `
		-n HOST link add outer type veth peer name outer netns `+c.client.Name()+`
		up HOST outer `+gate4+`/24 `+gate6+`/64
		up `+c.client.Name()+` outer `+outer4+`/24 `+outer6+`/64
		default `+c.client.Name()+` `+gate4+` `+gate6+`
		-n `+c.far.Name()+` route del default
		-n `+c.far.Name()+` -6 route del default`)
	n.attachBoth(t, d)
	for _, device := range []string{"outer", "wire"} {
		must(d.Uplinks().Put(t.Context(), n.host, device))(t)
	}
	return c
}

func newNodes(t testing.TB) cluster {
	t.Helper()
	c := newCluster(t)
	c.other, c.farPod = openTest(t), testkit.Namespace(t, "far-pod")
	far := network{host: c.far, pods: [2]*netns.Namespace{c.farPod, c.client}}
	far.run(t, `
		-n HOST link add vp type veth peer name eth0 netns PODA
		-n HOST link add back type veth peer name back netns PODB
		up HOST back `+farGate4+`/24 `+farGate6+`/64
		up PODB back `+back4+`/24 `+back6+`/64
		up PODA eth0 `+farPod4+`/32 `+farPod6+`/128
		up HOST vp fe80::1/64
		-n HOST route add `+farPod4+` dev vp
		-n HOST route add `+farPod6+` dev vp
		-n PODA route add default dev eth0
		-n PODA -6 route add default via fe80::1 dev eth0
		-n HOST route add `+outer4+` via `+back4+`
		-n HOST route add `+outer6+` via `+back6)
	setForwarding(t, c.far, "1")
	succeed(t, rtnl.In(c.far).SetSysctl("net/ipv4/conf/vp/proxy_arp", "1"))
	c.run(t, `
		-n HOST route add `+farPod4+` via `+far4+`
		-n HOST route add `+farPod6+` via `+far6)
	must2(c.other.Endpoints().Put(t.Context(), far.attachment(0)))(t)
	for _, device := range []string{"wire", "back"} {
		must(c.other.Uplinks().Put(t.Context(), c.far, device))(t)
	}
	return c
}

// outsideCase is a protocol, a family and a return path for calls of clients outside. Addresses: of the host towards
// the client and towards the other node, of the other node, of the client and its other path, of a pod of each node,
// one outside, and the unspecified one.
type outsideCase struct {
	cluster
	protocol                                               service.Protocol
	dsr                                                    service.DSR
	gate, near, farNode, outer, pod, remote, external, all netip.Addr
}

// each runs a test for some protocols in both families, with SNAT, and with direct server return if the other node has
// a datapath.
func (c cluster) each(t *testing.T, protocols []service.Protocol, test func(*testing.T, outsideCase)) {
	ways := []service.DSR{service.NoDSR}
	if c.other != nil {
		ways = append(ways, service.IPIP)
	}
	for _, dsr := range ways {
		for _, protocol := range protocols {
			// An external address for each: a client's path MTU to an address stays cached.
			own := int(protocol) + int(dsr)
			for _, texts := range [][8]string{
				{gate4, near4, far4, outer4, podA4, farPod4, fmt.Sprintf("203.0.113.%d", own), "0.0.0.0"},
				{gate6, near6, far6, outer6, podA6, farPod6, fmt.Sprintf("2001:db8:7::%d", own), "::"},
			} {
				o := outsideCase{cluster: c, protocol: protocol, dsr: dsr}
				for i, a := range []*netip.Addr{&o.gate, &o.near, &o.farNode, &o.outer, &o.pod, &o.remote, &o.external, &o.all} {
					*a = netip.MustParseAddr(texts[i])
				}
				t.Run(fmt.Sprintf("%s/%s/dsr %s", texts[0], protocol, dsr), func(t *testing.T) { test(t, o) })
			}
		}
	}
}

var (
	tcpAndUDP    = []service.Protocol{service.TCP, service.UDP}
	allProtocols = []service.Protocol{service.TCP, service.UDP, service.SCTP}
)

// payloads returns the client's data: segments that the devices cut from larger ones, and datagrams of one packet and
// of fragments.
func (o outsideCase) payloads() [][]byte {
	if o.protocol == service.TCP {
		return [][]byte{[]byte("x"), bytes.Repeat([]byte("outside "), 100_000)}
	}
	return [][]byte{[]byte("x"), bytes.Repeat([]byte("o"), 1200), bytes.Repeat([]byte("f"), 8000)}
}

func (o outsideCase) echo(t *testing.T, ns *netns.Namespace, addr netip.Addr) netip.AddrPort {
	t.Helper()
	at := netip.AddrPortFrom(addr, 5201)
	switch {
	case o.protocol != service.SCTP:
		return testkit.Echo(t, ns, o.protocol.String(), netip.AddrPortFrom(addr, 0).String())
	case hasSCTP():
		echoSCTP(t, ns, at)
	default:
		listenSCTP(t, ns, at)
	}
	return at
}

func (o outsideCase) service(backends ...netip.AddrPort) service.Service {
	return service.Service{Frontend: netip.AddrPortFrom(o.external, 5201), Protocol: o.protocol, External: true,
		DSR: o.dsr, Backends: service.Backends(backends...)}
}

func (o outsideCase) nodePort(port uint16, backends ...netip.AddrPort) service.Service {
	s := o.service(backends...)
	s.Frontend, s.External, s.NodePort = netip.AddrPortFrom(o.all, port), false, true
	return s
}

// put stores a service, with direct server return on both nodes.
func (o outsideCase) put(t testing.TB, s service.Service) {
	t.Helper()
	putService(t, o.d, s)
	if s.DSR != service.NoDSR {
		putService(t, o.other, s)
	}
}

// call calls an address from a namespace, and returns the peer that the server saw, and the counters' changes of both
// nodes.
func (o outsideCase) call(t *testing.T, from *netns.Namespace, to netip.AddrPort, payload []byte) (peer netip.AddrPort,
	first, second map[string]uint64) {
	t.Helper()
	before := settled(t, o.d)
	var far map[string]uint64
	if o.other != nil {
		far = settled(t, o.other)
	}
	peer, err := testkit.RoundTrip(t, from, o.protocol.String(), to.String(), payload)
	if err != nil && delta(t, o.d, before)["drop_too_big"] > 0 { // a datagram is lost, and the next one smaller
		peer, err = testkit.RoundTrip(t, from, o.protocol.String(), to.String(), payload)
	}
	first = delta(t, o.d, before)
	if o.other != nil {
		second = delta(t, o.other, far)
	}
	succeed(t, err, "%s, %d bytes (counted %v and %v)", to, len(payload), first, second)
	return peer, first, second
}

// ask sends a line over an open connection until it comes back; the first datagrams may be lost.
func ask(conn net.Conn, line []byte) error {
	answer := make([]byte, 2*len(line))
	for range 60 {
		if _, err := conn.Write(line); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		n, err := conn.Read(answer)
		if err == nil && bytes.HasSuffix(answer[:n], line) {
			return nil
		}
	}
	return errors.New("no answer")
}

// refusedUDP returns the error that a datagram brings back, which has a TTL if that is not 0.
func refusedUDP(client *netns.Namespace, to netip.AddrPort, size, ttl int) error {
	conn, err := testkit.Dial(client, "udp", to.String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if raw, err := conn.(*net.UDPConn).SyscallConn(); ttl > 0 && err == nil {
		level, hops, told := unix.IPPROTO_IP, unix.IP_TTL, unix.IP_RECVERR
		if to.Addr().Is6() {
			level, hops, told = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_RECVERR
		}
		controlErr := raw.Control(func(fd uintptr) {
			err = errors.Join(unix.SetsockoptInt(int(fd), level, hops, ttl), unix.SetsockoptInt(int(fd), level, told, 1))
		})
		if err := errors.Join(err, controlErr); err != nil {
			return err
		}
	}
	if _, err = conn.Write(make([]byte, size)); err != nil {
		return err
	}
	if err = conn.SetReadDeadline(time.Now().Add(60 * time.Second)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}
