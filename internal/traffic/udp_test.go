// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

// checkDatagrams checks that what a UDP stream counted fits together.
func checkDatagrams(t *testing.T, m Measurement) {
	t.Helper()
	if m.Received == 0 || m.Received > m.Sent || m.Count != m.Received*DefaultDatagram {
		t.Errorf("%d datagrams sent, %d received with %d bytes", m.Sent, m.Received, m.Count)
	}
	if lost := 1 - float64(m.Received)/float64(m.Sent); math.Abs(m.Lost()-lost) > 1e-12 || m.OutOfOrder != 0 {
		t.Errorf("lost %g, want %g; %d out of order on loopback", m.Lost(), lost, m.OutOfOrder)
	}
	if m.Offered < 0.999*m.Rate {
		t.Errorf("offered %g Gbit/s, received %g", m.Offered, m.Rate)
	}
}

// TestUDPLimit sends a known number of datagrams, in each way that there is.
func TestUDPLimit(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		p := newPair(t, host)
		for name, change := range map[string]func(*Spec){
			"open":                func(*Spec) {},
			"one":                 func(s *Spec) { s.Limit = 1 },
			"settled":             func(s *Spec) { s.Settle = 50 },
			"window":              func(s *Spec) { s.Window, s.Settle = 32, 50 },
			"window of one":       func(s *Spec) { s.Window = 1 },
			"a window over all":   func(s *Spec) { s.Window = 5000 },
			"smallest":            func(s *Spec) { s.Size = MinDatagram },
			"with fragments":      func(s *Spec) { s.Size, s.Limit = 60000, 50 },
			"paced":               func(s *Spec) { s.Rate, s.Limit = 1e9, 500 },
			"unconnected":         func(s *Spec) { s.Unconnected = true },
			"unconnected, window": func(s *Spec) { s.Unconnected, s.Window = true, 32 },
		} {
			t.Run(host+"/"+name, func(t *testing.T) {
				spec := p.spec(UDPStream)
				spec.Limit = 1000
				change(&spec)
				m, err := p.client.Run(t.Context(), spec)
				if err != nil {
					t.Fatal(err)
				}
				if m.Sent != spec.Limit || m.Received != spec.Limit || m.Count != spec.Limit*uint64(spec.size()) || m.Lost() != 0 {
					t.Errorf("of %d datagrams of %d bytes: sent %d, received %d with %d bytes",
						spec.Limit, spec.size(), m.Sent, m.Received, m.Count)
				}
				if m.ClientPeer != spec.Target || m.ServerLocal != spec.Target || m.ServerPeer != m.ClientLocal || !m.ClientLocal.IsValid() {
					t.Errorf("addresses do not fit: %v %v %v %v", m.ClientLocal, m.ClientPeer, m.ServerLocal, m.ServerPeer)
				}
				if m.Seconds <= 0 || m.Rate <= 0 {
					t.Errorf("%g Gbit/s in %g s", m.Rate, m.Seconds)
				}
			})
		}
	}
}

// TestUDPRate offers a rate and expects just that to arrive.
func TestUDPRate(t *testing.T) {
	p := newPair(t, "127.0.0.1")
	spec := p.spec(UDPStream)
	spec.Rate = 100e6
	m, err := p.client.Run(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(m.Offered/0.1-1) > 0.1 || math.Abs(m.Rate/0.1-1) > 0.1 || m.Lost() > 0.01 {
		t.Errorf("offered %g, received %g Gbit/s, %g lost; want 0.1 and none", m.Offered, m.Rate, m.Lost())
	}
}

// TestUDPLoss sends through a middleman that loses every tenth datagram of the
// load and swaps two others.
func TestUDPLoss(t *testing.T) {
	p := newPair(t, "127.0.0.1")
	var front *net.UDPConn
	if err := p.ns.Do(func() (err error) {
		front, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = front.Close() }()
	go middleman(front, p.server.Address())
	spec := p.spec(UDPStream)
	spec.Limit, spec.Size = 100, 100
	spec.Target = netip.MustParseAddrPort(front.LocalAddr().String())
	m, err := p.client.Run(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if m.Sent != 100 || m.Received != 90 || math.Abs(m.Lost()-0.1) > 1e-12 || m.OutOfOrder != 1 || m.Overflowed != 0 {
		t.Errorf("sent %d, received %d, %d out of order, %d overflowed; want 100, 90, 1, 0", m.Sent, m.Received, m.OutOfOrder, m.Overflowed)
	}
	if m.ServerPeer == m.ClientLocal {
		t.Error("the server saw the client itself")
	}
}

// middleman passes datagrams on between a client and a server. Of the load it
// loses each tenth, and holds the sixth back until after the seventh.
func middleman(front *net.UDPConn, server netip.AddrPort) {
	var client netip.AddrPort
	var held []byte
	buf := make([]byte, maxDatagram)
	for {
		n, from, err := front.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		if from == server {
			_, _ = front.WriteToUDPAddrPort(buf[:n], client)
			continue
		}
		client = from
		d, _ := parseDatagram(buf[:n])
		load := d.kind == datagramMeasured
		switch {
		case load && d.number%10 == 9:
		case load && d.number == 5:
			held = append(held, buf[:n]...)
		default:
			_, _ = front.WriteToUDPAddrPort(buf[:n], server)
			if load && d.number == 6 {
				_, _ = front.WriteToUDPAddrPort(held, server)
			}
		}
	}
}

// TestUDPOverflow sends more than the server's buffer takes while the server is
// stopped: what it drops, it must know of.
func TestUDPOverflow(t *testing.T) {
	p := newPair(t, "127.0.0.1")
	spec := p.spec(UDPStream)
	spec.Limit, spec.Settle, spec.Size = 60_000, 1, 1400
	spec.Rate = 1400 * 8 * 40_000 // 1.5 s
	done := make(chan error, 1)
	var m Measurement
	go func() {
		var err error
		m, err = p.client.Run(t.Context(), spec)
		done <- err
	}()
	awaitTraffic(t, p)
	if err := unix.Kill(p.server.PID(), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 10*time.Second, func() error {
		device, err := p.ns.Device("lo")
		if err != nil {
			return err
		}
		if device.RxPackets < 40_000 {
			return fmt.Errorf("%d packets", device.RxPackets)
		}
		return nil
	})
	if err := unix.Kill(p.server.PID(), unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if m.Overflowed == 0 || m.Sent != 60_000 || m.Sent-m.Received > m.Overflowed {
		t.Errorf("sent %d, received %d, overflowed %d", m.Sent, m.Received, m.Overflowed)
	}
}

// TestUDPStranger sends what is no greeting, and greetings that make no sense;
// the server stays usable.
func TestUDPStranger(t *testing.T) {
	p := newPair(t, "127.0.0.1")
	good := datagram{kind: datagramHello, flow: 9}.with(encodeHeader(udpStream{}, &session{spec: Spec{Stall: 1}}))
	odd := append([]byte(nil), good...)
	odd[MinDatagram] = 'X'
	if err := p.ns.Do(func() error {
		conn, err := net.Dial("udp4", p.server.Address().String())
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		for _, b := range [][]byte{{1}, odd, good[:30], datagram{kind: datagramMeasured, flow: 9}.with(nil),
			datagram{kind: datagramHello, flow: 9}.with(encodeHeader(tcpRR{}, &session{}))} {
			if _, err := conn.Write(b); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if served, err := p.server.Last(t.Context()); err == nil {
		t.Errorf("a stranger left figures: %+v", served)
	}
	spec := p.spec(UDPStream)
	spec.Limit = 5
	if _, err := p.client.Run(t.Context(), spec); err != nil {
		t.Error(err)
	}
}

// TestUDPRefused sends to a port that nobody listens on, by both kinds of socket.
func TestUDPRefused(t *testing.T) {
	p := newPair(t, "127.0.0.1")
	for _, unconnected := range []bool{false, true} {
		spec := p.spec(UDPStream)
		spec.Target, spec.Unconnected = netip.MustParseAddrPort("127.0.0.1:1"), unconnected
		if _, err := p.client.Run(t.Context(), spec); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("unconnected %t: error is %v", unconnected, err)
		}
	}
}

// TestUDPFlows runs several clients against one server at once.
func TestUDPFlows(t *testing.T) {
	p := newPair(t, "::1")
	spec := p.spec(UDPStream)
	spec.Limit, spec.Window = 2000, 16
	done := make(chan error, 3)
	for range cap(done) {
		go func() {
			m, err := p.client.Run(t.Context(), spec)
			if err == nil && m.Received != spec.Limit {
				err = fmt.Errorf("%d of %d received", m.Received, spec.Limit)
			}
			done <- err
		}()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestDatagram(t *testing.T) {
	want := datagram{kind: datagramMeasured, answer: true, flow: 1 << 60, number: 1<<40 + 3}
	b := want.with([]byte("body"))
	if got, ok := parseDatagram(b); !ok || got != want || string(b[MinDatagram:]) != "body" {
		t.Errorf("got %+v, %t", got, ok)
	}
	for _, bad := range [][]byte{nil, b[:MinDatagram-1], append([]byte("MSU0"), b[4:]...)} {
		if _, ok := parseDatagram(bad); ok {
			t.Errorf("%q is taken", bad)
		}
	}
}
