// SPDX-License-Identifier: Apache-2.0

// Package kept has roots of datapaths that tests use one after the other: the kernel needs longer to verify the programs
// than most tests to run. Only tests import it.
package kept

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
)

// roots are those that no test uses, on a BPF file system that is mounted for them.
var roots struct {
	sync.Mutex
	mount string
	made  int
	free  []*root
}

// Root returns a root with empty maps for a few pods. Nothing is attached there, and it may have programs. When the test
// ends, the next one gets it: without links and rows, and as good as new. It is removed instead if the test has failed or
// has left anything else there.
func Root(t testing.TB) string {
	t.Helper()
	r, err := take()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := r.renew()
		if err != nil {
			t.Logf("%s is not kept: %v", r.path, err)
		}
		if t.Failed() || err != nil {
			if err := os.RemoveAll(r.path); err != nil {
				t.Error(err)
			}
			return
		}
		roots.Lock()
		defer roots.Unlock()
		roots.free = append(roots.free, r)
	})
	return r.path
}

// Remove removes all roots, after the last test.
func Remove() error {
	roots.Lock()
	defer roots.Unlock()
	if roots.mount == "" {
		return nil
	}
	return errors.Join(unix.Unmount(roots.mount, unix.MNT_DETACH), os.Remove(roots.mount))
}

// take returns a root that no test uses, or makes one.
func take() (*root, error) {
	roots.Lock()
	defer roots.Unlock()
	if n := len(roots.free); n > 0 {
		r := roots.free[n-1]
		roots.free = roots.free[:n-1]
		return r, nil
	}
	if roots.mount == "" {
		dir, err := os.MkdirTemp("", "mst-test-")
		if err == nil {
			err = unix.Mount("bpf", dir, "bpf", 0, "")
		}
		if err != nil {
			return nil, fmt.Errorf("mount a BPF file system: %w", err)
		}
		roots.mount = dir
	}
	roots.made++
	return create(filepath.Join(roots.mount, strconv.Itoa(roots.made)))
}

// root is the root of one test at a time.
type root struct {
	path  string
	maps  map[string]ebpf.MapID // the pinned ones
	first map[string][]byte     // rows that it began with, by map
}

func create(path string) (*root, error) {
	sizes := objects.Sizes{Services: 64, Backends: 256, Connections: 4096, Endpoints: 256}
	o, err := objects.Create(context.Background(), path, sizes, nil)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	r := &root{path: path}
	if r.maps, err = r.pinnedMaps(); err != nil {
		return nil, err
	}
	r.first = map[string][]byte{}
	for name, m := range startingMaps(o) {
		if r.first[name], err = m.LookupBytes(uint32(0)); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// startingMaps returns the maps with a row that is there from the start.
func startingMaps(o *objects.Objects) map[string]*ebpf.Map {
	return map[string]*ebpf.Map{"node_state": o.NodeState.Map}
}

// pins returns a path of pins.
func (r *root) pins(path ...string) string {
	return filepath.Join(append([]string{r.path, fmt.Sprintf("v%d", objects.LayoutVersion)}, path...)...)
}

// renew detaches all programs and empties all maps. An error means that there is more than programs and maps of this build.
func (r *root) renew() error {
	o, err := objects.Open(r.path)
	if err != nil {
		return err
	}
	defer o.Close()
	links, err := o.Links()
	if err != nil {
		return err
	}
	for _, l := range links { // and wait until they run no longer
		if err := o.Detach(l); err != nil {
			return err
		}
	}
	// That a control group has had programs changes what commands do.
	for _, path := range []string{r.pins("socks"), r.pins("maps", "sockets"), r.pins("maps", "udp_backends"), r.pins("maps", "sk_revnat")} {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	for dir, want := range map[string][]string{r.path: {filepath.Base(r.pins())}, r.pins(): {"links", "maps", "progs"}, r.pins("links"): nil} {
		names, err := namesIn(dir)
		if err != nil {
			return err
		}
		if !slices.Equal(names, want) {
			return fmt.Errorf("%s has %v, not %v", dir, names, want)
		}
	}
	pinned, err := r.pinnedMaps()
	if err != nil {
		return err
	}
	if !maps.Equal(pinned, r.maps) {
		return fmt.Errorf("maps %v, not %v", pinned, r.maps)
	}
	ids, err := r.mapsOfPrograms()
	if err != nil {
		return err
	}
	for _, id := range slices.Concat(slices.Collect(maps.Values(pinned)), ids) {
		if err := empty(id); err != nil {
			return err
		}
	}
	for name, m := range startingMaps(o) {
		if err := m.Put(uint32(0), r.first[name]); err != nil {
			return err
		}
	}
	files, err := o.FilesDir()
	if err != nil {
		return err
	}
	return os.RemoveAll(files)
}

// pinnedMaps returns all pinned maps.
func (r *root) pinnedMaps() (map[string]ebpf.MapID, error) {
	names, err := namesIn(r.pins("maps"))
	ids := make(map[string]ebpf.MapID, len(names))
	for _, name := range names {
		m, err := ebpf.LoadPinnedMap(r.pins("maps", name), nil)
		if err != nil {
			return nil, err
		}
		defer m.Close()
		info, err := m.Info()
		if err != nil {
			return nil, err
		}
		if info.Frozen() {
			return nil, fmt.Errorf("map %s is frozen", name)
		}
		ids[name], _ = info.ID()
	}
	return ids, err
}

// mapsOfPrograms returns the maps that the pinned programs use.
func (r *root) mapsOfPrograms() (ids []ebpf.MapID, err error) {
	names, err := namesIn(r.pins("progs"))
	ours := (*objects.Objects)(nil).DeviceHooks()
	for _, name := range names {
		if !slices.ContainsFunc(ours, func(h objects.Hook) bool { return h.PinName() == name }) {
			return nil, fmt.Errorf("program %s is of another build", name)
		}
		p, err := ebpf.LoadPinnedProgram(r.pins("progs", name), nil)
		if err != nil {
			return nil, err
		}
		defer p.Close()
		info, err := p.Info()
		if err != nil {
			return nil, err
		}
		used, _ := info.MapIDs()
		ids = append(ids, used...)
	}
	slices.Sort(ids)
	return slices.Compact(ids), err
}

// namesIn returns the sorted names of what is in a directory.
func namesIn(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, err
}
