// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// local marks a backend as one on this node.
func local(b service.Backend) service.Backend {
	b.Local = true
	return b
}

// configure stores the service with settings.
func (w *world) configure(t *testing.T, s service.Service) {
	t.Helper()
	s.Frontend, s.Protocol = w.service, service.Protocol(w.proto)
	must2(w.Services().Put(t.Context(), service.CLI, s))(t)
}

// within fails the test unless the backends that n connections of a pod, and of a client outside, got are those at the ports.
func (w *world) within(t *testing.T, n int, inside, outside []uint16) {
	t.Helper()
	for _, c := range []struct {
		name string
		from client
		want []uint16
	}{{"a pod", w.pod(), inside}, {"a client outside", w.outside(), outside}} {
		got, sum := w.sharesOf(t, c.from, n), 0
		for _, port := range c.want {
			failIf(t, got[port] == 0, "%s never got backend %d: %v", c.name, port, got)
			sum += got[port]
		}
		failIf(t, sum != n, "%s got backends %v, want only %v", c.name, got, c.want)
	}
}

// TestLocalPolicy opens connections to services whose policies are local.
func TestLocalPolicy(t *testing.T) {
	runCases(t, objects.AttachHost, append(localCases(), localChangeCases()...))
}

// three returns backends at ports 1 to 3, of which the last two are on this node.
func three(w *world) []service.Backend {
	return []service.Backend{
		backend(w.backend, 1, service.Active, 1), local(backend(w.backend, 2, service.Active, 1)), local(backend(w.backend, 3, service.Active, 1)),
	}
}

func localCases() []translateCase {
	near, all := []uint16{2, 3}, []uint16{1, 2, 3}
	return []translateCase{
		{"internal", 0, func(t *testing.T, w *world) {
			w.configure(t, service.Service{InternalPolicy: service.Local, Backends: three(w)})
			w.within(t, 60, near, all)
		}},
		{"external", 0, func(t *testing.T, w *world) {
			w.configure(t, service.Service{ExternalPolicy: service.Local, Backends: three(w)})
			w.within(t, 60, all, near)
		}},
		{"maglev and weights", 0, func(t *testing.T, w *world) {
			backends := three(w)
			backends[2].Weight = 3
			w.configure(t, service.Service{ExternalPolicy: service.Local, Choice: service.Maglev, Backends: backends})
			w.within(t, 60, all, near)
			// The mean of the lighter one is 100, the standard deviation 9.
			if got := w.sharesOf(t, w.outside(), 400); got[2] < 60 || got[2] > 140 {
				t.Errorf("backends of weights 1 and 3 got %v", got)
			}
		}},
		{"a weight elsewhere", 0, func(t *testing.T, w *world) {
			backends := three(w)
			backends[0].Weight = 5 // a table for all, and none for those on this node
			w.configure(t, service.Service{InternalPolicy: service.Local, Backends: backends})
			w.within(t, 60, near, all)
		}},
		{"terminating", 0, func(t *testing.T, w *world) {
			for _, choice := range []service.Choice{service.Random, service.Maglev} {
				w.forget(t)
				w.configure(t, service.Service{InternalPolicy: service.Local, Choice: choice, Backends: []service.Backend{
					backend(w.backend, 1, service.Active, 1), backend(w.backend, 4, service.Terminating, 1),
					local(backend(w.backend, 2, service.Terminating, 1)), local(backend(w.backend, 3, service.Terminating, 2)),
					local(backend(w.backend, 5, service.Draining, 1)),
				}})
				w.within(t, 60, near, []uint16{1})
			}
		}},
		{"none on this node", 0, func(t *testing.T, w *world) {
			far := []service.Backend{backend(w.backend, 1, service.Active, 1), local(backend(w.backend, 2, service.Quarantined, 1))}
			w.configure(t, service.Service{InternalPolicy: service.Local, Backends: far})
			w.gets(t, fromHost, w.first(w.client, w.service), "drop: drop_no_local_backend")
			w.connected(t)
			w.configure(t, service.Service{ExternalPolicy: service.Local, Backends: far})
			w.gets(t, fromUplink, w.first(w.outsider, w.service).arriving("aa"), "drop: drop_no_local_backend")
			w.connected(t)
			equal(t, w.shares(t, 10)[1], 10, "connections of the chosen backend")
		}},
		{"none at all", 0, func(t *testing.T, w *world) {
			w.configure(t, service.Service{InternalPolicy: service.Local})
			p := w.first(w.client, w.service)
			w.check(t, fromHost, p, wants{actionRedirect, p.refusal(), once("drop_no_backend")})
		}},
	}
}

// localChangeCases change a service whose policy is local, or becomes so.
func localChangeCases() []translateCase {
	return []translateCase{
		{"open connections stay", 0, func(t *testing.T, w *world) {
			w.configure(t, service.Service{Backends: []service.Backend{backend(w.remote, 8080, service.Active, 1)}})
			w.send(t, fromHost, w.first(w.client, w.service))
			w.configure(t, service.Service{InternalPolicy: service.Local, Backends: []service.Backend{
				backend(w.remote, 8080, service.Active, 1), local(backend(w.remote, 2, service.Active, 1)),
			}})
			w.gets(t, fromHost, w.next(w.client, w.service), "next client>remote: forward passed")
		}},
		{"affinity", 0, func(t *testing.T, w *world) {
			s := service.Service{Affinity: time.Hour, Backends: three(w)[:2]}
			s.Backends[1].State = service.Quarantined
			w.configure(t, s)
			if got := w.soleBackend(t); got != 1 {
				t.Fatalf("the client got backend %d", got)
			}
			s.Backends, s.InternalPolicy = three(w), service.Local
			w.configure(t, s)
			if got := w.soleBackend(t); got == 1 {
				t.Error("the client keeps a backend on another node")
			}
		}},
	}
}

// elsewhere is a backend on a node that does not answer.
func elsewhere(addr string) service.Backend {
	return service.Backend{Addr: netip.MustParseAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr).Next(), 9).String())}
}

// testLocalSockets calls a service that serves its clients from this node only, and has no backend there. testSpread has one.
func testLocalSockets(t *testing.T, s *stage) {
	want := service.Service{
		Frontend: netip.MustParseAddrPort("10.96.0.100:5201"), Protocol: service.Any, InternalPolicy: service.Local,
		Backends: []service.Backend{elsewhere(far4)},
	}
	must2(s.Services().Put(t.Context(), service.CLI, want))(t)
	s.refuses(want.Frontend, unix.EHOSTUNREACH, "drop_no_local_backend")
}

// TestLocalSocketOfPod has the socket programs leave a pod without a backend on this node to the packet programs, which drop
// what it sends: its connection waits, and is not refused.
func TestLocalSocketOfPod(t *testing.T) {
	n, d := routed(t), openTest(t)
	s := &stage{network: n, Datapath: d, t: t, cgroup: testCgroup(t)}
	must(d.Sockets().Attach(t.Context(), s.cgroup))(t)
	n.attachBoth(t, d)
	want := service.Service{
		Frontend: netip.MustParseAddrPort("10.96.0.100:5201"), Protocol: service.TCP, InternalPolicy: service.Local,
		Backends: []service.Backend{elsewhere(far4)},
	}
	put := func() {
		must2(d.Services().Put(t.Context(), service.CLI, want))(t)
	}
	put()
	before, done := counts(t, d), make(chan error, 1)
	c := s.client().open(t, false, unix.SOCK_STREAM)
	go func() { done <- c.connect(want.Frontend) }()
	testkit.Eventually(t, 5*time.Second, func() error {
		if got := delta(t, d, before); got["drop_no_local_backend"] == 0 {
			return fmt.Errorf("nothing dropped yet: %v", got)
		}
		return nil
	})
	want.Backends = append(want.Backends, service.Backend{Addr: testkit.Echo(t, n.pods[0], "tcp", podA4+":0"), Local: true})
	put()
	noError(t, <-done, "connect")
}
