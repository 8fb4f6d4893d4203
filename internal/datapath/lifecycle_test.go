// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestLifecycle is the table of what becomes of connections when services change and clients come back.
func TestLifecycle(t *testing.T) {
	runCases(t, objects.AttachHost, slices.Concat(repeatCases(), changeCases(), collisionCases()))
}

// repeatCases are clients that begin again.
func repeatCases() []translateCase {
	return []translateCase{
		{"SYN is repeated", service.TCP, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service)
			w.send(t, fromHost, p)
			w.gets(t, fromHost, p, "redirect client>backend 0a: kept_connection forward redirect_peer")
		}},
		{"SYN after FINs of both ends", service.TCP, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			p := w.next(w.client, w.service).with(func(p *packet) { p.flags |= flagFIN })
			w.gets(t, fromHost, p, "redirect client>backend 0a: forward redirect_peer")
			w.closed(t, false)
			w.send(t, fromHost, w.next(w.backend, w.client).with(func(p *packet) { p.flags |= flagFIN }))
			w.closed(t, true)
			p = w.first(w.client, w.service)
			w.gets(t, fromHost, p, "redirect client>backend 0a: new_connection forward redirect_peer")
			w.closed(t, false)
		}},
	}
}

// changeCases are services and pods that change under their clients.
func changeCases() []translateCase {
	return []translateCase{
		{"SYN after the backends changed", service.TCP, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service)
			w.send(t, fromHost, p)
			w.serve(t, w.service, w.remote)
			w.gets(t, fromHost, p, "next client>remote: new_connection forward passed")
			w.gets(t, fromHost, w.next(w.backend, w.client), "redirect backend>client 0c: redirect_peer")
		}},
		{"late SYN of an open connection after the backends changed, and a new one", service.TCP,
			func(t *testing.T, w *world) {
				w.open(t, w.backend)
				w.handshake(t, w.client, w.service, w.backend)
				w.serve(t, w.service, w.remote)
				w.gets(t, fromHost, w.first(w.client, w.service),
					"redirect client>backend 0a: kept_connection forward redirect_peer")
				w.ageAll(t, func(slot *objects.Slot) { slot.Opened -= uint64(61 * time.Second) })
				w.gets(t, fromHost, w.first(w.client, w.service), "next client>remote: new_connection forward passed")
			}},
		{"SYN after the service was made anew", service.TCP, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service)
			w.send(t, fromHost, p)
			w.unserve(t, w.service)
			w.serve(t, w.service, w.remote)
			w.gets(t, fromHost, p, "next client>remote: new_connection forward passed")
		}},
		{"SYN after the service is gone", service.TCP, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			w.unserve(t, w.service)
			w.gets(t, fromHost, w.first(w.client, w.service), "next: passed")
		}},
		{"open connection after the backends changed", service.TCP, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			w.serve(t, w.service, w.remote)
			w.gets(t, fromHost, w.next(w.client, w.service), "redirect client>backend 0a: forward redirect_peer")
		}},
		{"datagram after the backends changed", service.UDP, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			p := w.next(w.client, w.service)
			w.send(t, fromHost, p)
			w.serve(t, w.service, w.remote)
			// An answer that is under way.
			w.gets(t, fromHost, w.next(w.backend, w.client), "redirect service>client 0c: reverse redirect_peer")
			w.gets(t, fromHost, p, "next client>remote: new_connection forward passed")
		}},
		{"datagram after a backend was added", service.UDP, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			p := w.next(w.client, w.service)
			w.send(t, fromHost, p)
			w.serve(t, w.service, w.backend, w.remote)
			w.gets(t, fromHost, p, "redirect client>backend 0a: forward redirect_peer")
		}},
		{"datagram after the service is gone", service.UDP, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			w.send(t, fromHost, w.next(w.client, w.service))
			w.unserve(t, w.service)
			w.connected(t)
			w.gets(t, fromHost, w.next(w.client, w.service), "next: passed")
		}},
		{"endpoint is deleted", 0, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			succeed(t, w.Endpoints().Delete(context.Background(), 1))
			w.connected(t)
		}},
	}
}

// collisionCases are clients that use one port for what looks the same to a backend.
func collisionCases() []translateCase {
	return []translateCase{
		{"one backend behind two services", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			w.serve(t, w.other, w.backend)
			w.send(t, fromHost, w.first(w.client, w.service))
			w.checkChanged(t, w.other, once("new_connection", "port_changed", "forward", "redirect_peer"))
			w.gets(t, fromHost, w.next(w.backend, w.client), "redirect service>client 0c: reverse redirect_peer")
		}},
		{"straight to the backend of an open connection", 0, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			w.checkChanged(t, w.backend, once("new_connection", "port_changed", "forward", "redirect_peer"))
			p := w.first(w.client, w.backend)
			if w.proto == protoTCP {
				_, again := w.run(t, fromHost, p.frame())
				_, more := w.run(t, fromHost, p.frame())
				failIf(t, string(again) != string(more), "a repeated SYN came out differently")
			}
		}},
		{"straight to the backend again, after the first connection was closed", service.TCP, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			w.send(t, fromHost, w.first(w.client, w.backend))
			w.send(t, fromHost, w.next(w.client, w.backend).with(func(p *packet) { p.flags |= flagRST }))
			w.send(t, fromHost, w.first(w.client, w.backend))
			w.recount(t, 1, 2)
			equal(t, must(w.objects.Slots.Open())(t), 2, "connections are open")
		}},
		{"straight to the backend of a closed connection", service.TCP, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			w.send(t, fromHost, w.next(w.client, w.service).with(func(p *packet) { p.flags |= flagRST }))
			w.age(t, 2*time.Second)
			w.gets(t, fromHost, w.first(w.client, w.backend), "redirect client>backend 0a: redirect_peer slot_reused")
			w.gets(t, fromHost, w.next(w.backend, w.client), "redirect backend>client 0c: redirect_peer")
		}},
	}
}

// checkChanged opens a connection from the client's port and expects another port; and the way back to lead to the
// client's own again.
func (w *world) checkChanged(t *testing.T, dst netip.AddrPort, count map[string]uint64) {
	t.Helper()
	p := w.first(w.client, dst)
	before := counts(t, w.Datapath)
	verdict, out := w.run(t, fromHost, p.frame())
	diff := delta(t, w.Datapath, before)
	delete(diff, fromHost.Program)
	for name, n := range count {
		failIf(t, diff[name] != n, "counted %v, want %v", diff, count)
	}
	l4 := 14 + 20
	if w.v6 {
		l4 = 14 + 40
	}
	source := netip.AddrPortFrom(w.client.Addr(), uint16(out[l4])<<8|uint16(out[l4+1]))
	want := p.became(source, w.backend, "0a").frame()
	if verdict != actionRedirect || source == w.client || string(out) != string(want) {
		t.Fatalf("verdict %d, source %v", verdict, source)
	}
	p = w.next(w.backend, source)
	w.check(t, fromHost, p, wants{actionRedirect, p.became(dst, w.client, "0c"), once("reverse", "redirect_peer")})
}

func (w *world) unserve(t *testing.T, frontend netip.AddrPort) {
	t.Helper()
	succeed(t, w.Services().Delete(t.Context(), service.CLI, service.Key{Frontend: frontend,
		Protocol: service.Protocol(w.proto)}))
}

// age makes all connections older, by less than the time since the machine has started.
func (w *world) age(t *testing.T, d time.Duration) {
	t.Helper()
	w.ageAll(t, func(slot *objects.Slot) { slot.Seen -= uint64(d) })
}

// ageAll changes the times of all connections.
func (w *world) ageAll(t *testing.T, change func(*objects.Slot)) {
	t.Helper()
	aged := make(map[uint32]objects.Slot)
	succeed(t, w.objects.Slots.Each(func(index uint32, slot objects.Slot) bool {
		change(&slot)
		aged[index] = slot
		return true
	}))
	for index, slot := range aged {
		succeed(t, w.objects.Slots.Map.Put(index, slot))
	}
}

// closed fails the test unless the only connection is closed, or not.
func (w *world) closed(t *testing.T, want bool) {
	t.Helper()
	got := must(w.Connections())(t)
	if len(got) != 1 || (got[0].State == flows.StateClosed) != want {
		t.Errorf("connections %+v, want one that is closed: %v", got, want)
	}
}

// standing is TCP connections of one pod to a service whose backends are in the other.
type standing struct {
	network  network
	d        *Datapath
	frontend netip.AddrPort
	backends []netip.AddrPort
	conns    []*bufio.ReadWriter
	clients  []netip.AddrPort
}

func newStanding(t *testing.T, backends int) *standing {
	t.Helper()
	s := &standing{network: routed(t), d: openTest(t), frontend: netip.MustParseAddrPort(service4 + ":80")}
	s.network.attachBoth(t, s.d)
	for range backends {
		s.backends = append(s.backends, testkit.Echo(t, s.network.pods[0], "tcp", podA4+":0"))
	}
	return s
}

// open makes connections.
func (s *standing) open(t *testing.T, conns int) {
	t.Helper()
	for range conns {
		conn := must(testkit.Dial(s.network.pods[1], "tcp", s.frontend.String()))(t)
		t.Cleanup(func() { _ = conn.Close() })
		succeed(t, conn.SetDeadline(time.Now().Add(5*time.Minute)))
		c := bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriter(conn))
		if _, err := c.ReadString('\n'); err != nil { // the server says who calls
			t.Fatal(err)
		}
		s.conns = append(s.conns, c)
		s.clients = append(s.clients, conn.LocalAddr().(*net.TCPAddr).AddrPort())
	}
}

func (s *standing) put(t *testing.T, backends ...netip.AddrPort) {
	t.Helper()
	want := service.Service{Frontend: s.frontend, Protocol: service.TCP, Choice: service.Maglev,
		Backends: service.Backends(backends...)}
	putService(t, s.d, want)
}

// broken returns the clients whose connection does not carry a line there and back.
func (s *standing) broken() (clients []netip.AddrPort) {
	for i, c := range s.conns {
		_, err := fmt.Fprintln(c, "ping")
		if err == nil {
			err = c.Flush()
		}
		if err == nil {
			_, err = c.ReadString('\n')
		}
		if err != nil {
			clients = append(clients, s.clients[i])
		}
	}
	return clients
}

// TestLostRowsKeepBackends empties the table of connections after a backend went and after it came back. The next
// packet of a connection to another backend must find that again, where Maglev chooses. It sends a few elsewhere (NSDI
// 2016, section
// 5.3).
func TestLostRowsKeepBackends(t *testing.T) {
	const backends, conns = 10, 320
	for name, change := range map[string][2]int{"one goes": {10, 9}, "one comes": {9, 10}} {
		t.Run(name, func(t *testing.T) {
			s := newStanding(t, backends)
			s.put(t, s.backends[:change[0]]...)
			s.open(t, conns)
			open, err := s.d.Connections()
			if err != nil || len(open) != conns {
				t.Fatalf("%d connections, %v; want %d", len(open), err, conns)
			}
			gone := make(map[netip.AddrPort]bool) // clients whose backend goes
			for _, c := range open {
				gone[c.Client] = !slices.Contains(s.backends[:change[1]], c.Backend)
			}
			s.put(t, s.backends[:change[1]]...)
			(&world{bench: benchOn(t, s.d)}).forget(t)
			broken := slices.DeleteFunc(s.broken(), func(c netip.AddrPort) bool { return gone[c] })
			limit := conns / 20
			if change[1] > change[0] { // the new backend takes its share of connections that nobody remembers
				limit += conns / backends * 3 / 2
			}
			t.Logf("%d of %d connections broke", len(broken), conns)
			failIf(t, len(broken) > limit, "%d connections found another backend, want at most %d", len(broken), limit)
		})
	}
}
