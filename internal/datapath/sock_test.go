// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"mustang/internal/cgroup"
	"mustang/internal/datapath/objects"
	"mustang/internal/testkit"
)

// dialect is a family of sockets and of their destinations.
type dialect struct {
	name    string
	v6      bool // the socket
	service string
	pod     string
	client  string
}

func dialects() []dialect {
	return []dialect{
		{"ipv4", false, "10.96.0.100:5201", podA4, podB4},
		{"ipv6", true, "[fd00:96::100]:5201", podA6, podB6},
		{"mapped", true, "10.96.0.100:5201", podA4, podB4},
	}
}

// TestSocket has two pods and only socket translation. The set-up takes longer than the parts, so each part continues
// from the one before it, and parts that end something come last.
func TestSocket(t *testing.T) {
	s := newStage(t)
	for _, part := range []struct {
		name string
		test func(*testing.T, *stage)
	}{
		{"calls", testCalls},
		{"spread", testSpread},
		{"backends on this node only", testLocalSockets},
		{"source ranges", testRangedSockets},
		{"changes", testChanges},
		{"resets", testResetSockets},
		{"follows", testFollows},
		{"refused", testRefused},
		{"reuse", testReuse},
		{"multipath", testMultipath},
		{"upgrade", testUpgrade},
		{"hosts", testHosts},
		{"ambiguous", testAmbiguous},
		{"other sockets", testOthers},
		{"many backends", testManyBackends},
		{"scope", testScope},
		{"detached", testDetached},
		{"remove", testRemove},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(t, s.in(t)) })
	}
}

// testCalls calls a service in each way that a socket can.
func testCalls(t *testing.T, s *stage) {
	for _, d := range dialects() {
		for protocol, call := range map[string]func(*stage, dialect, netip.AddrPort){"tcp": callTCP, "udp": callUDP} {
			t.Run(d.name+"/"+protocol, func(t *testing.T) {
				part := s.in(t)
				call(part, d, part.serve(d.service, part.echo(protocol, d.pod)))
			})
		}
	}
	wantNoDrops(t, s.Datapath)
}

// counted fails the test unless exactly this was counted since before.
func (s *stage) counted(before map[string]uint64, want map[string]uint64) {
	s.t.Helper()
	got := delta(s.t, s.Datapath, before)
	for name, n := range want {
		if got[name] != n {
			s.t.Errorf("counted %v, want %v", got, want)
			return
		}
		delete(got, name)
	}
	for _, name := range []string{"from_pod", "to_pod", "passed"} {
		delete(got, name) // neighbours look for each other at any time
	}
	testkit.Check(s.t, len(got) == 0, "counted %v on top of %v", got, want)
}

// callTCP has a pod and the backend's own pod call a service.
func callTCP(s *stage, d dialect, frontend netip.AddrPort) {
	for from, client := range map[place]string{s.client(): d.client, s.server(): ""} {
		before := counts(s.t, s.Datapath)
		c := from.open(s.t, d.v6, unix.SOCK_STREAM)
		c.mustConnect(frontend)
		equal(s.t, c.peer(), frontend, "the peer")
		if seen := netip.MustParseAddrPort(c.exchange()).Addr().Unmap().String(); client != "" {
			equal(s.t, seen, client, "the client that the backend saw")
			s.counted(before, map[string]uint64{"sock_connect": 1, "sock_getpeername": 1})
		}
	}
}

// callUDP does so by connected sockets and by others.
func callUDP(s *stage, d dialect, frontend netip.AddrPort) {
	before := counts(s.t, s.Datapath)
	connected, loose := s.client().open(s.t, d.v6, unix.SOCK_DGRAM), s.client().open(s.t, d.v6, unix.SOCK_DGRAM)
	connected.mustConnect(frontend)
	equal(s.t, connected.peer(), frontend, "the peer")
	for range 3 {
		connected.ask(netip.AddrPort{}, frontend)
		loose.ask(frontend, frontend)
	}
	s.counted(before, map[string]uint64{"sock_connect": 1, "sock_getpeername": 1, "sock_sendmsg": 3, "sock_recvmsg": 6})
	own := s.server().open(s.t, d.v6, unix.SOCK_DGRAM)
	own.ask(frontend, frontend)
	own.mustConnect(frontend)
	own.ask(netip.AddrPort{}, frontend)
}

func attached(t testing.TB, path string) map[string][]ebpf.ProgramID {
	t.Helper()
	dir := must(os.Open(path))(t)
	defer dir.Close()
	all := make(map[string][]ebpf.ProgramID)
	for _, h := range objects.AttachCgroup.Hooks() {
		result := must(link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: h.AttachType()}))(t)
		for _, p := range result.Programs {
			all[h.Program] = append(all[h.Program], p.ID)
		}
	}
	return all
}

// wantAttached fails the test unless each hook has want programs.
func wantAttached(t testing.TB, path string, want int) {
	t.Helper()
	all := attached(t, path)
	for _, h := range objects.AttachCgroup.Hooks() {
		failIf(t, len(all[h.Program]) != want, "%s has programs %v, want %d", h.Program, all[h.Program], want)
	}
}

// TestSocketAttach attaches and detaches beside programs of another owner.
func TestSocketAttach(t *testing.T) {
	d, path := openTest(t), testCgroup(t)
	wantNotFound(t, d.Sockets().Detach(t.Context(), path))
	wantLen(t, must(d.Sockets().Cgroups(t.Context()))(t), 0, "cgroups")
	for _, h := range objects.AttachCgroup.Hooks() {
		foreign(t, path, h.AttachType())
	}
	for _, want := range []Change{Added, Unchanged} {
		equal(t, must(d.Sockets().Attach(t.Context(), path+"/."))(t), want, "Attach")
		wantAttached(t, path, 2)
	}
	list, err := d.Sockets().Cgroups(t.Context())
	failIf(t, err != nil || len(list) != 1 || list[0].Path != path || list[0].ID == 0, "cgroups %v, %v", list, err)
	links, err := d.objects.Links()
	testkit.Require(t, err == nil && len(links) == 8, "links %v, %v", links, err)
	// Attach restores a link that another process has detached.
	succeed(t, d.objects.Detach(links[3]))
	equal(t, must(d.Sockets().Attach(t.Context(), path))(t), Updated, "Attach")
	wantAttached(t, path, 2)
	succeed(t, d.Sockets().Detach(t.Context(), path))
	wantAttached(t, path, 1)
	wantNotFound(t, d.Sockets().Detach(t.Context(), path))
}

// foreign attaches a program of another owner, which allows all calls.
func foreign(t testing.TB, path string, attach ebpf.AttachType) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSockAddr, AttachType: attach, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	succeed(t, err)
	defer p.Close()
	l := must(link.AttachCgroup(link.CgroupOptions{Path: path, Attach: attach, Program: p}))(t)
	t.Cleanup(func() { _ = l.Close() })
}

// testRemove checks that removing the datapath detaches the socket programs.
func testRemove(t *testing.T, s *stage) {
	succeed(t, objects.Remove(t.Context(), s.objects.Root()))
	wantAttached(t, s.cgroup, 0)
	failsWith(t, errOf(os.Stat(s.objects.Root())), os.ErrNotExist, "the root still exists")
}

// TestSocketUndo makes the last step of Attach fail and checks that the earlier ones are undone.
func TestSocketUndo(t *testing.T) {
	d, path := openTest(t), testCgroup(t)
	c := must(cgroup.Open(path))(t)
	defer c.Close()
	last := objects.AttachCgroup.Hooks()[7].Program
	obstacle := pins(d, "links", objects.Link{Hook: objects.Hook{Point: objects.AttachCgroup, Program: last},
		ID: c.ID}.String())
	succeed(t, os.Mkdir(obstacle, 0o700))
	change, err := d.Sockets().Attach(t.Context(), path)
	testkit.Check(t, err != nil && change == Unchanged, "Attach: %v, %v; want it to fail", change, err)
	wantAttached(t, path, 0)
	wantLen(t, must(d.objects.Links())(t), 1, "links")
	succeed(t, os.Remove(obstacle))
	equal(t, must(d.Sockets().Attach(t.Context(), path))(t), Added, "Attach")
}

// testUpgrade opens a root that holds the programs of another build, while a socket is connected.
func testUpgrade(t *testing.T, s *stage) {
	frontend := s.serve("10.96.0.100:5201", s.echo("tcp", podA4))
	c := s.client().open(t, false, unix.SOCK_STREAM)
	c.mustConnect(frontend)
	pinned := ofAnotherBuild(t, s.Datapath, "socks")
	before := attached(t, s.cgroup)
	again := must(Open(t.Context(), Options{Root: s.objects.Root()}))(t)
	defer again.Close()
	got := programPins(t, s.Datapath, "socks")
	testkit.Check(t, slices.Equal(got, pinned), "pinned programs %v, want %v", got, pinned)
	wantAttached(t, s.cgroup, 1)
	for name, ids := range attached(t, s.cgroup) {
		failIf(t, slices.Equal(ids, before[name]), "%s: the old program is still attached", name)
	}
	c.exchange()
	equal(t, c.peer(), frontend, "the peer")
	c = s.client().open(t, false, unix.SOCK_STREAM)
	c.mustConnect(frontend)
}

// testDetached checks that Detach keeps open connections and stops translation.
func testDetached(t *testing.T, s *stage) {
	backend := s.echo("tcp", podA4)
	frontend := s.serve("10.96.0.100:5201", backend)
	c := s.client().open(t, false, unix.SOCK_STREAM)
	c.mustConnect(frontend)
	succeed(t, s.Sockets().Detach(t.Context(), s.cgroup))
	c.exchange()
	equal(t, c.peer(), backend, "the peer")
	before := counts(t, s.Datapath)
	s.client().open(t, false, unix.SOCK_DGRAM).mustConnect(frontend)
	s.counted(before, nil)
}

// TestSocketNested checks that Attach refuses a cgroup above or below an attached one, which would translate twice.
func TestSocketNested(t *testing.T) {
	d, above, beside := openTest(t), testCgroup(t), testCgroup(t)
	below := filepath.Join(above, "below")
	succeed(t, os.Mkdir(below, 0o700))
	t.Cleanup(func() { _ = os.Remove(below) })
	for _, paths := range [][2]string{{above, below}, {below, above}} {
		must(d.Sockets().Attach(t.Context(), paths[0]))(t)
		must(d.Sockets().Attach(t.Context(), beside))(t)
		wantConflict(t, errOf(d.Sockets().Attach(t.Context(), paths[1])), paths[0])
		for _, path := range []string{paths[0], beside} {
			succeed(t, d.Sockets().Detach(t.Context(), path))
		}
	}
}

// TestSocketGone attaches to paths that are not cgroups, which fails. It then removes an attached cgroup and checks
// that its links are removed.
func TestSocketGone(t *testing.T) {
	d, path, other := openTest(t), testCgroup(t), testCgroup(t)
	file := filepath.Join(t.TempDir(), "file")
	succeed(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{t.TempDir(), file, "/nonexistent", ""} {
		_, err := d.Sockets().Attach(t.Context(), path)
		testkit.Fails(t, err, path)
		testkit.Check(t, errors.As(err, new(*cgroup.Error)) || errors.Is(err, os.ErrNotExist), "%q: %v", path, err)
	}
	must(d.Sockets().Attach(t.Context(), path))(t)
	succeed(t, unix.Rmdir(path))
	wantLen(t, must(d.Sockets().Cgroups(t.Context()))(t), 0, "cgroups")
	failsWith(t, d.Sockets().Detach(t.Context(), path), os.ErrNotExist, "detach")
	must(d.Sockets().Attach(t.Context(), other))(t)
	wantLen(t, must(d.objects.Links())(t), 8, "links")
}
