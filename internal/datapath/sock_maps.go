// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// privateMaps are the maps of socket translation that only its programs use.
type privateMaps struct {
	sockets, talks *ebpf.Map
}

func (m *privateMaps) slots() map[string]**ebpf.Map {
	return map[string]**ebpf.Map{sockMapSockets: &m.sockets, sockMapTalks: &m.talks}
}

// privateMaps opens them, and creates those that are missing, as large as the others' sizes suggest. The caller has the
// lock.
func (d *Datapath) privateMaps() (*privateMaps, error) {
	p := pinner{layout: d.layout, load: loadSock, sizes: map[string]uint32{
		sockMapSockets: 0, // as many as there are sockets
		sockMapTalks:   max(d.maps.Connections.MaxEntries()/2, 1),
	}}
	maps := &privateMaps{}
	return maps, p.open(maps.slots())
}

// socketCollection loads the programs of sockets over the pinned maps.
func (d *Datapath) socketCollection() (*ebpf.Collection, error) {
	spec, err := loadSock()
	if err != nil {
		return nil, fmt.Errorf("read embedded object: %w", err)
	}
	if err := d.openTables(nil); err != nil {
		return nil, err
	}
	private, err := d.privateMaps()
	if err != nil {
		return nil, err
	}
	defer func() { _ = closeMaps(private.slots()) }()
	pinned := replacements(private.slots())
	pinned[sockMapServices] = d.maps.Services
	pinned[sockMapBackends] = d.maps.Backends
	pinned[sockMapMetrics] = d.maps.Metrics
	pinned[sockMapNamespaces] = d.namespaces
	for name := range spec.Maps {
		// The object names all maps that its headers do, and no program uses the others.
		if _, used := pinned[name]; !used && shapes()[name] != (shape{}) {
			delete(spec.Maps, name)
		}
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
