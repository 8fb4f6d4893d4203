// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"unsafe"

	"github.com/cilium/ebpf"
)

// shape is what a pinned map must be like for its rows to be ours. The object says the same, but takes longer to read than
// all the rest of what opens a datapath; a test holds the two together.
type shape struct {
	kind       ebpf.MapType
	key, value uintptr
}

// shapes are those of all maps that are pinned, by name.
func shapes() map[string]shape {
	const number, cookie = unsafe.Sizeof(uint32(0)), unsafe.Sizeof(uint64(0))
	return map[string]shape{
		mustangMapServices:    {ebpf.Hash, unsafe.Sizeof(mustangServiceKey{}), unsafe.Sizeof(mustangService{})},
		mustangMapBackends:    {ebpf.Hash, unsafe.Sizeof(mustangBackendKey{}), unsafe.Sizeof(mustangBackend{})},
		mustangMapConnections: {ebpf.LRUHash, unsafe.Sizeof(mustangTuple{}), unsafe.Sizeof(mustangConnection{})},
		mustangMapEndpoints:   {ebpf.Hash, unsafe.Sizeof(mustangAddr{}), unsafe.Sizeof(mustangEndpoint{})},
		mustangMapConnected:   {ebpf.Hash, unsafe.Sizeof(mustangAddr{}), number},
		mustangMapFragments:   {ebpf.LRUHash, unsafe.Sizeof(mustangFragmentKey{}), unsafe.Sizeof(mustangPorts{})},
		mustangMapMetrics:     {ebpf.PerCPUArray, number, unsafe.Sizeof(mustangMetrics{})},
		mustangMapState:       {ebpf.Array, number, unsafe.Sizeof(mustangState{})},
		sockMapNamespaces:     {ebpf.Hash, cookie, number},
		sockMapSockets:        {ebpf.SkStorage, number, unsafe.Sizeof(sockSocket{})},
		sockMapTalks:          {ebpf.LRUHash, unsafe.Sizeof(sockTalk{}), unsafe.Sizeof(sockEnd{})},
	}
}

// sizes are the maps whose size the caller gives, with the defaults.
func (o Options) sizes() map[string]uint32 {
	or := func(n, fallback uint32) uint32 {
		if n == 0 {
			return fallback
		}
		return n
	}
	endpoints := or(o.MaxEndpoints, 16384)
	return map[string]uint32{
		mustangMapServices:    or(o.MaxServices, 131072),
		mustangMapBackends:    or(o.MaxBackends, 524288),
		mustangMapConnections: or(o.MaxConnections, 131072),
		mustangMapEndpoints:   endpoints,
		mustangMapConnected:   endpoints + 1024, // a row may outlive its pod's, until another pod has the address
		mustangMapFragments:   8192,
		mustangMapMetrics:     1,
		mustangMapState:       1,
		sockMapNamespaces:     endpoints + 4096, // an endpoint is in one namespace, and hosts are few
	}
}

// pinner opens the pinned maps of one object, and creates those that are missing if sizes are given. The caller has the
// lock then.
type pinner struct {
	layout layout
	sizes  map[string]uint32
	load   func() (*ebpf.CollectionSpec, error)
	spec   *ebpf.CollectionSpec // read when it is needed
}

// open opens each map into its slot, and none if that goes wrong.
func (p *pinner) open(slots map[string]**ebpf.Map) (err error) {
	defer func() {
		if err != nil {
			_ = closeMaps(slots)
		}
	}()
	for name, slot := range slots {
		if *slot, err = p.one(name); err != nil {
			return err
		}
	}
	return nil
}

func (p *pinner) one(name string) (*ebpf.Map, error) {
	m, err := ebpf.LoadPinnedMap(p.layout.mapPin(name), nil)
	want := shapes()[name]
	switch {
	case err == nil:
		if m.Type() != want.kind || uintptr(m.KeySize()) != want.key || uintptr(m.ValueSize()) != want.value {
			_ = m.Close()
			return nil, &LayoutError{Root: p.layout.root, Found: "unknown", Want: fmt.Sprintf("v%d", LayoutVersion)}
		}
		return m, nil
	case !errors.Is(err, os.ErrNotExist) || p.sizes == nil:
		return nil, fmt.Errorf("open map: %w", err)
	}
	return p.create(name)
}

func (p *pinner) create(name string) (_ *ebpf.Map, err error) {
	if p.spec == nil {
		if p.spec, err = p.load(); err != nil {
			return nil, fmt.Errorf("read embedded object: %w", err)
		}
	}
	want := p.spec.Maps[name]
	want.MaxEntries = p.sizes[name]
	m, err := ebpf.NewMap(want)
	if err != nil {
		return nil, fmt.Errorf("create map %q: %w", name, err)
	}
	if err := m.Pin(p.layout.mapPin(name)); err != nil {
		_ = m.Close()
		return nil, fmt.Errorf("pin map %q: %w", name, err)
	}
	return m, nil
}

func closeMaps(slots map[string]**ebpf.Map) error {
	var errs []error
	for _, slot := range slots {
		errs = append(errs, (*slot).Close()) // of none, it does nothing
	}
	return errors.Join(errs...)
}

// slots are where the maps for packets go, by name.
func slots(maps *mustangMaps) map[string]**ebpf.Map {
	return map[string]**ebpf.Map{
		mustangMapServices:    &maps.Services,
		mustangMapBackends:    &maps.Backends,
		mustangMapConnections: &maps.Connections,
		mustangMapEndpoints:   &maps.Endpoints,
		mustangMapConnected:   &maps.Connected,
		mustangMapFragments:   &maps.Fragments,
		mustangMapMetrics:     &maps.Metrics,
		mustangMapState:       &maps.State,
	}
}

// replacements names the maps for a collection that is to use them.
func replacements(slots map[string]**ebpf.Map) map[string]*ebpf.Map {
	maps := make(map[string]*ebpf.Map, len(slots))
	for name, slot := range slots {
		maps[name] = *slot
	}
	return maps
}

// row is a row of a map.
type row[K, V any] struct {
	key   K
	value V
}

// batches reads a hash map in steps, which must be larger than what one bucket of it may hold.
func batches[K, V any](m *ebpf.Map, name string, step int) iter.Seq2[row[K, V], error] {
	return func(yield func(row[K, V], error) bool) {
		keys, values := make([]K, step), make([]V, step)
		var cursor ebpf.MapBatchCursor
		for {
			n, err := m.BatchLookup(&cursor, keys, values, nil)
			if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				yield(row[K, V]{}, fmt.Errorf("read map %q: %w", name, err))
				return
			}
			for i := range n {
				if !yield(row[K, V]{keys[i], values[i]}, nil) {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
}

// put stores a row, with a *FullError if there is no room.
func put(m *ebpf.Map, name string, key, value any) error {
	err := m.Update(key, value, ebpf.UpdateAny)
	switch {
	case errors.Is(err, errNoRoom):
		return &FullError{Map: name, Size: m.MaxEntries()}
	case err != nil:
		return fmt.Errorf("write map %q: %w", name, err)
	}
	return nil
}

// remove deletes a row if it is there.
func remove(m *ebpf.Map, name string, key any) error {
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("delete from map %q: %w", name, err)
	}
	return nil
}
