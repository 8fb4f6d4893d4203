// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// testSpread sends from many sockets and counts the datagrams at each backend.
func testSpread(t *testing.T, s *stage) {
	servers := listenUDP(t, s.pods[0], podA4, 4)
	var backends []netip.AddrPort
	for _, server := range servers {
		backends = append(backends, server.addr)
	}
	frontend := s.serve("10.96.0.100:5201", backends...)
	for name, send := range map[string]func(*socketFD, string){
		"connected": func(c *socketFD, text string) {
			c.mustConnect(frontend)
			c.mustSend(text, netip.AddrPort{})
			c.mustSend(text, netip.AddrPort{})
		},
		"unconnected": func(c *socketFD, text string) {
			c.mustSend(text, frontend)
			c.mustSend(text, frontend)
		},
	} {
		t.Run(name, func(t *testing.T) {
			const sockets = 200
			for i, c := range s.client().openAll(t, make([]*socketFD, sockets), false, unix.SOCK_DGRAM) {
				send(c, string(rune('a'+i)))
			}
			for i, server := range servers {
				texts := server.received(t)
				// The mean is 50 sockets, the standard deviation 6.
				if len(texts) < 2*20 || len(texts) > 2*85 {
					t.Errorf("backend %d got %d datagrams of %d", i, len(texts), 2*sockets)
				}
				times := make(map[string]int)
				for _, text := range texts {
					times[text]++
				}
				for text, n := range times {
					if n != 2 {
						t.Errorf("backend %d got %d datagrams of socket %q, want both", i, n, text)
					}
				}
			}
		})
	}
}

// testChanges changes and deletes a service while sockets use it.
func testChanges(t *testing.T, whole *stage) {
	for _, change := range []struct {
		name string
		do   func(s *stage, frontend, old, other netip.AddrPort)
		ends bool // the change destroys connected UDP sockets
		left bool // the service still exists
	}{
		{"replaced backend", func(s *stage, frontend, _, other netip.AddrPort) { s.serve(frontend.String(), other) }, true, true},
		{"removed service", func(s *stage, frontend, _, _ netip.AddrPort) {
			if err := s.Services().Delete(t.Context(), service.CLI, service.Key{Frontend: frontend, Protocol: service.Any}); err != nil {
				s.t.Fatal(err)
			}
		}, true, false},
		{"added backend", func(s *stage, frontend, old, other netip.AddrPort) { s.serve(frontend.String(), other, old) }, false, true},
	} {
		for _, d := range dialects() {
			t.Run(change.name+"/"+d.name, func(t *testing.T) {
				s := whole.in(t)
				before := counts(t, s.Datapath)
				old := s.echo("udp", d.pod)
				other := testkit.Echo(t, s.pods[1], "udp", net.JoinHostPort(d.client, "0"))
				frontend := s.serve(d.service, old)
				connected := s.client().open(t, d.v6, unix.SOCK_DGRAM)
				connected.mustConnect(frontend)
				connected.ask(netip.AddrPort{}, frontend)
				direct := s.client().open(t, d.v6, unix.SOCK_DGRAM)
				direct.mustConnect(old)
				loose := s.client().open(t, d.v6, unix.SOCK_DGRAM)
				loose.mustConnect(frontend)
				loose.disconnect()
				loose.ask(old, old)
				change.do(s, frontend, old, other)
				direct.ask(netip.AddrPort{}, old)
				loose.ask(old, old)
				if !change.ends {
					connected.ask(netip.AddrPort{}, frontend)
					return
				}
				if _, err := connected.read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
					t.Errorf("a socket whose backend is gone receives: %v, want ECONNABORTED", err)
				}
				if err := connected.send("x", netip.AddrPort{}); !errors.Is(err, unix.EDESTADDRREQ) {
					t.Errorf("a socket whose backend is gone sends: %v, want EDESTADDRREQ", err)
				}
				if got := delta(t, s.Datapath, before); got["sock_destroy"] != 1 {
					t.Errorf("counted %v, want one socket ended", got)
				}
				if change.left {
					connected.mustConnect(frontend)
					connected.ask(netip.AddrPort{}, frontend)
				}
			})
		}
	}
}

// testFollows changes a service: an unconnected UDP socket sends to the new backend, a TCP connection keeps its own.
func testFollows(t *testing.T, s *stage) {
	servers := listenUDP(t, s.pods[0], podA4, 2)
	frontend := s.serve("10.96.0.100:5201", servers[0].addr)
	c := s.client().open(t, false, unix.SOCK_DGRAM)
	c.mustSend("first", frontend)
	s.serve(frontend.String(), servers[1].addr)
	c.mustSend("second", frontend)
	for i, want := range []string{"first", "second"} {
		if got := servers[i].received(t); len(got) != 1 || got[0] != want {
			t.Errorf("server %d got %q, want %q", i, got, want)
		}
	}
	s.serve(frontend.String(), s.echo("tcp", podA4))
	stream := s.client().open(t, false, unix.SOCK_STREAM)
	stream.mustConnect(frontend)
	stream.exchange()
	succeed(t, s.Services().Delete(t.Context(), service.CLI, service.Key{Frontend: frontend, Protocol: service.Any}))
	stream.mustSend("more", netip.AddrPort{})
	buffer := make([]byte, 16)
	if n, err := stream.read(buffer); err != nil || string(buffer[:n]) != "more" {
		t.Errorf("read %q, %v: a connection ended with its service", buffer[:n], err)
	}
	if stream.peer() != frontend {
		t.Errorf("the peer is %s", stream.peer())
	}
}

// testRefused connects to services without a usable backend.
func testRefused(t *testing.T, s *stage) {
	frontend := s.serve("10.96.0.100:5201", s.echo("tcp", podA4))
	for _, row := range []struct {
		name, count string
		spoil       func(*objects.Service)
	}{
		{"missing backend", "drop_backend_missing", func(s *objects.Service) { s.Revision, s.FirstPort = s.Revision+100, [objects.FirstBackends]uint16{} }},
		{"no backend", "drop_no_backend", func(s *objects.Service) { s.Count, s.Total = 0, 0 }},
	} {
		t.Run(row.name, func(t *testing.T) {
			key := rows.ServiceKey(frontend, service.Any)
			value, ok, err := s.objects.Services.Get(key)
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			row.spoil(&value)
			succeed(t, s.objects.Services.Put(key, value))
			before := counts(t, s.Datapath)
			for _, v6 := range []bool{false, true} {
				for name, err := range map[string]error{
					"tcp":             s.client().open(t, v6, unix.SOCK_STREAM).connect(frontend),
					"connected udp":   s.client().open(t, v6, unix.SOCK_DGRAM).connect(frontend),
					"unconnected udp": s.client().open(t, v6, unix.SOCK_DGRAM).send("x", frontend),
				} {
					if !errors.Is(err, unix.ECONNREFUSED) {
						t.Errorf("%s: %v, want it refused", name, err)
					}
				}
			}
			s.counted(before, map[string]uint64{row.count: 6})
		})
	}
}
