// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// socketMaps are the pinned maps of socket translation alone. Services, backends and counters are those of all programs.
type socketMaps struct {
	namespaces, sockets, talks *ebpf.Map
}

// slots are where the maps go, by name.
func (m *socketMaps) slots() map[string]**ebpf.Map {
	return map[string]**ebpf.Map{
		sockMapNamespaces: &m.namespaces,
		sockMapSockets:    &m.sockets,
		sockMapTalks:      &m.talks,
	}
}

// socketSizes are the maps' sizes. Each endpoint is in one namespace, and hosts are few.
func (o Options) socketSizes() map[string]uint32 {
	const hosts = 4096
	sizes := o.sizes()
	return map[string]uint32{
		sockMapNamespaces: sizes[mustangMapEndpoints] + hosts,
		sockMapSockets:    0, // as many as there are sockets
		sockMapTalks:      max(sizes[mustangMapConnections]/2, 1),
	}
}

// pinnedSocketMaps opens the pinned maps, and creates those that are missing if create is set. The caller has the lock
// then.
func pinnedSocketMaps(l layout, sizes map[string]uint32, create bool) (_ *socketMaps, err error) {
	spec, err := loadSock()
	if err != nil {
		return nil, fmt.Errorf("read embedded object: %w", err)
	}
	maps := &socketMaps{}
	defer func() {
		if err != nil {
			_ = maps.close()
		}
	}()
	for name, slot := range maps.slots() {
		want := spec.Maps[name]
		want.MaxEntries = sizes[name]
		if *slot, err = pinnedMap(l, want, create); err != nil {
			return nil, err
		}
	}
	return maps, nil
}

func (m *socketMaps) close() error {
	var errs []error
	for _, slot := range m.slots() {
		if *slot != nil {
			errs = append(errs, (*slot).Close())
		}
	}
	return errors.Join(errs...)
}

// socketCollection loads the programs of sockets over the pinned maps.
func (d *Datapath) socketCollection() (*ebpf.Collection, error) {
	spec, err := loadSock()
	if err != nil {
		return nil, fmt.Errorf("read embedded object: %w", err)
	}
	pinned := map[string]*ebpf.Map{
		sockMapServices: d.maps.Services,
		sockMapBackends: d.maps.Backends,
		sockMapMetrics:  d.maps.Metrics,
	}
	for name, slot := range d.sock.slots() {
		pinned[name] = *slot
	}
	// The object names all maps that its headers do, and no program uses the others.
	for _, name := range []string{sockMapConnections, sockMapEndpoints, sockMapFragments, sockMapState} {
		delete(spec.Maps, name)
	}
	for name, m := range pinned {
		spec.Maps[name].MaxEntries = m.MaxEntries()
	}
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: pinned})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return nil, &UnsupportedError{Feature: "way to end sockets by BPF, or no type information", Kernel: "6.5", Err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("load socket programs: %w", err)
	}
	return collection, nil
}
