// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// flood sends datagrams from the network namespace of the thread, each from its own socket, so that most have another
// source port.
func flood(to []netip.AddrPort, datagrams int) error {
	for i := range datagrams {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		addr := to[i%len(to)]
		// The answer may be the error of a full queue, or of a datagram that the datapath dropped.
		_ = unix.Sendto(fd, []byte("flood"), 0, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()})
		_ = unix.Close(fd)
	}
	return nil
}

// sink opens a UDP port in the pod that is never read.
func (p pod) sink(t *testing.T, port uint16) netip.AddrPort {
	t.Helper()
	addr := netip.AddrPortFrom(p.ip, port)
	testkit.Succeed(t, p.ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		return unix.Bind(fd, &unix.SockaddrInet4{Port: int(port), Addr: p.ip.As4()})
	}))
	return addr
}

// TestGreedyPods has idle connections of one pod while another floods a service with datagrams from many ports, and a
// third opens and closes connections. Together they exceed the table.
func TestGreedyPods(t *testing.T) {
	rows := uint32(testkit.Repeats(8192, 131072))
	h := newHost(t, 4, rows)
	victim, flooder, short := h.pods[1], h.pods[2], h.pods[3]
	flooder.set(t, "net/ipv4/ip_local_port_range", "1024 65535")
	release := make(chan struct{})
	backends := []netip.AddrPort{h.pods[0].serve(t, 8080, release), h.pods[0].serve(t, 8081, release)}
	var tcp, udp []netip.AddrPort
	for i := range 5 {
		tcp = append(tcp, h.put(t, i, service.TCP, backends...))
		udp = append(udp, h.put(t, i, service.UDP, h.pods[0].sink(t, uint16(9000+i))))
	}
	idle, waiting := openIdle(t, victim, tcp), openIdle(t, victim, tcp)
	for _, c := range waiting {
		testkit.Must(unix.Write(int(c), []byte{waitRequest}))(t)
	}
	met := newTally()
	in := func(p pod, do func() error) {
		t.Helper()
		testkit.Succeed(t, p.ns.Do(do))
	}
	in(flooder, func() error { return flood(udp, 2*int(rows)) })
	testkit.Check(t, len(h.dropped(t)) != 0, "%d datagrams of one pod, and none was dropped", 2*rows)
	t.Logf("dropped %v", h.dropped(t))
	in(victim, func() error { met.calls(tcp, 500); return nil })
	met.exchangeAll(idle)

	var running sync.WaitGroup
	for range 2 {
		running.Go(func() {
			err := short.ns.Do(func() error { met.calls(tcp, int(rows)*3/4); return nil })
			testkit.Check(t, err == nil, "%v", err)
		})
	}
	running.Wait()
	met.exchangeAll(idle)
	close(release) // the server speaks first
	for _, c := range waiting {
		if met.goesOn() {
			met.add(time.Now(), 0, c.read(1))
		}
	}
	met.want(t, "connections and exchanges")
}

// openIdle opens connections that stay open until the test ends.
func openIdle(t *testing.T, from pod, services []netip.AddrPort) (idle []client) {
	t.Helper()
	testkit.Succeed(t, from.ns.Do(func() error {
		for i := range 100 {
			c, err := dial(services[i%len(services)])
			if err != nil {
				return err
			}
			t.Cleanup(c.close)
			if err := c.exchange(); err != nil {
				return err
			}
			idle = append(idle, c)
		}
		return nil
	}))
	return idle
}

// calls makes short connections to services in turn.
func (c *tally) calls(to []netip.AddrPort, n int) {
	for i := 0; i < n && c.goesOn(); i++ {
		c.call(to[i%len(to)])
	}
}

func (h *host) put(t *testing.T, i int, p service.Protocol, backends ...netip.AddrPort) netip.AddrPort {
	t.Helper()
	s := service.Service{Frontend: frontend(i), Protocol: p, Backends: service.Backends(backends...)}
	_, _, err := h.d.Services().Put(t.Context(), service.CLI, s)
	testkit.Require(t, err == nil, "%v", err)
	return s.Frontend
}

func (p pod) set(t *testing.T, key, value string) {
	t.Helper()
	testkit.Succeed(t, rtnl.In(p.ns).SetSysctl(key, value))
}
