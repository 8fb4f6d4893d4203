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

	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

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
			if err := ask(conn, fmt.Appendf(nil, "still there, %d?", questions)); err != nil {
				t.Error(err)
			}
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
		if got := backend(); got != remote {
			t.Errorf("the backend is %s, want %s", got, remote)
		}
		must(c.d.objects.EndConnections(func(objects.Slot) bool { return true }))(t)
		if got := backend(); got != remote {
			t.Errorf("the backend is %s after its rows were lost, want %s", got, remote)
		}
		s.Backends = service.Backends(local)
		c.put(t, s)
		want := map[service.Protocol]netip.AddrPort{service.TCP: remote, service.UDP: local}[o.protocol]
		if got := backend(); got != want {
			t.Errorf("the backend is %s after another replaced it, want %s", got, want)
		}
		peer, err := testkit.RoundTrip(t, c.client, o.protocol.String(), s.Frontend.String(), []byte("new"))
		if err != nil || peer.Addr().String() != o.client {
			t.Errorf("the new backend saw %s, %v", peer, err)
		}
	})
	wantNoDrops(t, c.d)
}

// TestBackendCallsItself has the backend on another node call its own service at this one.
func TestBackendCallsItself(t *testing.T) {
	c := newCluster(t)
	eachOutside(t, func(t *testing.T, o outsideCase) {
		s := o.service(testkit.Echo(t, c.far, o.protocol.String(), net.JoinHostPort(o.far, "0")))
		s.Frontend = netip.AddrPortFrom(netip.MustParseAddr(o.near), s.Frontend.Port())
		c.put(t, s)
		peer, err := testkit.RoundTrip(t, c.far, o.protocol.String(), s.Frontend.String(), []byte("itself"))
		if err != nil || peer.Addr().String() != o.near {
			t.Errorf("the backend saw %s, %v; want %s", peer, err, o.near)
		}
	})
	wantNoDrops(t, c.d)
}

// TestErrorsOnTheWay has clients told of a closed port of the backend, a TTL that is over, and a network of smaller packets.
func TestErrorsOnTheWay(t *testing.T) {
	c := newCluster(t)
	eachOutside(t, func(t *testing.T, o outsideCase) {
		if o.protocol != service.UDP {
			return
		}
		s := o.service(netip.MustParseAddrPort(net.JoinHostPort(o.far, "9")))
		c.put(t, s)
		if err := refusedUDP(c.client, s.Frontend, 100); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("closed port: %v, want it refused", err)
		}
		before := counts(t, c.d)
		if err := tooOldUDP(c.client, s.Frontend); !errors.Is(err, unix.EHOSTUNREACH) {
			t.Errorf("TTL 1: %v, want no route to host", err)
		}
		if diff := delta(t, c.d, before); diff["drop_ttl"] != 1 {
			t.Errorf("TTL 1: counted %v", diff)
		}
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
		if err := c.large(t, o.protocol, s.Frontend); err != nil {
			t.Error(err)
		}
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
