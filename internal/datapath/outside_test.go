// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestNodePort calls a port of all addresses of the node: from outside, from a pod, and of a process of the node.
func TestNodePort(t *testing.T) {
	c := newCluster(t)
	eachOutside(t, func(t *testing.T, o outsideCase) {
		local := testkit.Echo(t, c.pods[0], o.protocol.String(), net.JoinHostPort(o.pod, "0"))
		remote := testkit.Echo(t, c.far, o.protocol.String(), net.JoinHostPort(o.far, "0"))
		unspecified := netip.IPv4Unspecified()
		if netip.MustParseAddr(o.gate).Is6() {
			unspecified = netip.IPv6Unspecified()
		}
		s := service.Service{Frontend: netip.AddrPortFrom(unspecified, 30080), Protocol: o.protocol, NodePort: true}
		for _, call := range []struct {
			from    *netns.Namespace
			backend netip.AddrPort
			at      string // the node's address
			seen    string // the client's, by the backend
		}{
			{c.client, local, o.gate, o.client},
			{c.client, local, o.near, o.client},
			{c.client, remote, o.gate, o.near},
			{c.client, remote, o.near, o.near},
			{c.pods[1], local, o.gate, ""},
			{c.pods[1], local, o.near, ""},
		} {
			s.Backends = service.Backends(call.backend)
			c.put(t, s)
			frontend := net.JoinHostPort(call.at, "30080")
			peer, err := testkit.RoundTrip(t, call.from, o.protocol.String(), frontend, []byte("node port"))
			if err != nil || call.seen != "" && peer.Addr().String() != call.seen {
				t.Errorf("%s, backend %s: the backend saw %s, %v; want %s", frontend, call.backend, peer, err, call.seen)
			}
		}
		c.callOwn(t, o)
	})
	wantNoDrops(t, c.d)
}

// callOwn calls other ports of the node, which are its own.
func (c cluster) callOwn(t *testing.T, o outsideCase) {
	t.Helper()
	own := testkit.Echo(t, c.host, o.protocol.String(), net.JoinHostPort(o.gate, "0"))
	before := settled(t, c.d)
	noError(t, errOf(testkit.RoundTrip(t, c.client, o.protocol.String(), own.String(), []byte("own"))),
		"a server of the node's own")
	if diff := delta(t, c.d, before); diff["forward"]+diff["reverse"]+diff["new_connection"] != 0 {
		t.Errorf("a server of the node's own: counted %v", diff)
	}
}

// TestNodePortOfOwnSocket has a process of the host call a server outside and a pod from a port that becomes a node
// port, or a host port at one of the node's addresses, and again once it is one. The answers are for the process, and
// calls of others for the service.
func TestNodePortOfOwnSocket(t *testing.T) {
	c := newCluster(t)
	eachOutside(t, func(t *testing.T, o outsideCase) {
		unspecified := netip.IPv4Unspecified()
		if netip.MustParseAddr(o.gate).Is6() {
			unspecified = netip.IPv6Unspecified()
		}
		backend := testkit.Echo(t, c.pods[0], o.protocol.String(), net.JoinHostPort(o.pod, "0"))
		servers := []netip.AddrPort{
			testkit.Echo(t, c.client, o.protocol.String(), net.JoinHostPort(o.client, "0")),
			testkit.Echo(t, c.pods[1], o.protocol.String(),
				net.JoinHostPort(map[bool]string{true: podB4, false: podB6}[unspecified.Is4()], "0")),
		}
		for i, addr := range []netip.Addr{unspecified, unspecified, netip.MustParseAddr(o.gate),
			netip.MustParseAddr(o.gate)} {
			server := servers[i%2]
			s := service.Service{
				Frontend: netip.AddrPortFrom(addr, 30085), Protocol: o.protocol, NodePort: addr == unspecified,
				Backends: service.Backends(backend),
			}
			for _, when := range []string{"before there is a node port", "after that"} {
				conn := c.callFrom(t, o, s.Frontend.Port(), server)
				c.put(t, s)
				noError(t, exchanged(conn), "%v: to %s, connected %s", s.Frontend, server, when)
				noError(t, errOf(testkit.RoundTrip(t, c.client, o.protocol.String(), net.JoinHostPort(o.gate, "30085"),
					[]byte("call"))), "a call beside")
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

// callFrom connects from a port of the host, and reads what a server of TCP says first.
func (c cluster) callFrom(t *testing.T, o outsideCase, port uint16, server netip.AddrPort) (conn net.Conn) {
	t.Helper()
	var local net.Addr = &net.UDPAddr{IP: net.ParseIP(o.gate), Port: int(port)}
	if o.protocol == service.TCP {
		local = &net.TCPAddr{IP: net.ParseIP(o.gate), Port: int(port)}
	}
	succeed(t, c.host.Do(func() (err error) {
		conn, err = (&net.Dialer{LocalAddr: local, Timeout: 20 * time.Second}).Dial(o.protocol.String(), server.String())
		return err
	}))
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	for b := make([]byte, 1); o.protocol == service.TCP && b[0] != '\n'; {
		must(conn.Read(b))(t)
	}
	return conn
}

// callNodePort calls a port of the node's address, which is a pod's port, from outside and from both pods.
func (o outside) callNodePort(t *testing.T, node, pod, unspecified string) {
	t.Helper()
	backend := testkit.Echo(t, o.network.pods[0], o.protocol.String(), net.JoinHostPort(pod, "30081"))
	s := service.Service{
		Frontend: netip.AddrPortFrom(netip.MustParseAddr(unspecified), 30081), Protocol: o.protocol, NodePort: true,
		Backends: service.Backends(backend),
	}
	putService(t, o.d, s)
	for name, from := range map[string]*netns.Namespace{"outside": o.far, "a pod": o.network.pods[1],
		"the backend": o.network.pods[0]} {
		before := counts(t, o.d)
		_, err := testkit.RoundTrip(t, from, o.protocol.String(), net.JoinHostPort(node, "30081"), []byte("node port"))
		diff := delta(t, o.d, before)
		noError(t, err, "from %s", name)
		if diff["new_connection"] != 1 || diff["forward"] == 0 || diff["reverse"] == 0 {
			t.Errorf("from %s: counted %v", name, diff)
		}
	}
}

// TestForgedResetFromOutside has another machine send resets and FINs in the name of both ends of a connection, which
// ignore them: it stays in the table as an open one.
func TestForgedResetFromOutside(t *testing.T) {
	c := newCluster(t)
	l := listenTCP(t, c.pods[0], podA4)
	c.put(t, service.Service{
		Frontend: netip.MustParseAddrPort("0.0.0.0:30080"), Protocol: service.TCP, NodePort: true,
		Backends: service.Backends(netip.MustParseAddrPort(l.Addr().String())),
	})
	frontend := netip.MustParseAddrPort(gate4 + ":30080")
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

// service returns an external service with one backend.
func (o outsideCase) service(backend netip.AddrPort) service.Service {
	frontend := netip.MustParseAddrPort(net.JoinHostPort(o.external, servicePort))
	return service.Service{Frontend: frontend, Protocol: o.protocol, External: true, Backends: service.Backends(backend)}
}

// ask sends a line over an open connection until it comes back, which a datagram need not at first.
func ask(conn net.Conn, line []byte) error {
	answer := make([]byte, 2*len(line))
	for range 5 {
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

// TestOpenConnectionsToAnotherNode keeps connections while backends change and rows are lost.
func TestOpenConnectionsToAnotherNode(t *testing.T) {
	c := newCluster(t)
	eachOutside(t, func(t *testing.T, o outsideCase) {
		remote := testkit.Echo(t, c.far, o.protocol.String(), net.JoinHostPort(o.far, "0"))
		local := testkit.Echo(t, c.pods[0], o.protocol.String(), net.JoinHostPort(o.pod, "0"))
		s := o.service(remote)
		c.put(t, s)
		conn := must(testkit.Dial(c.client, o.protocol.String(), s.Frontend.String()))(t)
		defer func() { _ = conn.Close() }()
		questions := 0
		backend := func() netip.AddrPort {
			t.Helper()
			questions++ // each another one: its answer is not that to an earlier one
			noError(t, ask(conn, fmt.Appendf(nil, "still there, %d?", questions)))
			client := conn.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort()
			all := must(c.d.Connections())(t)
			for _, e := range all {
				if e.Client == client {
					return e.Backend
				}
			}
			t.Errorf("no connection of %s among %v", client, all)
			return netip.AddrPort{}
		}
		equal(t, backend(), remote, "the backend is")
		must(c.d.objects.EndConnections(func(objects.Slot) bool { return true }))(t)
		equal(t, backend(), remote, "the backend is")
		s.Backends = service.Backends(local)
		c.put(t, s)
		want := map[service.Protocol]netip.AddrPort{service.TCP: remote, service.UDP: local}[o.protocol]
		equal(t, backend(), want, "the backend is")
		peer, err := testkit.RoundTrip(t, c.client, o.protocol.String(), s.Frontend.String(), []byte("new"))
		failIf(t, err != nil || peer.Addr().String() != o.client, "the new backend saw %s, %v", peer, err)
	})
	wantNoDrops(t, c.d)
}

// TestErrorsOnTheWay has clients told of a closed port of the backend, a TTL that is over, and a network of smaller
// packets.
func TestErrorsOnTheWay(t *testing.T) {
	c := newCluster(t)
	eachOutside(t, func(t *testing.T, o outsideCase) {
		if o.protocol != service.UDP {
			return
		}
		s := o.service(netip.MustParseAddrPort(net.JoinHostPort(o.far, "9")))
		c.put(t, s)
		failsWith(t, refusedUDP(c.client, s.Frontend, 100), unix.ECONNREFUSED, "closed port")
		before := counts(t, c.d)
		failsWith(t, tooOldUDP(c.client, s.Frontend), unix.EHOSTUNREACH, "TTL 1")
		equal(t, delta(t, c.d, before)["drop_ttl"], 1, "drop_ttl")
	})
	// The backend asks for segments that its own network does not take.
	c.run(t, `
		-n HOST link set wire mtu 1400
		-n `+c.far.Name()+` link set wire mtu 1400
		-n `+c.far.Name()+` route replace `+near4+` dev wire advmss 1460
		-n `+c.far.Name()+` route replace `+near6+` dev wire advmss 1440`)
	eachOutside(t, func(t *testing.T, o outsideCase) {
		s := o.service(testkit.Echo(t, c.far, o.protocol.String(), net.JoinHostPort(o.far, "0")))
		c.put(t, s)
		before := counts(t, c.d)
		noError(t, c.large(t, o.protocol, s.Frontend))
		if diff := delta(t, c.d, before); diff["drop_too_big"] == 0 {
			t.Errorf("no packet was too big: counted %v", diff)
		}
	})
}

// large sends packets of 1500 bytes.
func (c cluster) large(t *testing.T, protocol service.Protocol, to netip.AddrPort) error {
	t.Helper()
	if protocol == service.TCP {
		_, err := testkit.RoundTrip(t, c.client, "tcp", to.String(), bytes.Repeat([]byte("large"), 60_000))
		return err
	}
	conn, err := testkit.Dial(c.client, "udp", to.String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return ask(conn, make([]byte, 1440))
}

// tooOldUDP returns the error that a datagram with TTL 1 brings back.
func tooOldUDP(client *netns.Namespace, to netip.AddrPort) error {
	return client.Do(func() error {
		dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
			return errors.Join(raw.Control(func(fd uintptr) {
				if to.Addr().Is4() {
					err = errors.Join(unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, 1),
						unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVERR, 1))
				} else {
					err = errors.Join(unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 1),
						unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1))
				}
			}), err)
		}}
		conn, err := dialer.Dial("udp", to.String())
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		if _, err := conn.Write([]byte("old")); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return err
		}
		_, err = conn.Read(make([]byte, 1))
		return fmt.Errorf("read: %w", err)
	})
}
