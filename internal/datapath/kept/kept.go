// SPDX-License-Identifier: Apache-2.0

// Package kept has roots of datapaths that tests use one after the other: the kernel needs longer to verify the
// programs than most tests to run. Only tests import it.
package kept

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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

// roots are the unused roots, on a BPF file system that is mounted for them.
var roots struct {
	sync.Mutex
	mount string
	made  int
	free  []*root
}

// Root returns a root with empty maps for a few pods. Nothing is attached there, and it may have programs. When the
// test ends, the next one gets it: without links and rows, and as good as new. It is removed instead if the test has
// failed or has left anything else there.
func Root(t testing.TB) string {
	t.Helper()
	return share(t, false)
}

// WithSockets is [Root] with the programs for sockets, attached to no control group.
func WithSockets(t testing.TB) string {
	t.Helper()
	return share(t, true)
}

func share(t testing.TB, sockets bool) string {
	t.Helper()
	r, err := take(sockets)
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

// Main runs the tests of a TestMain by run, removes all roots, and returns the exit code.
func Main(m *testing.M, run func(*testing.M) int) int {
	code := run(m)
	if err := Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
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

func take(sockets bool) (*root, error) {
	roots.Lock()
	defer roots.Unlock()
	if i := slices.IndexFunc(roots.free, func(r *root) bool { return r.sockets == sockets }); i >= 0 {
		r := roots.free[i]
		roots.free = slices.Delete(roots.free, i, i+1)
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
	return create(filepath.Join(roots.mount, strconv.Itoa(roots.made)), sockets)
}

// root is the root of one test at a time.
type root struct {
	path    string
	sockets bool                  // it has the programs for sockets
	pinned  map[string]ebpf.MapID // maps by path; 0 for directories
	state   []byte                // the row of node_state that it began with
}

func create(path string, sockets bool) (*root, error) {
	o, err := objects.Create(context.Background(), path, objects.Sizes{Services: 64, Backends: 256, Tables: 1024,
		Connections: 4096, Endpoints: 256, PolicyRows: 1 << 14}, nil)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	if sockets {
		if err := o.LoadSocketPrograms(); err != nil {
			return nil, err
		}
	}
	r := &root{path: path, sockets: sockets}
	r.state, err = o.NodeState.Map.LookupBytes(uint32(0))
	if err == nil {
		r.pinned, err = r.pins()
	}
	return r, err
}

// renew detaches all programs and empties all maps. It fails if there is more than what the root began with.
func (r *root) renew() error {
	o, err := objects.Open(r.path)
	if err != nil {
		return err
	}
	defer o.Close()
	links, err := o.Links()
	if err == nil {
		err = o.DetachAll(links) // and wait until they run no longer
	}
	// Commands behave differently once a control group has had programs.
	version := filepath.Join(r.path, fmt.Sprintf("v%d", objects.LayoutVersion))
	for _, path := range []string{"socks", "maps/sockets", "maps/udp_backends", "maps/sk_revnat"} {
		if !r.sockets {
			err = errors.Join(err, os.RemoveAll(filepath.Join(version, path)))
		}
	}
	if err != nil {
		return err
	}
	pinned, err := r.pins()
	if err == nil && !maps.Equal(pinned, r.pinned) {
		err = fmt.Errorf("pins %v, not %v", pinned, r.pinned)
	}
	if err != nil {
		return err
	}
	ids, err := mapsOfPrograms(o)
	state, stateErr := o.NodeState.IDs()
	err = errors.Join(err, stateErr)
	for _, id := range slices.AppendSeq(ids, maps.Values(pinned)) {
		if err == nil && id != 0 {
			err = empty(id, max(state.LastService+1, countedRows))
		}
	}
	files, filesErr := o.FilesDir()
	if err := errors.Join(err, filesErr); err != nil {
		return err
	}
	return errors.Join(o.NodeState.Map.Put(uint32(0), r.state), os.RemoveAll(files))
}

func (r *root) pins() (map[string]ebpf.MapID, error) {
	all := make(map[string]ebpf.MapID)
	err := filepath.WalkDir(r.path, func(path string, entry fs.DirEntry, err error) error {
		if all[path] = 0; err != nil || entry.IsDir() {
			if name := filepath.Base(path); name == "progs" || name == "socks" {
				return fs.SkipDir
			}
			return err
		}
		m, err := ebpf.LoadPinnedMap(path, nil)
		if err != nil {
			return err
		}
		defer m.Close()
		info, err := m.Info()
		if err == nil && info.Frozen() {
			err = fmt.Errorf("map %s is frozen", path)
		}
		if err == nil {
			all[path], _ = info.ID()
		}
		return err
	})
	return all, err
}

func mapsOfPrograms(o *objects.Objects) (ids []ebpf.MapID, err error) {
	pins, err := o.ProgramPins()
	for _, path := range pins {
		p, err := ebpf.LoadPinnedProgram(path, nil)
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

// countedRows are the rows of service_counts that tests use without a service that was put.
const countedRows = 1024

// empty resets a map to its state after creation. Records in a ring buffer are too old for its next reader. services
// are the rows of service_counts that may have been used: to write all 16,385 takes longer than most tests.
func empty(id ebpf.MapID, services uint32) error {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return err
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil || info.Frozen() || m.Type() == ebpf.RingBuf { // constants
		return err
	}
	if memory, err := m.Memory(); err == nil {
		_, err = memory.WriteAt(make([]byte, memory.Size()), 0)
		return err
	}
	zero := make([]byte, m.ValueSize())
	switch m.Type() {
	case ebpf.Array:
		for key := range m.MaxEntries() {
			err = errors.Join(err, m.Put(key, zero))
		}
		return err
	case ebpf.PerCPUArray:
		rows := m.MaxEntries()
		if info.Name == "service_counts" {
			rows = min(rows, services)
		}
		keys := make([]uint32, rows)
		for i := range keys {
			keys[i] = uint32(i)
		}
		_, err := m.BatchUpdate(keys, slices.Repeat([][]byte{zero}, len(keys)*ebpf.MustPossibleCPU()), nil)
		return err
	}
	key := make([]byte, m.KeySize())
	for m.NextKey(nil, &key) == nil {
		// One of an LRU table may be gone by itself.
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}
