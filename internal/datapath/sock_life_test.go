// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"mustang/internal/cgroup"
	"mustang/internal/datapath/objects"
)

// attached returns the IDs of the programs that are attached to a cgroup itself, by hook.
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
		if len(all[h.Program]) != want {
			t.Errorf("%s has programs %v, want %d", h.Program, all[h.Program], want)
		}
	}
}

// TestSocketAttach attaches and detaches beside programs of another owner.
func TestSocketAttach(t *testing.T) {
	d, path := openTest(t), testCgroup(t)
	wantNotFound(t, d.Sockets().Detach(t.Context(), path))
	if list, err := d.Sockets().Cgroups(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("cgroups %v, %v", list, err)
	}
	for _, h := range objects.AttachCgroup.Hooks() {
		foreign(t, path, h.AttachType())
	}
	for _, want := range []Change{Added, Unchanged} {
		if change, err := d.Sockets().Attach(t.Context(), path+"/."); err != nil || change != want {
			t.Fatalf("Attach: %v, %v; want %v", change, err, want)
		}
		wantAttached(t, path, 2)
	}
	if list, err := d.Sockets().Cgroups(t.Context()); err != nil || len(list) != 1 || list[0].Path != path || list[0].ID == 0 {
		t.Errorf("cgroups %v, %v", list, err)
	}
	links, err := d.objects.Links()
	if err != nil || len(links) != 8 {
		t.Fatalf("links %v, %v", links, err)
	}
	// Attach restores a link that another process has detached.
	succeed(t, d.objects.Detach(links[3]))
	if change, err := d.Sockets().Attach(t.Context(), path); err != nil || change != Updated {
		t.Errorf("Attach: %v, %v; want it updated", change, err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	l := must(link.AttachCgroup(link.CgroupOptions{Path: path, Attach: attach, Program: p}))(t)
	t.Cleanup(func() { _ = l.Close() })
}

// testRemove checks that removing the datapath detaches the socket programs.
func testRemove(t *testing.T, s *stage) {
	succeed(t, objects.Remove(t.Context(), s.objects.Root()))
	wantAttached(t, s.cgroup, 0)
	if _, err := os.Stat(s.objects.Root()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the root still exists: %v", err)
	}
}

// TestSocketUndo makes the last step of Attach fail and checks that the earlier ones are undone.
func TestSocketUndo(t *testing.T) {
	d, path := openTest(t), testCgroup(t)
	c := must(cgroup.Open(path))(t)
	defer c.Close()
	last := objects.AttachCgroup.Hooks()[7].Program
	obstacle := pins(d, "links", objects.Link{Hook: objects.Hook{Point: objects.AttachCgroup, Program: last}, ID: c.ID}.String())
	succeed(t, os.Mkdir(obstacle, 0o700))
	if change, err := d.Sockets().Attach(t.Context(), path); err == nil || change != Unchanged {
		t.Errorf("Attach: %v, %v; want it to fail", change, err)
	}
	wantAttached(t, path, 0)
	if links, err := d.objects.Links(); err != nil || len(links) != 1 {
		t.Errorf("links %v, %v; want the obstacle alone", links, err)
	}
	succeed(t, os.Remove(obstacle))
	if change, err := d.Sockets().Attach(t.Context(), path); err != nil || change != Added {
		t.Errorf("Attach: %v, %v", change, err)
	}
}

// testUpgrade opens a root that holds the programs of another build, while a socket is connected.
func testUpgrade(t *testing.T, s *stage) {
	frontend := s.serve("10.96.0.100:5201", s.echo("tcp", podA4))
	c := s.client().open(t, false, unix.SOCK_STREAM)
	c.mustConnect(frontend)
	pinned := socketPins(t, s.Datapath)
	for _, name := range pinned {
		_, rest, _ := strings.Cut(name, "-")
		succeed(t, os.Rename(filepath.Join(pins(s.Datapath, "socks"), name), filepath.Join(pins(s.Datapath, "socks"), "0000-"+rest)))
	}
	before := attached(t, s.cgroup)
	again := must(Open(t.Context(), Options{Root: s.objects.Root()}))(t)
	defer again.Close()
	if got := socketPins(t, s.Datapath); !slices.Equal(got, pinned) {
		t.Errorf("pinned programs %v, want %v", got, pinned)
	}
	wantAttached(t, s.cgroup, 1)
	for name, ids := range attached(t, s.cgroup) {
		if slices.Equal(ids, before[name]) {
			t.Errorf("%s: the old program is still attached", name)
		}
	}
	c.exchange()
	if c.peer() != frontend {
		t.Errorf("the peer is %s, want the service", c.peer())
	}
	c = s.client().open(t, false, unix.SOCK_STREAM)
	c.mustConnect(frontend)
}

func socketPins(t *testing.T, d *Datapath) (names []string) {
	t.Helper()
	entries := must(os.ReadDir(pins(d, "socks")))(t)
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// testDetached checks that Detach keeps open connections and stops translation.
func testDetached(t *testing.T, s *stage) {
	backend := s.echo("tcp", podA4)
	frontend := s.serve("10.96.0.100:5201", backend)
	c := s.client().open(t, false, unix.SOCK_STREAM)
	c.mustConnect(frontend)
	succeed(t, s.Sockets().Detach(t.Context(), s.cgroup))
	c.exchange()
	if c.peer() != backend {
		t.Errorf("the peer is %s, want the backend", c.peer())
	}
	before := counts(t, s.Datapath)
	s.client().open(t, false, unix.SOCK_DGRAM).mustConnect(frontend)
	s.counted(before, nil)
}
