// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// testScope starts a server at the service's address in each namespace. A client that reaches it was not translated.
func testScope(t *testing.T, s *stage) {
	stranger := testkit.Namespace(t, "stranger")
	s.run(t, `
		-n PODB addr add 10.96.0.100/32 dev lo
		-n `+stranger.Name()+` addr add 10.96.0.100/32 dev lo`)
	frontend := s.serve("10.96.0.100:5201", s.echo("tcp", podA4))
	testkit.Echo(t, s.pods[1], "tcp", frontend.String())
	testkit.Echo(t, stranger, "tcp", frontend.String())
	below := filepath.Join(s.cgroup, "below")
	succeed(t, os.Mkdir(below, 0o700))
	t.Cleanup(func() { _ = os.Remove(below) })
	threaded(t, below)
	beside := testCgroup(t)
	for _, row := range []struct {
		name   string
		at     place
		client string // as the server sees it
	}{
		{"in the cgroup", s.client(), podB4},
		{"in a cgroup below", place{s.pods[1], below}, podB4},
		{"in no cgroup", place{ns: s.pods[1]}, service4},
		{"in another cgroup", place{s.pods[1], beside}, service4},
		{"in another namespace", place{stranger, s.cgroup}, service4},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := row.at.open(t, false, unix.SOCK_STREAM)
			c.mustConnect(frontend)
			equal(t, netip.MustParseAddrPort(c.exchange()).Addr().String(), row.client, "the server saw")
			equal(t, c.peer(), frontend, "the peer")
		})
	}
}

func testHosts(t *testing.T, s *stage) {
	frontend := s.serve("10.96.0.100:5201", s.echo("tcp", podA4))
	translated := func() bool {
		t.Helper()
		before := counts(t, s.Datapath)["sock_connect"]
		s.client().open(t, false, unix.SOCK_DGRAM).mustConnect(frontend)
		return counts(t, s.Datapath)["sock_connect"] != before
	}
	failIf(t, !translated(), "the socket of a registered host is not translated")
	equal(t, must(s.Sockets().Put(t.Context(), service.CLI, s.pods[1], HostScope))(t), Unchanged, "a second Put")
	hosts, err := s.Sockets().List(t.Context())
	// Each CPU has its own range of cookies, so two namespaces can be listed in either order.
	for _, ns := range s.pods {
		want := SocketScope{cookieOf(t, ns), service.CLI, HostScope}
		failIf(t, err != nil || len(hosts) != len(s.pods) || !slices.Contains(hosts, want), "hosts %v, %v; want %v among %d",
			hosts, err, want, len(s.pods))
	}
	noError(t, s.Sockets().Delete(t.Context(), service.CLI, cookieOf(t, s.pods[1])))
	failIf(t, translated(), "the socket of an unregistered host is still translated")
	wantNotFound(t, s.Sockets().Delete(t.Context(), service.CLI, cookieOf(t, s.pods[1])))
	noError(t, s.Sockets().Delete(t.Context(), service.CLI, cookieOf(t, s.pods[0])))
	wantNotFound(t, s.Sockets().Delete(t.Context(), service.CLI, cookieOf(t, s.pods[0])))
	wantLen(t, must(s.Sockets().List(t.Context()))(t), 0, "hosts")
	s.registerBoth()
}

// TestSocketEndpoints registers namespaces through their endpoints, which have packet programs too.
func TestSocketEndpoints(t *testing.T) {
	s := bareStage(t)
	s.attachBoth(t, s.Datapath)
	wantLen(t, must(s.Sockets().List(t.Context()))(t), 0, "hosts")
	for _, d := range dialects() {
		for protocol, kind := range map[string]int{"tcp": unix.SOCK_STREAM, "udp": unix.SOCK_DGRAM} {
			t.Run(d.name+"/"+protocol, func(t *testing.T) {
				frontend := s.serve(d.service, s.echo(protocol, d.pod))
				before := settled(t, s.Datapath)
				c := s.client().open(t, d.v6, kind)
				c.mustConnect(frontend)
				if protocol == "tcp" {
					c.exchange()
				} else {
					c.ask(netip.AddrPort{}, frontend)
				}
				got := delta(t, s.Datapath, before)
				failIf(t, got["sock_connect"] != 1 || got["forward"] != 0 || got["reverse"] != 0 || got["redirect_peer"] == 0,
					"counted %v, want packets from pod to pod", got)
				// The packet programs translate for processes outside the cgroup.
				c = place{ns: s.pods[1]}.open(t, d.v6, kind)
				c.mustConnect(frontend)
				if got = delta(t, s.Datapath, before); got["sock_connect"] != 1 || protocol == "tcp" && got["forward"] == 0 {
					t.Errorf("counted %v, want packets to be translated", got)
				}
			})
		}
	}
	for _, e := range must(s.Endpoints().List(t.Context()))(t) {
		err := s.Endpoints().DeleteIP(t.Context(), e.IP)
		testkit.Require(t, err == nil || errors.Is(err, os.ErrNotExist), "%v", err)
	}
	wantLen(t, must(s.objects.Namespaces.Rows())(t), 0, "namespaces")
}

// TestSocketShared checks that a namespace stays registered while a host or an endpoint needs it.
func TestSocketShared(t *testing.T) {
	n, d := routed(t), openTest(t)
	n.attachBoth(t, d)
	must(d.Sockets().Put(t.Context(), service.CLI, n.pods[0], HostScope))(t)
	cookie := must(n.pods[0].Cookie())(t)
	want := func(want uint32) {
		t.Helper()
		all, err := d.objects.Namespaces.Rows()
		testkit.Check(t, err == nil && all[cookie].Flags == want, "flags %v, %v; want %d for %d", all, err, want, cookie)
	}
	want(objects.NamespaceHost | objects.NamespacePod)
	second := Endpoint{ID: 99, IP: netip.MustParseAddr("192.168.10.99"), netns: cookie}
	succeed(t, d.Endpoints().write([]Endpoint{second}))
	succeed(t, d.Sockets().Delete(t.Context(), service.CLI, cookie))
	want(objects.NamespacePod)
	must(d.Sockets().Put(t.Context(), service.CLI, n.pods[0], HostScope))(t)
	succeed(t, d.Endpoints().DeleteIP(t.Context(), netip.MustParseAddr(podA4)))
	want(objects.NamespaceHost | objects.NamespacePod)
	succeed(t, d.Endpoints().Delete(t.Context(), second.ID))
	want(objects.NamespaceHost)
}

// testMultipath connects with multipath TCP, which falls back to TCP if the kernel lacks it.
func testMultipath(t *testing.T, s *stage) {
	frontend := s.serve("10.96.0.100:5201", s.echo("tcp", podA4))
	before := counts(t, s.Datapath)
	err := s.client().do(t, func() error {
		var dialer net.Dialer
		dialer.SetMultipathTCP(true)
		conn, err := dialer.DialContext(context.Background(), "tcp", frontend.String())
		if err != nil {
			return err
		}
		equal(t, conn.RemoteAddr().String(), frontend.String(), "the peer is")
		return conn.Close()
	})
	noError(t, err)
	equal(t, delta(t, s.Datapath, before)["sock_connect"], 1, "sock_connect")
}

// TestSocketNodePort has a process of the host connect to a node port at each of the host's addresses, also at one
// added later, and to an external address. The loopback addresses are not served.
func TestSocketNodePort(t *testing.T) {
	s := bareStage(t)
	must(s.Sockets().Put(t.Context(), service.CLI, s.host, HostScope))(t)
	for _, f := range []struct{ unspecified, backend, own, later, external, loopback string }{
		{"0.0.0.0", podA4, gateway4, "192.0.2.33", "203.0.113.9", "127.0.0.1"},
		{"::", podA6, gateway6, "2001:db8::33", "2001:db8:7::9", "::1"},
	} {
		backend := testkit.Echo(t, s.pods[0], "tcp", net.JoinHostPort(f.backend, "0"))
		put := func(addr string, nodePort bool) {
			t.Helper()
			frontend := netip.AddrPortFrom(netip.MustParseAddr(addr), 30080)
			want := service.Service{Frontend: frontend, Protocol: service.TCP, NodePort: nodePort, External: !nodePort,
				Backends: service.Backends(backend)}
			putService(t, s.Datapath, want)
		}
		connect := func(addr string) error {
			to := netip.AddrPortFrom(netip.MustParseAddr(addr), 30080)
			return place{s.host, s.cgroup}.open(t, to.Addr().Is6(), unix.SOCK_STREAM).connect(to)
		}
		put(f.unspecified, true)
		put(f.external, false)
		s.run(t, "-n HOST addr add "+f.later+" dev lo")
		for addr, want := range map[string]error{f.own: nil, f.external: nil, f.loopback: unix.ECONNREFUSED,
			f.later: unix.ECONNREFUSED} {
			failsWith(t, connect(addr), want, "%s", addr)
		}
		put(f.unspecified, true)
		noError(t, connect(f.later), "%s, after a command that writes services", f.later)
		s.run(t, "-n HOST addr del "+f.later+" dev lo")
	}
}

// TestSocketAnswersNodePort has a process of the host answer another one whose source port is a node port: datagrams
// of a bound socket, and of an unbound one. Other callers of the port reach the service.
func TestSocketAnswersNodePort(t *testing.T) {
	s := bareStage(t)
	must(s.Sockets().Put(t.Context(), service.CLI, s.host, HostScope))(t)
	for _, f := range []struct{ unspecified, pod, own, at string }{
		{"0.0.0.0", podA4, gateway4, "0.0.0.0"}, {"::", podA6, gateway6, "::"}, {"0.0.0.0", podA4, gateway4, gateway4},
	} {
		backend := testkit.Echo(t, s.pods[0], "udp", net.JoinHostPort(f.pod, "0"))
		frontend := netip.AddrPortFrom(netip.MustParseAddr(f.at), 30080)
		must2(s.Services().Put(t.Context(), service.CLI, service.Service{
			Frontend: frontend, Protocol: service.UDP, NodePort: f.at == f.unspecified, Backends: service.Backends(backend),
		}))(t)
		host, own := place{s.host, s.cgroup}, netip.MustParseAddr(f.own)
		bound := func(at netip.Addr, port uint16) *socketFD {
			t.Helper()
			c := host.open(t, own.Is6(), unix.SOCK_DGRAM)
			succeed(t, unix.Bind(c.fd, c.addr(netip.AddrPortFrom(at, port))))
			return c
		}
		for _, at := range []netip.Addr{own, netip.MustParseAddr(f.unspecified)} {
			server, client := bound(at, 0), bound(own, 30080)
			client.mustConnect(netip.AddrPortFrom(own, plainAddr(must(unix.Getsockname(server.fd))(t)).Port()))
			client.mustSend("call", netip.AddrPort{})
			_, peer := server.receive()
			server.mustSend("answer", peer)
			text, _ := client.receive()
			equal(t, text, "answer", "a server at %s", at)
			bound(own, 0).ask(peer, peer) // the backend answers
			client.close()
		}
	}
}

// TestOwnersShareScopes registers namespaces for two owners, which share some and meet an endpoint in another. A row
// has the flags that follow from all owners, and goes with the last one. Then the map takes as many as it has rows.
func TestOwnersShareScopes(t *testing.T) {
	const h, p, endpoint = objects.NamespaceHost, objects.NamespaceSockets, objects.NamespacePod
	const cni, cli = service.CNI, service.CLI
	d := openTest(t)
	succeed(t, enableSockets(d.objects, 3))
	for _, step := range []struct {
		scope SocketScope // of kind 0: it is deleted
		had   ScopeKind
		flags uint32
	}{
		{SocketScope{1, cni, HostScope}, 0, h},
		{SocketScope{2, cni, PodScope}, 0, p},
		{SocketScope{3, cni, PodScope}, 0, p | endpoint},
		{SocketScope{1, cli, HostScope}, 0, h},
		{SocketScope{2, cli, HostScope}, 0, h | p},
		{SocketScope{2, cli, HostScope}, HostScope, h | p},
		{SocketScope{1, cni, PodScope}, HostScope, h | p},
		{SocketScope{2, cni, 0}, PodScope, h},
		{SocketScope{1, cni, 0}, PodScope, h},
		{SocketScope{3, cni, 0}, PodScope, endpoint},
		{SocketScope{3, cni, 0}, 0, endpoint},
	} {
		had := must(d.Sockets().register(t.Context(), step.scope))(t)
		equal(t, had, step.had, "%+v: kind before", step.scope)
		row, _, err := d.objects.Namespaces.Get(step.scope.Cookie)
		failIf(t, err != nil || row.Flags != step.flags, "%+v: flags %v, %v; want %v", step.scope, row.Flags, err, step.flags)
	}
	succeed(t, disableSockets(d.objects, 1, nil)) // no endpoint there: the registration stays
	want := []SocketScope{{1, cli, HostScope}, {2, cli, HostScope}}
	all, err := d.Sockets().List(t.Context())
	failIf(t, err != nil || !slices.Equal(all, want), "List = %v, %v; want %v", all, err, want)
	succeed(t, disableSockets(d.objects, 3, nil))
	succeed(t, d.Sockets().DeleteAll(t.Context(), cli))
	rows, err := d.objects.Namespaces.Rows()
	failIf(t, err != nil || len(rows) != 0, "rows %v, %v; want none", rows, err)
	size := uint64(d.objects.Namespaces.Size())
	for cookie := range size {
		must(d.Sockets().register(t.Context(), SocketScope{cookie + 1, service.Agent, PodScope}))(t)
	}
	_, err = d.Sockets().register(t.Context(), SocketScope{size + 1, service.Agent, PodScope})
	failsAs[*objects.FullError](t, err)
}

// TestSocketScopesRefused gives each call what cannot be, or is not there.
func TestSocketScopesRefused(t *testing.T) {
	d, ns := openTest(t), testkit.Namespace(t, "host")
	must(d.Sockets().Put(t.Context(), service.CNI, ns, PodScope))(t)
	cookie := cookieOf(t, ns)
	for _, missing := range []struct {
		owner  service.Owner
		cookie uint64
	}{{service.CLI, cookie}, {service.CNI, cookie + 1}} {
		_, err := d.Sockets().Get(t.Context(), missing.owner, missing.cookie)
		wantNotFound(t, err)
		wantNotFound(t, d.Sockets().Delete(t.Context(), missing.owner, missing.cookie))
	}
	for _, owner := range []service.Owner{service.NoOwner, service.Lab + 1} {
		_, put := d.Sockets().Put(t.Context(), owner, ns, HostScope)
		failIf(t, put == nil || d.Sockets().Delete(t.Context(), owner, cookie) == nil, "owner %s: Put %v", owner, put)
	}
	failIf(t, errOf(d.Sockets().Put(t.Context(), service.CNI, ns, PodScope+1)) == nil, "a kind that does not exist")
	equal(t, must(d.Sockets().Put(t.Context(), service.CNI, ns, HostScope))(t), Updated, "Put of another kind")
	want := []SocketScope{{cookie, service.CNI, HostScope}}
	all, err := d.Sockets().List(t.Context())
	testkit.Check(t, err == nil && slices.Equal(all, want), "List = %v, %v; want %v", all, err, want)
}
