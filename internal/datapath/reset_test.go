// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/service"
)

const tcp, reset = service.TCP, service.Reset

// connection is both ends of an open TCP connection.
type connection struct{ client, server net.Conn }

// openTo connects from the client's place to the frontend, behind which the listener is.
func openTo(t *testing.T, client place, frontend netip.AddrPort, l net.Listener) (c connection) {
	t.Helper()
	succeed(t, client.do(t, func() (err error) {
		c.client, err = net.DialTimeout("tcp", frontend.String(), 5*time.Second)
		return err
	}))
	c.server = must(l.Accept())(t)
	t.Cleanup(func() { _ = errors.Join(c.client.Close(), c.server.Close()) })
	for _, end := range []net.Conn{c.client, c.server} {
		succeed(t, end.SetDeadline(time.Now().Add(20*time.Second)))
	}
	succeed(t, c.talks())
	return c
}

// talks exchanges a byte in each direction.
func (c connection) talks() error {
	for _, ends := range [][2]net.Conn{{c.client, c.server}, {c.server, c.client}} {
		if _, err := ends[0].Write([]byte("x")); err != nil {
			return err
		}
		if _, err := ends[1].Read(make([]byte, 1)); err != nil {
			return err
		}
	}
	return nil
}

// listenTCP listens in a namespace.
func listenTCP(t *testing.T, ns *netns.Namespace, ip string) (l net.Listener) {
	t.Helper()
	succeed(t, ns.Do(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(ip, "0"))
		return err
	}))
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// testResets removes the backend of idle connections, of which one end or the other speaks first then. Both learn that
// theirs has ended.
func testResets(t *testing.T, n network, d *Datapath) {
	for _, f := range families() {
		testReset(t, d, n, f)
	}
}

func testReset(t *testing.T, d *Datapath, n network, f family) {
	t.Helper()
	l := listenTCP(t, n.pods[0], f.pod)
	s := service.Service{
		Frontend: netip.AddrPortFrom(netip.MustParseAddr(f.service), 5201), Protocol: service.TCP, OnRemove: service.Reset,
		Backends: service.Backends(netip.MustParseAddrPort(l.Addr().String())),
	}
	kept := s
	kept.Frontend, kept.OnRemove = netip.AddrPortFrom(s.Frontend.Addr(), 5202), service.Keep
	putService(t, d, kept)
	putService(t, d, s)
	client := place{ns: n.pods[1]}
	quiet := openTo(t, client, s.Frontend, l)
	loud := openTo(t, client, s.Frontend, l)
	keeps := openTo(t, client, kept.Frontend, l)
	s.Backends, kept.Backends = nil, nil
	putService(t, d, s)
	putService(t, d, kept)
	for _, ends := range [][2]net.Conn{{quiet.client, quiet.server}, {loud.server, loud.client}} {
		for _, end := range ends {
			noError(t, errOf(end.Write(make([]byte, 20000))), "%s to %s", end.LocalAddr(), end.RemoteAddr())
			failsWith(t, errOf(end.Read(make([]byte, 1))), unix.ECONNRESET, "%s to %s", end.LocalAddr(), end.RemoteAddr())
		}
	}
	noError(t, keeps.talks(), "a connection of a service that keeps its own")
}

// testResetSockets removes the backend of connections that socket translation made, by each call that can.
func testResetSockets(t *testing.T, s *stage) {
	for _, d := range dialects()[:2] {
		l := listenTCP(t, s.pods[0], d.pod)
		want := service.Service{
			Frontend: netip.MustParseAddrPort(d.service), Protocol: service.Any, OnRemove: service.Reset,
			Backends: service.Backends(netip.MustParseAddrPort(l.Addr().String())),
		}
		fewer, keeps := want, want
		fewer.Backends, keeps.Backends = nil, nil
		keeps.OnRemove = service.Keep
		for _, c := range []struct {
			name string
			do   func()
			ends bool
		}{
			{"Put", func() { putService(t, s.Datapath, fewer) }, true},
			{"Delete", func() {
				succeed(t, s.Services().Delete(t.Context(), service.CLI, want.Key()))
			}, true},
			{"Recover after death", func() {
				die(t, s.Datapath, fewer)
				succeed(t, s.Recover(t.Context()))
			}, true},
			{"Put of one that keeps", func() { putService(t, s.Datapath, keeps) }, false},
		} {
			t.Run(d.name+"/"+c.name, func(t *testing.T) {
				putService(t, s.Datapath, want)
				conn := openTo(t, s.client(), want.Frontend, l)
				direct := openTo(t, s.client(), want.Backends[0].Addr, l)
				before := counts(t, s.Datapath)
				c.do()
				noError(t, direct.talks(), "a connection to the backend itself")
				if !c.ends {
					noError(t, conn.talks())
					return
				}
				failsWith(t, errOf(conn.client.Read(make([]byte, 1))), unix.ECONNABORTED, "the client")
				failsWith(t, errOf(conn.server.Read(make([]byte, 1))), unix.ECONNRESET, "the backend")
				equal(t, delta(t, s.Datapath, before)["sock_destroy"], 1, "sock_destroy")
			})
		}
	}
}
