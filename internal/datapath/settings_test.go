// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
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
	putService(t, w.Datapath, s)
}

// within fails the test unless the backends that n connections of a pod, and of a client outside, got are those at the
// ports.
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
		backend(w.backend, 1, service.Active, 1), local(backend(w.backend, 2, service.Active, 1)),
		local(backend(w.backend, 3, service.Active, 1)),
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
			far := []service.Backend{backend(w.backend, 1, service.Active, 1),
				local(backend(w.backend, 2, service.Quarantined, 1))}
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

// testLocalSockets calls a service that serves its clients from this node only, and has no backend there. testSpread
// has one.
func testLocalSockets(t *testing.T, s *stage) {
	want := service.Service{
		Frontend: netip.MustParseAddrPort("10.96.0.100:5201"), Protocol: service.Any, InternalPolicy: service.Local,
		Backends: []service.Backend{elsewhere(far4)},
	}
	putService(t, s.Datapath, want)
	s.refuses(want.Frontend, unix.EHOSTUNREACH, "drop_no_local_backend")
}

// TestLocalSocketOfPod has the socket programs leave a pod without a backend on this node to the packet programs, which
// drop what it sends: its connection waits, and is not refused.
func TestLocalSocketOfPod(t *testing.T) {
	s := bareStage(t)
	n, d := s.network, s.Datapath
	n.attachBoth(t, d)
	want := service.Service{
		Frontend: netip.MustParseAddrPort("10.96.0.100:5201"), Protocol: service.TCP, InternalPolicy: service.Local,
		Backends: []service.Backend{elsewhere(far4)},
	}
	putService(t, d, want)
	before, done := counts(t, d), make(chan error, 1)
	c := s.client().open(t, false, unix.SOCK_STREAM)
	go func() { done <- c.connect(want.Frontend) }()
	testkit.Eventually(t, 5*time.Second, func() error {
		if got := delta(t, d, before); got["drop_no_local_backend"] == 0 {
			return fmt.Errorf("nothing dropped yet: %v", got)
		}
		return nil
	})
	want.Backends = append(want.Backends, service.Backend{Addr: testkit.Echo(t, n.pods[0], "tcp", podA4+":0"),
		Local: true})
	putService(t, d, want)
	noError(t, <-done, "connect")
}

// prefixes parses source ranges.
func prefixes(texts ...string) (ranges []netip.Prefix) {
	for _, text := range texts {
		ranges = append(ranges, netip.MustParsePrefix(text))
	}
	return ranges
}

// rangeOf returns the range that has the address alone.
func rangeOf(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }

// TestSourceRanges opens connections of clients within and without the ranges of a service.
func TestSourceRanges(t *testing.T) { runCases(t, objects.AttachHost, rangeCases()) }

func rangeCases() []translateCase {
	near := func(addr netip.Addr) netip.Prefix { p, _ := addr.Prefix(addr.BitLen() - 8); return p }
	dropped := func(t *testing.T, w *world) {
		t.Helper()
		w.gets(t, fromHost, w.first(w.client, w.service), "drop: drop_source_range")
		w.gets(t, fromUplink, w.first(w.outsider, w.service).arriving("aa"), "drop: drop_source_range")
		w.connected(t)
	}
	backends := func(w *world) []service.Backend { return service.Backends(w.backend) }
	return []translateCase{
		{"within", 0, func(t *testing.T, w *world) {
			for _, r := range []func(netip.Addr) netip.Prefix{rangeOf, near} {
				w.forget(t)
				w.configure(t, service.Service{Backends: backends(w), SourceRanges: []netip.Prefix{r(w.client.Addr())}})
				w.check(t, fromHost, w.first(w.client, w.service), wants{actionRedirect,
					w.first(w.client, w.service).became(w.client, w.backend, "0a"), once("new_connection", "forward",
						"redirect_peer")})
				w.gets(t, fromUplink, w.first(w.outsider, w.service).arriving("aa"), "drop: drop_source_range")
			}
		}},
		{"without", 0, func(t *testing.T, w *world) {
			w.configure(t, service.Service{Backends: backends(w), SourceRanges: []netip.Prefix{rangeOf(w.remote.Addr()),
				near(w.remote.Addr())}})
			dropped(t, w)
		}},
		{"without a backend", 0, func(t *testing.T, w *world) {
			w.configure(t, service.Service{SourceRanges: []netip.Prefix{rangeOf(w.remote.Addr())}})
			dropped(t, w)
		}},
		{"the next address", 0, func(t *testing.T, w *world) {
			w.configure(t, service.Service{Backends: backends(w), SourceRanges: []netip.Prefix{rangeOf(w.client.Addr().Next()),
				rangeOf(w.client.Addr().Prev())}})
			dropped(t, w)
		}},
		{"of another service", 0, func(t *testing.T, w *world) {
			w.configure(t, service.Service{Backends: backends(w), SourceRanges: []netip.Prefix{rangeOf(w.remote.Addr())}})
			other := service.Service{Frontend: w.other, Protocol: service.Protocol(w.proto), Backends: backends(w),
				SourceRanges: []netip.Prefix{near(w.client.Addr())}}
			putService(t, w.Datapath, other)
			dropped(t, w)
			w.send(t, fromHost, w.first(w.client, w.other))
		}},
		{"everyone", 0, func(t *testing.T, w *world) {
			everyone, _ := w.client.Addr().Prefix(0)
			w.configure(t, service.Service{Backends: backends(w), SourceRanges: []netip.Prefix{everyone,
				rangeOf(w.remote.Addr())}})
			w.send(t, fromHost, w.first(w.client, w.service))
			w.send(t, fromUplink, w.first(w.outsider, w.service).arriving("aa"))
		}},
		{"open connections stay", 0, func(t *testing.T, w *world) {
			w.configure(t, service.Service{Backends: backends(w)})
			w.send(t, fromHost, w.first(w.client, w.service))
			w.configure(t, service.Service{Backends: backends(w), SourceRanges: []netip.Prefix{rangeOf(w.remote.Addr())}})
			w.gets(t, fromHost, w.next(w.client, w.service), "redirect client>backend 0a: forward redirect_peer")
			w.configure(t, service.Service{Backends: backends(w)})
			w.send(t, fromUplink, w.first(w.outsider, w.service).arriving("aa"))
		}},
	}
}

// TestManySourceRanges stores thousands of ranges, changes some, and finds each as it was stored.
func TestManySourceRanges(t *testing.T) {
	d := openSized(t, Options{Root: testkit.BPFFS(t) + "/root", Sizes: objects.Sizes{
		Services: 8, Backends: 3 * service.MaxSourceRanges, SourceRanges: 2*service.MaxSourceRanges + 10, Connections: 64,
		Endpoints: 1}})
	s := newService(service.TCP, "10.96.0.1:80", "192.168.10.10:8080", "192.168.10.11:8080")
	addr := netip.MustParseAddr("20.0.0.0")
	for i := range service.MaxSourceRanges {
		s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(addr, 32-i%2)) // every second one within the one before
		if i%2 == 1 {
			addr = addr.Next().Next()
		}
	}
	for i := range s.SourceRanges {
		s.SourceRanges[i] = s.SourceRanges[i].Masked()
	}
	plain := newService(service.TCP, "10.96.0.2:80", "192.168.10.10:8080")
	fewer := s
	fewer.SourceRanges = s.SourceRanges[:7]
	for _, want := range [][]service.Service{{s, plain}, {fewer, plain}, {s}, {plain}, {fewer}, nil} {
		must(d.Services().Apply(t.Context(), service.CLI, want))(t)
		got := rowsOf(t, d)
		for _, w := range want {
			if have := got[w.Key()]; !have.Equal(w) {
				t.Fatalf("service %s has %d ranges, want %d", w, len(have.SourceRanges), len(w.SourceRanges))
			}
		}
		wantClean(t, d)
	}
}

// rangesOf counts the rows of source ranges.
func rangesOf(t testing.TB, d *Datapath) (n int) {
	t.Helper()
	var key objects.SourceRange
	var value uint8
	rows := d.objects.SourceRanges.Map.Iterate()
	for rows.Next(&key, &value) {
		n++
	}
	succeed(t, rows.Err())
	return n
}

// tryOnce sends the first packet of a connection, and returns an error unless nobody answers.
func tryOnce(client *netns.Namespace, s service.Service) error {
	if s.Protocol == service.SCTP && !hasSCTP() {
		return tryPacket(client, s.Frontend)
	}
	return client.Do(func() error {
		domain, kind, protocol := unix.AF_INET, unix.SOCK_STREAM, 0
		var to unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte(s.Frontend.Addr().AsSlice()), Port: int(s.Frontend.Port())}
		if s.Frontend.Addr().Is6() {
			domain, to = unix.AF_INET6, &unix.SockaddrInet6{Addr: s.Frontend.Addr().As16(), Port: int(s.Frontend.Port())}
		}
		switch s.Protocol {
		case service.UDP:
			kind = unix.SOCK_DGRAM
		case service.SCTP:
			protocol = unix.IPPROTO_SCTP
		}
		fd, err := unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		if err := unix.Connect(fd, to); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			return err
		}
		if s.Protocol == service.UDP {
			if _, err := unix.Write(fd, []byte("x")); err != nil {
				return err
			}
		}
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLERR}}
		if n, err := unix.Poll(polled, 100); n != 0 && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("it was answered: events %#x", polled[0].Revents)
		}
		return nil
	})
}

// testRangedSockets calls a service with source ranges from hosts, which it serves, and from pods without endpoint,
// whose sockets it serves if they are bound to an address within.
func testRangedSockets(t *testing.T, s *stage) {
	for _, d := range dialects() {
		t.Run(d.name, func(t *testing.T) {
			s := s.in(t)
			want := service.Service{
				Frontend: netip.MustParseAddrPort(d.service), Protocol: service.Any,
				SourceRanges: []netip.Prefix{rangeOf(netip.MustParseAddr(d.client))},
				Backends:     service.Backends(s.echo("udp", d.pod)),
			}
			register := func(kind ScopeKind) {
				t.Helper()
				must(s.Sockets().Put(t.Context(), service.CLI, s.pods[1], kind))(t)
			}
			call := func(bind bool) error {
				c := s.client().open(t, d.v6, unix.SOCK_DGRAM)
				if bind {
					succeed(t, unix.Bind(c.fd, c.addr(netip.AddrPortFrom(netip.MustParseAddr(d.client), 0))))
				}
				if err := c.send("unconnected", want.Frontend); err != nil {
					return err
				}
				return c.connect(want.Frontend)
			}
			putService(t, s.Datapath, want)
			noError(t, call(false), "a host")
			register(PodScope)
			defer register(HostScope)
			noError(t, call(true), "a pod, bound to an address within")
			before := counts(t, s.Datapath)
			failsWith(t, call(false), unix.EPERM, "a pod, not bound")
			want.SourceRanges = []netip.Prefix{rangeOf(netip.MustParseAddr(d.pod))}
			putService(t, s.Datapath, want)
			failsWith(t, call(true), unix.EPERM, "a pod, bound to an address without")
			equal(t, delta(t, s.Datapath, before)["drop_source_range"], 2, "drop_source_range")
		})
	}
}
