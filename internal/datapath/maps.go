// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
)

// sizes are the maps whose size the caller gives, with the defaults.
func (o Options) sizes() map[string]uint32 {
	or := func(n, fallback uint32) uint32 {
		if n == 0 {
			return fallback
		}
		return n
	}
	return map[string]uint32{
		mustangMapServices:    or(o.MaxServices, 131072),
		mustangMapBackends:    or(o.MaxBackends, 524288),
		mustangMapConnections: or(o.MaxConnections, 131072),
		mustangMapEndpoints:   or(o.MaxEndpoints, 16384),
		mustangMapFragments:   8192,
		mustangMapMetrics:     1,
		mustangMapState:       1,
	}
}

// pinnedMaps opens the pinned maps, and creates those that are missing if create is set. The caller has the lock then.
func pinnedMaps(l layout, sizes map[string]uint32, create bool) (_ *mustangMaps, err error) {
	spec, err := loadMustang()
	if err != nil {
		return nil, fmt.Errorf("read embedded object: %w", err)
	}
	var maps mustangMaps
	defer func() {
		if err != nil {
			_ = maps.Close()
		}
	}()
	for name, slot := range map[string]**ebpf.Map{
		mustangMapServices:    &maps.Services,
		mustangMapBackends:    &maps.Backends,
		mustangMapConnections: &maps.Connections,
		mustangMapEndpoints:   &maps.Endpoints,
		mustangMapFragments:   &maps.Fragments,
		mustangMapMetrics:     &maps.Metrics,
		mustangMapState:       &maps.State,
	} {
		want := spec.Maps[name]
		want.MaxEntries = sizes[name]
		if *slot, err = pinnedMap(l, want, create); err != nil {
			return nil, err
		}
	}
	return &maps, nil
}

func pinnedMap(l layout, want *ebpf.MapSpec, create bool) (*ebpf.Map, error) {
	path := l.mapPin(want.Name)
	m, err := ebpf.LoadPinnedMap(path, nil)
	switch {
	case err == nil:
		if m.Type() != want.Type || m.KeySize() != want.KeySize || m.ValueSize() != want.ValueSize {
			_ = m.Close()
			return nil, &LayoutError{Root: l.root, Found: "unknown", Want: fmt.Sprintf("v%d", LayoutVersion)}
		}
		return m, nil
	case !errors.Is(err, os.ErrNotExist) || !create:
		return nil, fmt.Errorf("open map: %w", err)
	}
	m, err = ebpf.NewMap(want)
	if err != nil {
		return nil, fmt.Errorf("create map %q: %w", want.Name, err)
	}
	if err := m.Pin(path); err != nil {
		_ = m.Close()
		return nil, fmt.Errorf("pin map %q: %w", want.Name, err)
	}
	return m, nil
}

// replacements names the maps for a collection that is to use them.
func replacements(m *mustangMaps) map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		mustangMapServices:    m.Services,
		mustangMapBackends:    m.Backends,
		mustangMapConnections: m.Connections,
		mustangMapEndpoints:   m.Endpoints,
		mustangMapFragments:   m.Fragments,
		mustangMapMetrics:     m.Metrics,
		mustangMapState:       m.State,
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
