// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"mustang/internal/load"
	"mustang/internal/testkit"
)

// lost returns the share of the datagrams sent, or transactions begun, that were lost.
func lost(m load.Measurement) float64 { return float64(m.Sent-m.Received) / float64(max(m.Sent, 1)) }

// checkDatagrams checks that what a UDP stream counted fits together.
func checkDatagrams(t *testing.T, m load.Measurement) {
	t.Helper()
	testkit.Check(t, m.Received != 0 && m.Received <= m.Sent && m.Count == m.Received*load.DefaultDatagram,
		"%d datagrams sent, %d received with %d bytes", m.Sent, m.Received, m.Count)
	// A thread that moves to another CPU may overtake its own datagrams.
	testkit.Check(t, m.OutOfOrder <= m.Received, "%d of %d out of order", m.OutOfOrder, m.Received)
	testkit.Check(t, !(m.Offered < 0.999*m.Rate), "offered %g Gbit/s, received %g", m.Offered, m.Rate)
}

// checkOffered checks that a paced stream was not faster than its rate. A stream of a
// duration sends one datagram more than fits, per flow.
func checkOffered(t *testing.T, m load.Measurement, spec load.Spec) {
	t.Helper()
	most := float64(spec.Rate) / 1e9
	most *= float64(m.Sent) / float64(m.Sent-uint64(spec.FlowCount()))
	testkit.Check(t, !(m.Offered <= 0) && !(m.Offered > 1.0001*most) && !(m.Rate > 1.0001*most),
		"offered %g, received %g Gbit/s; want %g at most", m.Offered, m.Rate, most)
}

// TestUDPLimitIsExact sends a set number of datagrams with each option.
func TestUDPLimitIsExact(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		p := newPair(t, host)
		for name, change := range map[string]func(*load.Spec){
			"open":              func(*load.Spec) {},
			"one":               func(s *load.Spec) { s.Limit = 1 },
			"settled":           func(s *load.Spec) { s.Settle = 50 },
			"window":            func(s *load.Spec) { s.Window, s.Settle = 32, 50 },
			"window of one":     func(s *load.Spec) { s.Window = 1 },
			"a window over all": func(s *load.Spec) { s.Window = 5000 },
			"smallest":          func(s *load.Spec) { s.Size = load.MinDatagram },
			"with fragments":    func(s *load.Spec) { s.Size, s.Limit = 60000, 50 },
		} {
			t.Run(host+"/"+name, func(t *testing.T) {
				spec := p.spec(load.UDPStream)
				spec.Limit = 500 // fits into the queues on the way
				change(&spec)
				m, err := p.client.Run(t.Context(), spec)
				testkit.Succeed(t, err)
				if m.Sent != spec.Limit || m.Received != spec.Limit || m.Count != spec.Limit*uint64(spec.DatagramSize()) ||
					lost(m) != 0 {
					t.Errorf("of %d datagrams of %d bytes: sent %d, received %d with %d bytes",
						spec.Limit, spec.DatagramSize(), m.Sent, m.Received, m.Count)
				}
				if m.ClientPeer != spec.Target || m.ServerLocal != spec.Target || m.ServerPeer != m.ClientLocal ||
					!m.ClientLocal.IsValid() {
					t.Errorf("addresses do not fit: %v %v %v %v", m.ClientLocal, m.ClientPeer, m.ServerLocal, m.ServerPeer)
				}
				testkit.Check(t, !(m.Seconds <= 0) && !(m.Rate <= 0), "%g Gbit/s in %g s", m.Rate, m.Seconds)
			})
		}
	}
}

// TestUDPLoss sends through a relay that drops every tenth datagram of the load and swaps two others.
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
	go relay(front, p.server.Address())
	spec := p.spec(load.UDPStream)
	spec.Limit, spec.Size = 100, 100
	spec.Target = netip.MustParseAddrPort(front.LocalAddr().String())
	m, err := p.client.Run(t.Context(), spec)
	testkit.Succeed(t, err)
	testkit.Check(t, m.Sent == 100 && m.Received == 90 && lost(m) == 0.1 && m.OutOfOrder == 1,
		"sent %d, received %d, %d out of order; want 100, 90, 1", m.Sent, m.Received, m.OutOfOrder)
	testkit.Check(t, m.ServerPeer != m.ClientLocal, "the server saw the client itself")
}

// relay passes datagrams on between a client and a server. Of the load it
// drops each tenth, and holds the sixth back until after the seventh.
func relay(front *net.UDPConn, server netip.AddrPort) {
	var client netip.AddrPort
	var held []byte
	buf := make([]byte, load.MaxDatagram)
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
		load := d.kind == kindMeasured
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

// TestUDPNoGreeting sends other datagrams than greetings, and invalid greetings; the server stays usable.
func TestUDPNoGreeting(t *testing.T) {
	p := newPair(t, "127.0.0.1")
	hello := func(workload string, protocol int) []byte {
		b, err := datagram{kind: datagramHello, flow: 9}.with(header{protocol, load.Spec{Workload: workload, Stall: 1}})
		testkit.Succeed(t, err)
		return b
	}
	if err := p.ns.Do(func() error {
		conn, err := net.Dial("udp4", p.server.Address().String())
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		measured := make([]byte, load.MinDatagram)
		datagram{kind: kindMeasured, flow: 9}.put(measured)
		for _, b := range [][]byte{
			{1}, measured, hello(load.UDPStream, load.Protocol-1), hello(load.UDPStream, load.Protocol)[:30],
			hello(load.TCPRR, load.Protocol), hello("none", load.Protocol),
		} {
			if _, err := conn.Write(b); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	spec := p.spec(load.UDPStream)
	spec.Limit = 5
	_, err := p.client.Run(t.Context(), spec)
	testkit.Check(t, err == nil, "%v", err)
}

// TestUDPFlows starts several runs at once, which take turns.
func TestUDPFlows(t *testing.T) {
	p := newPair(t, "::1")
	spec := p.spec(load.UDPStream)
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
		err := <-done
		testkit.Check(t, err == nil, "%v", err)
	}
}
