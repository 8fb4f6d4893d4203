// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestBackendOnAnotherNode has a client outside call services whose backend is on another node. With SNAT the backend
// answers this node; with direct server return it sees the client and answers it directly.
func TestBackendOnAnotherNode(t *testing.T) {
	const dsrPort = 30099
	n := newNodes(t)
	var returned atomic.Int64 // packets from the port of direct server return that the first node sent the client
	outer := must(rtnl.In(n.client).Device("outer"))(t)
	testkit.WatchPackets(t, n.client, outer.Index, func(packet []byte) {
		if viewFrame(slices.Concat(packet, make([]byte, 60)), true).src.Port() == dsrPort {
			returned.Add(1)
		}
	})
	n.each(t, tcpAndUDP, func(t *testing.T, o outsideCase) {
		backend, port := o.echo(t, n.far, o.farNode), uint16(5201)
		if o.dsr != service.NoDSR {
			backend, port = o.echo(t, n.farPod, o.remote), dsrPort
		}
		own, external := o.service(backend), o.service(backend)
		own.Frontend, external.Frontend = netip.AddrPortFrom(o.gate, port+1), netip.AddrPortFrom(o.external, port)
		for _, s := range []service.Service{own, external, o.nodePort(port, backend)} {
			at := s.Frontend
			if s.NodePort {
				at = netip.AddrPortFrom(o.gate, port)
			}
			o.put(t, s)
			for _, payload := range o.payloads() {
				o.wantElsewhere(t, at, payload)
			}
		}
		if o.dsr != service.NoDSR {
			return
		}
		own.Frontend = netip.AddrPortFrom(o.near, port) // the backend calls its own service at this node
		o.put(t, own)
		peer, _, _ := o.call(t, n.far, own.Frontend, []byte("itself"))
		equal(t, peer.Addr(), o.near, "the backend that calls itself saw")
	})
	equal(t, returned.Load(), 0, "packets of services with direct server return came by the first node")
	wantNoDrops(t, n.other)
}

// wantElsewhere has the client outside call a service with a backend on another node, and checks both nodes' counters.
func (o outsideCase) wantElsewhere(t *testing.T, at netip.AddrPort, payload []byte) {
	t.Helper()
	peer, first, second := o.call(t, o.client, at, payload)
	if o.dsr == service.NoDSR {
		testkit.Check(t, peer.Addr() == o.near && peer.Port() >= 1024 && peer.Port() < 32768,
			"the backend saw %s, want a port of %s that no socket gets", peer, o.near)
		if first["new_connection"] != 1 || first["redirect_routed"] != first["forward"] || first["forward"] == 0 ||
			first["redirect_device"] != first["reverse"] || first["reverse"] == 0 {
			t.Errorf("%s, %d bytes: counted %v", at, len(payload), first)
		}
		return
	}
	equal(t, peer.Addr(), o.outer, "the backend saw")
	failIf(t, first["encapsulated"] == 0 || first["encapsulated"] != first["redirect_routed"] || first["reverse"] != 0,
		"%s, %d bytes: the first node counted %v", at, len(payload), first)
	if second["decapsulated"] == 0 || second["decapsulated"] != second["forward"] || second["reverse"] == 0 ||
		second["reverse"] != second["redirect_routed"] {
		t.Errorf("%s, %d bytes: the second node counted %v", at, len(payload), second)
	}
}

// TestNodePort calls a port of all addresses of the node, from outside and from a pod, and other ports, which are the
// node's own.
func TestNodePort(t *testing.T) {
	c := newCluster(t)
	c.each(t, tcpAndUDP, func(t *testing.T, o outsideCase) {
		local, remote := o.echo(t, c.pods[0], o.pod), o.echo(t, c.far, o.farNode)
		for _, call := range []struct {
			from     *netns.Namespace
			backend  netip.AddrPort
			at, seen netip.Addr // the node's address, and the client's, which the backend sees
		}{
			{c.client, local, o.gate, o.outer}, {c.client, local, o.near, o.outer},
			{c.client, remote, o.gate, o.near}, {c.client, remote, o.near, o.near},
			{c.pods[1], local, o.gate, netip.Addr{}}, {c.pods[1], local, o.near, netip.Addr{}},
		} {
			o.put(t, o.nodePort(30080, call.backend))
			peer, _, _ := o.call(t, call.from, netip.AddrPortFrom(call.at, 30080), []byte("node port"))
			failIf(t, call.seen.IsValid() && peer.Addr() != call.seen, "the backend saw %s, want %s", peer, call.seen)
		}
		_, diff, _ := o.call(t, c.client, o.echo(t, c.host, o.gate), []byte("own"))
		failIf(t, diff["forward"]+diff["reverse"]+diff["new_connection"] != 0, "the node's own server: counted %v", diff)
	})
	wantNoDrops(t, c.d)
}

// TestNodePortOfOwnSocket has a process of the host call a server outside and a pod from a port. The port becomes a
// node port, or a host port at one of the node's addresses, and the process calls again. The answers are for the
// process, and calls of others for the service.
func TestNodePortOfOwnSocket(t *testing.T) {
	c := newCluster(t)
	c.each(t, tcpAndUDP, func(t *testing.T, o outsideCase) {
		podB := map[bool]string{true: podB4, false: podB6}[o.all.Is4()]
		servers := []netip.AddrPort{o.echo(t, c.client, o.outer), o.echo(t, c.pods[1], netip.MustParseAddr(podB))}
		backend := o.echo(t, c.pods[0], o.pod)
		for i, addr := range []netip.Addr{o.all, o.all, o.gate, o.gate} {
			s := o.nodePort(30085, backend)
			s.Frontend, s.NodePort = netip.AddrPortFrom(addr, 30085), addr == o.all
			for _, when := range []string{"before there is a node port", "after that"} {
				conn := dialFrom(t, c.host, netip.AddrPortFrom(o.gate, 30085), o.protocol.String(), servers[i%2])
				o.put(t, s)
				noError(t, exchanged(conn), "%v: to %s, connected %s", s.Frontend, servers[i%2], when)
				o.call(t, c.client, netip.AddrPortFrom(o.gate, 30085), []byte("call"))
				if tcp, ok := conn.(*net.TCPConn); ok {
					_ = tcp.SetLinger(0) // for the port is used again
				}
				_ = conn.Close()
			}
			succeed(t, c.d.Services().Delete(t.Context(), service.CLI, s.Key()))
		}
	})
	wantNoDrops(t, c.d)
}

// dialFrom connects an address of a namespace with a server of testkit, and reads the first line of a TCP server.
//
//revive:disable-next-line:argument-limit // t comes on top
func dialFrom(t *testing.T, ns *netns.Namespace, from netip.AddrPort, network string,
	to netip.AddrPort) (conn net.Conn) {
	t.Helper()
	var local net.Addr = net.UDPAddrFromAddrPort(from)
	if network == "tcp" {
		local = net.TCPAddrFromAddrPort(from)
	}
	succeed(t, ns.Do(func() (err error) {
		conn, err = (&net.Dialer{LocalAddr: local, Timeout: 60 * time.Second}).Dial(network, to.String())
		return err
	}))
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetReadDeadline(time.Now().Add(60 * time.Second))
	for b := make([]byte, 1); network == "tcp" && b[0] != '\n'; {
		must(conn.Read(b))(t)
	}
	return conn
}

// TestForgedResetFromOutside has another machine send resets and FINs in the name of both ends of a connection, which
// ignore them. The connection stays open in the table.
func TestForgedResetFromOutside(t *testing.T) {
	c := newCluster(t)
	l := listenTCP(t, c.pods[0], podA4)
	frontend := netip.MustParseAddrPort(gate4 + ":30080")
	s := newService(service.TCP, "0.0.0.0:30080", l.Addr().String())
	s.NodePort = true
	putService(t, c.d, s)
	conn := openTo(t, place{ns: c.client}, frontend, l)
	state := func(want flows.State) error {
		all, err := c.d.Connections()
		if err == nil && (len(all) != 1 || all[0].State != want) {
			err = fmt.Errorf("connections %+v, want one in state %v", all, want)
		}
		return err
	}
	forged := packet{src: netip.MustParseAddrPort(conn.client.LocalAddr().String()), dst: frontend, proto: protoTCP,
		seq: 12345}
	for _, flags := range []uint8{flagRST, flagRST | flagACK, flagFIN | flagACK} {
		forged.flags = flags
		succeed(t, sendRawFrom(c.client, forged))
		if flags&flagRST != 0 {
			testkit.Eventually(t, 20*time.Second, func() error { return state(flows.StateClosed) })
		}
		testkit.Eventually(t, 20*time.Second, func() error {
			return errors.Join(conn.talks(), state(flows.StateEstablished))
		})
	}
}

// TestOpenConnectionsToAnotherNode keeps connections while backends change and rows are lost: TCP on the other node,
// and UDP until its backend goes.
func TestOpenConnectionsToAnotherNode(t *testing.T) {
	n := newNodes(t)
	n.each(t, tcpAndUDP, func(t *testing.T, o outsideCase) {
		remote, local := o.echo(t, n.farPod, o.remote), o.echo(t, n.pods[0], o.pod)
		s := o.service(remote)
		o.put(t, s)
		conn := must(testkit.Dial(n.client, o.protocol.String(), s.Frontend.String()))(t)
		defer func() { _ = conn.Close() }()
		questions := 0
		wants := func(want netip.AddrPort, when string) {
			t.Helper()
			questions++ // each another one: its answer is not that to an earlier one
			before := counts(t, n.other)
			noError(t, ask(conn, fmt.Appendf(nil, "still there, %d?", questions)), when)
			if o.dsr != service.NoDSR {
				equal(t, delta(t, n.other, before)["reverse"] > 0, want == remote, "the other node answers %s", when)
				return
			}
			all := must(n.d.Connections())(t)
			client := conn.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort()
			failIf(t, !slices.ContainsFunc(all, func(c flows.Connection) bool {
				return c.Client == client && c.Backend == want
			}), "%s: %v, want one of %s to %s", when, all, client, want)
		}
		wants(remote, "at first")
		if o.dsr == service.NoDSR {
			must(n.d.objects.EndConnections(func(objects.Slot) bool { return true }))(t)
			wants(remote, "after the rows were lost")
		}
		s.Backends = service.Backends(local, remote)
		o.put(t, s)
		wants(remote, "after a backend was added")
		s.Backends = service.Backends(local)
		o.put(t, s)
		last := map[service.Protocol]netip.AddrPort{service.TCP: remote, service.UDP: local}[o.protocol]
		wants(last, "after it was removed")
		peer, _, _ := o.call(t, n.client, s.Frontend, []byte("new"))
		equal(t, peer.Addr(), o.outer, "the new backend saw")
	})
	wantNoDrops(t, n.d)
}

// TestErrorsOnTheWay expects that clients get the errors of a closed port of the backend, an expired TTL, and a
// network of smaller packets.
func TestErrorsOnTheWay(t *testing.T) {
	c := newCluster(t)
	c.each(t, []service.Protocol{service.UDP}, func(t *testing.T, o outsideCase) {
		s := o.service(netip.AddrPortFrom(o.farNode, 9))
		o.put(t, s)
		failsWith(t, refusedUDP(c.client, s.Frontend, 100, 0), unix.ECONNREFUSED, "closed port")
		before := counts(t, c.d)
		failsWith(t, refusedUDP(c.client, s.Frontend, 3, 1), unix.EHOSTUNREACH, "TTL 1")
		equal(t, delta(t, c.d, before)["drop_ttl"], 1, "drop_ttl")
	})
	// The backend announces segments that are too large for its own network.
	c.run(t, `
		-n HOST link set wire mtu 1400
		-n `+c.far.Name()+` link set wire mtu 1400
		-n `+c.far.Name()+` route replace `+near4+` dev wire advmss 1460
		-n `+c.far.Name()+` route replace `+near6+` dev wire advmss 1440`)
	c.each(t, tcpAndUDP, func(t *testing.T, o outsideCase) {
		s := o.service(o.echo(t, c.far, o.farNode))
		o.put(t, s)
		before := counts(t, c.d)
		if o.protocol == service.TCP {
			o.call(t, c.client, s.Frontend, bytes.Repeat([]byte("large"), 60_000))
		} else {
			conn := must(testkit.Dial(c.client, "udp", s.Frontend.String()))(t)
			defer func() { _ = conn.Close() }()
			noError(t, ask(conn, make([]byte, 1440)))
		}
		diff := delta(t, c.d, before)
		failIf(t, diff["drop_too_big"] == 0, "no packet was too big: counted %v", diff)
	})
}
