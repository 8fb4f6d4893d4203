// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/testkit"
)

// keptRoot is a root whose programs tests share, one after the other: the kernel needs longer to verify programs than most
// tests to run. Between two tests it loses all links and rows.
type keptRoot struct {
	root     string
	maps     map[string]ebpf.MapID // the pinned ones
	settings []byte                // that it began with
}

// kept are the roots that no test has open, on a BPF file system that is mounted for them.
var kept struct {
	mount string
	made  int
	roots []*keptRoot
}

// openKept opens the datapath of a kept root, or else that of a new one. It has sizes for a few pods.
func openKept(t testing.TB) *Datapath {
	t.Helper()
	testkit.RequireRoot(t)
	k := &keptRoot{}
	if n := len(kept.roots); n > 0 {
		k, kept.roots = kept.roots[n-1], kept.roots[:n-1]
	} else {
		k.root = newKept(t)
	}
	t.Cleanup(func() { k.keep(t) }) // after the datapath is closed
	d := openSized(t, Options{Root: k.root, Sizes: keptSizes})
	if k.maps == nil {
		k.describe(t, d)
	}
	return d
}

// newKept returns the path of a new root.
func newKept(t testing.TB) string {
	t.Helper()
	if kept.mount == "" {
		dir, err := os.MkdirTemp("", "mst-test-")
		if err == nil {
			err = unix.Mount("bpf", dir, "bpf", 0, "")
		}
		if err != nil {
			t.Fatal(err)
		}
		kept.mount = dir
	}
	kept.made++
	return filepath.Join(kept.mount, fmt.Sprint(kept.made))
}

// removeKept removes all roots.
func removeKept() error {
	if kept.mount == "" {
		return nil
	}
	return errors.Join(unix.Unmount(kept.mount, unix.MNT_DETACH), os.Remove(kept.mount))
}

var keptSizes = objects.Sizes{Services: 64, Backends: 256, Connections: 4096, Endpoints: 32}

// describe notes what a new root has.
func (k *keptRoot) describe(t testing.TB, d *Datapath) {
	t.Helper()
	var err error
	if k.maps, err = pinnedMaps(d); err == nil {
		k.settings, err = d.objects.Settings.Map.LookupBytes(uint32(0))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// keep makes a root as good as new for the next test, or removes it if the test has failed or left anything odd there.
func (k *keptRoot) keep(t testing.TB) {
	if !t.Failed() {
		if err := k.renew(); err == nil {
			kept.roots = append(kept.roots, k)
			return
		}
	}
	if err := os.RemoveAll(k.root); err != nil {
		t.Error(err)
	}
}

// renew detaches all programs and empties all maps. An error means that there is more than programs and maps of this build.
func (k *keptRoot) renew() error {
	d, err := OpenExisting(Options{Root: k.root})
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.objects.OpenTables(); err != nil {
		return err
	}
	links, err := d.objects.Links()
	if err != nil {
		return err
	}
	for _, l := range links { // and wait until they run no longer
		if err := d.objects.Detach(l); err != nil {
			return err
		}
	}
	// That a control group has had programs changes what commands do.
	for _, path := range []string{pins(d, "socks"), pins(d, "maps", "sockets"), pins(d, "maps", "answers"), pins(d, "maps", "sk_revnat")} {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	for dir, want := range map[string][]string{d.objects.Root(): {filepath.Base(pins(d))}, pins(d): {"links", "maps", "progs"}, pins(d, "links"): nil} {
		if names, err := namesIn(dir); err != nil || !slices.Equal(names, want) {
			return fmt.Errorf("%s has %v, not %v: %w", dir, names, want, err)
		}
	}
	pinned, err := pinnedMaps(d)
	if err != nil || !maps.Equal(pinned, k.maps) {
		return fmt.Errorf("maps %v, not %v: %w", pinned, k.maps, err)
	}
	ids, err := mapsOfPrograms(d)
	if err != nil {
		return err
	}
	for _, id := range slices.Concat(slices.Collect(maps.Values(pinned)), ids) {
		if err := emptyMap(id); err != nil {
			return err
		}
	}
	return d.objects.Settings.Map.Put(uint32(0), k.settings)
}

// namesIn returns the sorted names of what is in a directory.
func namesIn(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, err
}

// pinnedMaps returns all pinned maps.
func pinnedMaps(d *Datapath) (map[string]ebpf.MapID, error) {
	names, err := namesIn(pins(d, "maps"))
	ids := make(map[string]ebpf.MapID, len(names))
	for _, name := range names {
		m, err := ebpf.LoadPinnedMap(pins(d, "maps", name), nil)
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
func mapsOfPrograms(d *Datapath) (ids []ebpf.MapID, err error) {
	names, err := namesIn(pins(d, "progs"))
	ours := append(objects.EndpointHooks(), objects.AttachUplink.Hooks()...)
	for _, name := range names {
		if !slices.ContainsFunc(ours, func(h objects.Hook) bool { return h.PinName() == name }) {
			return nil, fmt.Errorf("program %s is of another build", name)
		}
		p, err := ebpf.LoadPinnedProgram(pins(d, "progs", name), nil)
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

// emptyMap sets a map to what it was when it was created.
func emptyMap(id ebpf.MapID) error {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return err
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil || info.Frozen() { // constants
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
			if err := m.Put(key, zero); err != nil {
				return err
			}
		}
		return nil
	case ebpf.PerCPUArray:
		keys := make([]uint32, m.MaxEntries())
		for i := range keys {
			keys[i] = uint32(i)
		}
		_, err := m.BatchUpdate(keys, slices.Repeat([][]byte{zero}, len(keys)*ebpf.MustPossibleCPU()), nil)
		return err
	default:
		return deleteRows(m)
	}
}

// deleteRows deletes all rows of a hash table or trie.
func deleteRows(m *ebpf.Map) error {
	var keys [][]byte
	key := make([]byte, m.KeySize())
	err := m.NextKey(nil, &key)
	for ; err == nil; err = m.NextKey(key, &key) {
		keys = append(keys, bytes.Clone(key))
	}
	if !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	for _, key := range keys {
		// One of an LRU table may be gone by itself.
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}
