// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"mustang/internal/datapath/conntrack"
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
	if _, err := testkit.RoundTrip(t, c.client, o.protocol.String(), own.String(), []byte("own")); err != nil {
		t.Errorf("a server of the node's own: %v", err)
	}
	if diff := delta(t, c.d, before); diff["forward"]+diff["reverse"]+diff["new_connection"] != 0 {
		t.Errorf("a server of the node's own: counted %v", diff)
	}
}

// TestNodePortOfOwnSocket has a process of the host call a server outside and a pod from a port that becomes a node port, and again once it
// is one. The answers are for the process, and calls of others for the service.
func TestNodePortOfOwnSocket(t *testing.T) {
	c := newCluster(t)
	eachOutside(t, func(t *testing.T, o outsideCase) {
		unspecified := netip.IPv4Unspecified()
		if netip.MustParseAddr(o.gate).Is6() {
			unspecified = netip.IPv6Unspecified()
		}
		backend := testkit.Echo(t, c.pods[0], o.protocol.String(), net.JoinHostPort(o.pod, "0"))
		s := service.Service{
			Frontend: netip.AddrPortFrom(unspecified, 30085), Protocol: o.protocol, NodePort: true, Backends: service.Backends(backend),
		}
		for _, server := range []netip.AddrPort{
			testkit.Echo(t, c.client, o.protocol.String(), net.JoinHostPort(o.client, "0")),
			testkit.Echo(t, c.pods[1], o.protocol.String(), net.JoinHostPort(map[bool]string{true: podB4, false: podB6}[unspecified.Is4()], "0")),
		} {
			for _, when := range []string{"before there is a node port", "after that"} {
				conn := c.callFrom(t, o, s.Frontend.Port(), server)
				c.put(t, s)
				if err := exchanged(conn); err != nil {
					t.Errorf("to %s, connected %s: %v", server, when, err)
				}
				if _, err := testkit.RoundTrip(t, c.client, o.protocol.String(), net.JoinHostPort(o.gate, "30085"), []byte("call")); err != nil {
					t.Errorf("a call beside: %v", err)
				}
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

// TestNodePortOfEachMode calls a port of all addresses of the node, whose backend is a pod: from outside, from another pod, and
// from the backend itself.
func TestNodePortOfEachMode(t *testing.T) {
	for _, c := range uplinkCases() {
		t.Run(c.name, func(t *testing.T) {
			n, d := c.make(t), openTest(t)
			far := c.attach(t, n, d)
			for _, f := range [][3]string{{near4, podA4, "0.0.0.0"}, {near6, podA6, "::"}} {
				for _, protocol := range []service.Protocol{service.TCP, service.UDP} {
					t.Run(f[2]+"/"+protocol.String(), func(t *testing.T) {
						o := outside{n, d, far, protocol, c}
						o.callNodePort(t, f[0], f[1], f[2])
					})
				}
			}
			wantNoDrops(t, d)
		})
	}
}

// callNodePort calls a port of the node's address, which is a pod's port, from outside and from both pods.
func (o outside) callNodePort(t *testing.T, node, pod, unspecified string) {
	t.Helper()
	backend := testkit.Echo(t, o.network.pods[0], o.protocol.String(), net.JoinHostPort(pod, "30081"))
	s := service.Service{
		Frontend: netip.AddrPortFrom(netip.MustParseAddr(unspecified), 30081), Protocol: o.protocol, NodePort: true,
		Backends: service.Backends(backend),
	}
	must2(o.d.Services().Put(t.Context(), service.CLI, s))(t)
	for name, from := range map[string]*netns.Namespace{"outside": o.far, "a pod": o.network.pods[1], "the backend": o.network.pods[0]} {
		before := counts(t, o.d)
		_, err := testkit.RoundTrip(t, from, o.protocol.String(), net.JoinHostPort(node, "30081"), []byte("node port"))
		diff := delta(t, o.d, before)
		if err != nil {
			t.Errorf("from %s: %v (counted %v)", name, err, diff)
		}
		if diff["new_connection"] != 1 || diff["forward"] == 0 || diff["reverse"] == 0 {
			t.Errorf("from %s: counted %v", name, diff)
		}
	}
}

// TestForgedResetFromOutside has another machine send resets and FINs in the name of both ends of a connection, which ignore them: it
// stays in the table as an open one.
func TestForgedResetFromOutside(t *testing.T) {
	c := newCluster(t)
	l := listenTCP(t, c.pods[0], podA4)
	c.put(t, service.Service{
		Frontend: netip.MustParseAddrPort("0.0.0.0:30080"), Protocol: service.TCP, NodePort: true,
		Backends: service.Backends(netip.MustParseAddrPort(l.Addr().String())),
	})
	frontend := netip.MustParseAddrPort(gate4 + ":30080")
	conn := openTo(t, place{ns: c.client}, frontend, l)
	state := func(want conntrack.State) error {
		all, err := c.d.Connections()
		if err == nil && (len(all) != 1 || all[0].State != want) {
			err = fmt.Errorf("connections %+v, want one in state %v", all, want)
		}
		return err
	}
	forged := packet{src: netip.MustParseAddrPort(conn.client.LocalAddr().String()), dst: frontend, proto: protoTCP, seq: 12345}
	for _, flags := range []uint8{flagRST, flagRST | flagACK, flagFIN | flagACK} {
		forged.flags = flags
		succeed(t, sendRawFrom(c.client, forged))
		if flags&flagRST != 0 {
			testkit.Eventually(t, 20*time.Second, func() error { return state(conntrack.StateClosed) })
		}
		testkit.Eventually(t, 20*time.Second, func() error {
			return errors.Join(conn.talks(), state(conntrack.StateEstablished))
		})
	}
}
