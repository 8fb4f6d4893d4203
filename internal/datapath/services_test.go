// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/netns"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

func newService(p service.Protocol, frontend string, backends ...string) service.Service {
	s := service.Service{Frontend: netip.MustParseAddrPort(frontend), Protocol: p}
	for _, backend := range backends {
		s.Backends = append(s.Backends, service.Backend{Addr: netip.MustParseAddrPort(backend)})
	}
	return s
}

func putService(t testing.TB, d *Datapath, s service.Service) {
	t.Helper()
	must2(d.Services().Put(t.Context(), service.CLI, s))(t)
}

// wantServices compares the services without IDs, revisions and owners.
func wantServices(t *testing.T, d *Datapath, want ...service.Service) {
	t.Helper()
	got := must(d.Services().List(t.Context()))(t)
	for i := range got {
		one, err := d.Services().Get(t.Context(), got[i].Key())
		failIf(t, err != nil || !reflect.DeepEqual(one, got[i]), "Get = %v, %v; want %v", one, err, got[i])
		got[i].ID, got[i].Revision, got[i].Owner = 0, 0, service.NoOwner
	}
	failIf(t, len(got)+len(want) > 0 && !reflect.DeepEqual(got, want), "services\n%v, want\n%v", got, want)
}

// TestServices puts, gets and deletes, one step after another.
func TestServices(t *testing.T) {
	d := openTest(t)
	one := newService(service.TCP, "10.96.0.1:80", "192.168.10.10:8080", "192.168.10.11:8080")
	fewer := newService(service.TCP, "10.96.0.1:80", "192.168.10.11:8080")
	six := newService(service.Any, "[fd00:96::1]:80", "[fd00:10::a]:8080")
	udp := newService(service.UDP, "10.96.0.1:80", "192.168.10.10:53")
	conflict := func(err error) bool { var c *ConflictError; return errors.As(err, &c) }
	missing := func(err error) bool { return errors.As(err, new(*NotFoundError)) && errors.Is(err, os.ErrNotExist) }
	put := func(s service.Service, want Change, wantID uint32) func(t *testing.T) {
		return func(t *testing.T) {
			change, id, err := d.Services().Put(t.Context(), service.CLI, s)
			failIf(t, err != nil || change != want || id != wantID, "%v, %d, %v; want %v, %d", change, id, err, want, wantID)
		}
	}
	check := func(call func() error, want func(error) bool) func(t *testing.T) {
		return func(t *testing.T) {
			err := call()
			testkit.Check(t, want(err), "error %v", err)
		}
	}
	refuse := func(s service.Service, want func(error) bool) func(t *testing.T) {
		return check(func() error { return errOf2(d.Services().Put(t.Context(), service.CLI, s)) }, want)
	}
	remove := func(frontend string, p service.Protocol, want func(error) bool) func(t *testing.T) {
		key := service.Key{Frontend: netip.MustParseAddrPort(frontend), Protocol: p}
		return check(func() error { return d.Services().Delete(t.Context(), service.CLI, key) }, want)
	}
	get := func(frontend string, p service.Protocol, want func(error) bool) func(t *testing.T) {
		key := service.Key{Frontend: netip.MustParseAddrPort(frontend), Protocol: p}
		return check(func() error { return errOf(d.Services().Get(t.Context(), key)) }, want)
	}
	fine := func(err error) bool { return err == nil }
	for _, step := range []struct {
		name  string
		do    func(*testing.T)
		want  []service.Service
		slots int
	}{
		{"nothing yet", func(*testing.T) {}, nil, 0},
		{"add", put(one, Added, 1), []service.Service{one}, 2},
		{"again", put(one, Unchanged, 1), []service.Service{one}, 2},
		{"in another order", put(newService(service.TCP, "10.96.0.1:80", "192.168.10.11:8080", "192.168.10.10:8080"),
			Unchanged, 1), []service.Service{one}, 2},
		{"add any", put(six, Added, 2), []service.Service{one, six}, 3},
		{"add the other protocol", put(udp, Added, 3), []service.Service{one, six, udp}, 4},
		{"update", put(fewer, Updated, 1), []service.Service{fewer, six, udp}, 3},
		{"any over one", refuse(newService(service.Any, "10.96.0.1:80", "192.168.10.10:1"), conflict),
			[]service.Service{fewer, six, udp}, 3},
		{"one over any", refuse(newService(service.TCP, "[fd00:96::1]:80", "[fd00:10::a]:1"), conflict),
			[]service.Service{fewer, six, udp}, 3},
		{"invalid", refuse(newService(service.TCP, "10.96.0.9:80", "[fd00:10::a]:1"),
			func(err error) bool { return err != nil }), []service.Service{fewer, six, udp}, 3},
		{"get any, of one", get("10.96.0.1:80", service.Any, conflict), []service.Service{fewer, six, udp}, 3},
		{"get a part of any", get("[fd00:96::1]:80", service.UDP, conflict), []service.Service{fewer, six, udp}, 3},
		{"get another protocol", get("10.96.0.1:80", service.SCTP, missing), []service.Service{fewer, six, udp}, 3},
		{"get another port", get("10.96.0.1:81", service.TCP, missing), []service.Service{fewer, six, udp}, 3},
		{"delete a part of any", remove("[fd00:96::1]:80", service.TCP, missing), []service.Service{fewer, six, udp}, 3},
		{"delete another port", remove("10.96.0.1:81", service.TCP, missing), []service.Service{fewer, six, udp}, 3},
		{"delete any", remove("[fd00:96::1]:80", service.Any, fine), []service.Service{fewer, udp}, 2},
		{"delete it again", remove("[fd00:96::1]:80", service.Any, missing), []service.Service{fewer, udp}, 2},
		{"ids are not used again", put(six, Added, 4), []service.Service{fewer, udp, six}, 3},
		{"delete both protocols", remove("10.96.0.1:80", service.Any, fine), []service.Service{six}, 1},
	} {
		t.Run(step.name, func(t *testing.T) {
			step.do(t)
			wantServices(t, d, step.want...)
			equal(t, rowsIn(t, d.objects.Backends.Map), step.slots, "backends")
		})
	}
}

// TestGoroutines opens a new root several times at once, as several processes do. Each adds a service.
func TestGoroutines(t *testing.T) {
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	o := Options{Root: testkit.BPFFS(t) + "/root", Sizes: objects.Sizes{Connections: 64}}
	var group errgroup.Group
	for worker := range 4 {
		group.Go(func() error {
			own, err := Open(t.Context(), o)
			if err != nil {
				return err
			}
			s := newService(service.TCP, fmt.Sprintf("10.96.%d.1:80", worker), "192.168.10.10:8080")
			return errors.Join(errOf2(own.Services().Put(t.Context(), service.CLI, s)), own.Close())
		})
	}
	succeed(t, group.Wait())
	wantLen(t, rowsOf(t, openSized(t, o)), 4)
}

// TestRemove takes everything away, twice, and leaves what others have pinned in the root. A symbolic link for the root
// changes nothing.
func TestRemove(t *testing.T) {
	dir := testkit.BPFFS(t)
	root, link := dir+"/[root]", dir+"/link" // a name, not a pattern
	theirs := root + "/vpp/links/theirs"
	succeed(t, os.MkdirAll(theirs, 0o700))
	d := openSized(t, Options{Root: root, Sizes: objects.Sizes{Connections: 64}})
	put := func() error {
		s := newService(service.TCP, "10.96.0.1:80", "192.168.10.10:80")
		return errOf2(d.Services().Put(t.Context(), service.CLI, s))
	}
	succeed(t, os.Symlink(root, link))
	for _, path := range []string{link, link + "/"} {
		testkit.Fails(t, objects.Remove(t.Context(), path), "symbolic link")
	}
	equal(t, must(os.Readlink(link))(t), root, "the link leads to")
	noError(t, put())

	succeed(t, objects.Remove(t.Context(), root))
	entries, err := os.ReadDir(root)
	testkit.Check(t, err == nil && len(entries) == 1 && entries[0].Name() == "vpp",
		"left: %v, %v; want only what is others'", entries, err)
	noError(t, errOf(os.Stat(theirs)))
	succeed(t, os.RemoveAll(root+"/vpp"))
	d = openSized(t, Options{Root: root, Sizes: objects.Sizes{Connections: 64}})
	for range 2 {
		succeed(t, objects.Remove(t.Context(), root))
	}
	failsWith(t, errOf(os.Stat(root)), os.ErrNotExist, "the root is there still")
	failsWith(t, errOf(OpenExisting(Options{Root: root})), os.ErrNotExist, "OpenExisting")
	failsWith(t, put(), os.ErrNotExist, "Put after Remove")
}

// TestRecreated removes the maps and creates new ones while a process has the old ones open: it gets an error, and
// changes neither.
func TestRecreated(t *testing.T) {
	root := testkit.BPFFS(t)
	succeed(t, os.Mkdir(root+"/others", 0o700)) // the root stays
	o := Options{Root: root, Sizes: objects.Sizes{Services: 8, Backends: 8, Connections: 64, Endpoints: 8}}
	old := openSized(t, o)
	one := newService(service.TCP, "10.96.0.1:80", "192.168.10.10:80")
	change := func() map[string]error {
		_, _, put := old.Services().Put(t.Context(), service.CLI, one)
		_, apply := old.Services().Apply(t.Context(), service.CLI, []service.Service{one})
		return map[string]error{"Put": put, "Apply": apply, "Delete": old.Endpoints().Delete(t.Context(), 1)}
	}
	succeed(t, objects.Remove(t.Context(), root))
	for name, err := range change() {
		failIf(t, !errors.Is(err, os.ErrNotExist), "%s of removed maps: error %v", name, err)
	}
	fresh := openSized(t, o)
	for name, err := range change() {
		testkit.Check(t, errors.Is(err, os.ErrNotExist) && !errors.As(err, new(*NotFoundError)),
			"%s of maps that were created anew: error %v", name, err)
	}
	wantServices(t, fresh)
	got, _ := must2(fresh.Services().Put(t.Context(), service.CLI, one))(t)
	equal(t, got, Added, "Put")
}

// TestMemory counts the kernel's memory of services by their rows, and no more once they are deleted.
func TestMemory(t *testing.T) {
	d := openTest(t)
	memory := func() uint64 { return must(d.Services().Memory())(t) }
	empty := memory()
	const services = 10
	must(d.Services().Apply(t.Context(), service.Agent, manyServices(services, 0)))(t)
	got, least, most := memory()-empty, uint64(services*(20+48+2*(8+32))), uint64(services*512)
	failIf(t, got < least || got > most, "%d services take %d bytes, want %d to %d", services, got, least, most)
	must(d.Services().Apply(t.Context(), service.Agent, nil))(t)
	equal(t, memory(), empty, "bytes without services")
}

// onlyHere is a service that serves its clients from this node only. Its backend is on a node that does not answer.
func onlyHere(p service.Protocol) service.Service {
	s := newService(p, "10.96.0.100:5201", "172.16.1.3:9")
	s.InternalPolicy = service.Local
	return s
}

// testLocalSockets calls a service that serves its clients from this node only, without a backend there. testSpread
// has one.
func testLocalSockets(t *testing.T, s *stage) {
	want := onlyHere(service.Any)
	putService(t, s.Datapath, want)
	s.refuses(want.Frontend, unix.EHOSTUNREACH, "drop_no_local_backend")
}

// TestLocalSocketOfPod has the socket programs leave a pod without a backend on this node to the packet programs,
// which drop its packets: its connection waits, and is not refused.
func TestLocalSocketOfPod(t *testing.T) {
	s := bareStage(t)
	n, d := s.network, s.Datapath
	n.attachBoth(t, d)
	want := onlyHere(service.TCP)
	putService(t, d, want)
	before, done := counts(t, d), make(chan error, 1)
	c := s.client().open(t, false, unix.SOCK_STREAM)
	go func() { done <- c.connect(want.Frontend) }()
	awaitCount(t, d, before, "drop_no_local_backend")
	want.Backends = append(want.Backends, service.Backend{Addr: testkit.Echo(t, n.pods[0], "tcp", podA4+":0"),
		Local: true})
	putService(t, d, want)
	noError(t, <-done, "connect")
}

func prefixes(texts ...string) (ranges []netip.Prefix) {
	for _, text := range texts {
		ranges = append(ranges, netip.MustParsePrefix(text))
	}
	return ranges
}

func rangeOf(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }

// TestManySourceRanges stores thousands of ranges, changes some, and finds each as it was stored.
func TestManySourceRanges(t *testing.T) {
	d := openFresh(t, objects.Sizes{Services: 8, Backends: 3 * service.MaxSourceRanges,
		SourceRanges: 2*service.MaxSourceRanges + 10, Connections: 64, Endpoints: 1})
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

// tryOnce sends the first packet of a connection, and returns an error if it is answered.
func tryOnce(client *netns.Namespace, s service.Service) error {
	if s.Protocol == service.SCTP && !hasSCTP() {
		return tryPacket(client, s.Frontend)
	}
	kind := socketKind{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_NONBLOCK, 0}
	if s.Frontend.Addr().Is6() {
		kind.domain = unix.AF_INET6
	}
	switch s.Protocol {
	case service.UDP:
		kind.kind = unix.SOCK_DGRAM | unix.SOCK_NONBLOCK
	case service.SCTP:
		kind.proto = unix.IPPROTO_SCTP
	}
	return kind.with(client, func(fd int) error {
		if err := unix.Connect(fd, sockaddr(s.Frontend)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
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
