// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// upgradable is the layout that Upgrade reads.
const upgradable = 6

// Rows of layout 6 that differ from those of this build.
type (
	service6 struct {
		ID, Revision, Count, Flags, Total, Local, AffinityTimeout uint32

		Owner    uint8
		Reserved [11]uint8
	}
	connection6 struct {
		To                 tcTuple
		AddrDiff, PortDiff uint32
		Service, Revision  uint32
		Flags              uint32
		Path               tcEpPath
	}
	numbers6 struct {
		LastService, LastRevision, LastEndpoint, Retiring uint32
	}
	filter6 struct {
		Words      [1 << (filterLog - 6)]uint64
		Generation uint64
		Reserved   [7]uint64
	}
)

// closing6 marks a row of layout 6 in whose direction a FIN or RST was seen.
const closing6 = 8

// tables6 are the maps of layout 6. The field Reserved0 of endpoints had a meaning.
type tables6 struct {
	services    *Table[ServiceKey, service6]
	backends    *Table[BackendKey, Backend]
	connections *Table[Tuple, connection6]
	endpoints   *Table[Addr, Endpoint]
	metrics     *Table[uint32, []tcMetrics]
	state       *Table[uint32, numbers6]
	filter      *Table[uint32, filter6]
}

// openTables6 opens the maps of layout 6. Errors: *LayoutError if they have another format.
func openTables6(l layout) (_ *tables6, err error) {
	var maps tcMaps
	opened := map[string]**ebpf.Map{
		tcMapServices: &maps.Services, tcMapBackends: &maps.Backends, tcMapConnections: &maps.Connections,
		tcMapEndpoints: &maps.Endpoints, tcMapMetrics: &maps.Metrics, tcMapState: &maps.State, tcMapFilter: &maps.Filter,
	}
	want := formats()
	want[tcMapServices] = format{ebpf.Hash, unsafe.Sizeof(ServiceKey{}), unsafe.Sizeof(service6{})}
	want[tcMapConnections] = format{ebpf.LRUHash, unsafe.Sizeof(Tuple{}), unsafe.Sizeof(connection6{})}
	want[tcMapFilter] = format{ebpf.Array, unsafe.Sizeof(uint32(0)), unsafe.Sizeof(filter6{})}
	want[tcMapState] = format{ebpf.Array, unsafe.Sizeof(uint32(0)), unsafe.Sizeof(numbers6{})}
	defer func() {
		if err != nil {
			_ = closeMaps(opened)
		}
	}()
	for name, slot := range opened {
		if *slot, err = ebpf.LoadPinnedMap(l.mapPin(name), nil); err != nil {
			return nil, fmt.Errorf("open map: %w", err)
		}
		m := *slot
		if (format{m.Type(), uintptr(m.KeySize()), uintptr(m.ValueSize())}) != want[name] {
			return nil, &LayoutError{Root: l.root, Found: "unknown", Want: fmt.Sprintf("v%d", LayoutVersion)}
		}
	}
	return &tables6{
		services:    &Table[ServiceKey, service6]{maps.Services, tcMapServices},
		backends:    &Table[BackendKey, Backend]{maps.Backends, tcMapBackends},
		connections: &Table[Tuple, connection6]{maps.Connections, tcMapConnections},
		endpoints:   &Table[Addr, Endpoint]{maps.Endpoints, tcMapEndpoints},
		metrics:     &Table[uint32, []tcMetrics]{maps.Metrics, tcMapMetrics},
		state:       &Table[uint32, numbers6]{maps.State, tcMapState},
		filter:      &Table[uint32, filter6]{maps.Filter, tcMapFilter},
	}, nil
}

func (t *tables6) close() error {
	return errors.Join(t.services.Map.Close(), t.backends.Map.Close(), t.connections.Map.Close(), t.endpoints.Map.Close(),
		t.metrics.Map.Close(), t.state.Map.Close(), t.filter.Map.Close())
}

// sizes returns sizes that hold all rows. There is a slot for each row of connections, of which a connection had two: half of
// them stay free for new ones.
func (t *tables6) sizes() Sizes {
	return Sizes{
		Services: t.services.Size(), Backends: t.backends.Size(), Endpoints: t.endpoints.Size(),
		Connections: max(t.connections.Size(), Sizes{}.connections()),
	}
}

// podNamespace returns the cookie of the network namespace of the pod that a link is of.
func (t *tables6) podNamespace(k Link) (uint64, error) {
	for row, err := range t.endpoints.All() {
		if err != nil {
			return 0, err
		}
		if uint64(row.Value.Id) == k.ID {
			return row.Value.Netns, nil
		}
	}
	return 0, fmt.Errorf("link %s has no endpoint: delete it with the command that added it", k)
}

// copyTables copies all but services and connections.
func (m *migration) copyTables() error {
	for row, err := range m.old.endpoints.All() {
		if err != nil {
			return err
		}
		row.Value.Reserved0 = 0
		if err := m.o.addSender(row.Key, &row.Value); err != nil {
			return err
		}
		if err := m.o.Endpoints.Put(row.Key, row.Value); err != nil {
			return err
		}
	}
	for row, err := range m.old.backends.All() {
		if err == nil {
			err = m.o.Backends.Put(row.Key, row.Value)
		}
		if err != nil {
			return err
		}
	}
	state, _, err := m.old.state.Get(0)
	if err != nil {
		return err
	}
	if err := m.o.State.Put(0, State{
		LastService: state.LastService, LastRevision: state.LastRevision, LastEndpoint: state.LastEndpoint, Retiring: state.Retiring,
	}); err != nil {
		return err
	}
	metrics, _, err := m.old.metrics.Get(0)
	if err != nil {
		return err
	}
	return errors.Join(m.o.Metrics.Map.Put(uint32(0), metrics), m.copyFilter(), m.o.Filter.Change())
}

// copyFilter adds the bits of the old filter, of services and of connections.
func (m *migration) copyFilter() error {
	old, _, err := m.old.filter.Get(0)
	if err != nil {
		return err
	}
	return m.o.Filter.edit(func(row *tcFilter) {
		for i, word := range old.Words {
			if word != 0 {
				atomic.OrUint64(&row.Words[i], word)
			}
		}
	})
}

// copyServices copies the services, each in one system call. One of protocol any was two rows, of which a killed command may
// have changed one.
func (m *migration) copyServices() error {
	rows := make(map[ServiceKey]service6)
	for row, err := range m.old.services.All() {
		if err != nil {
			return err
		}
		rows[row.Key] = row.Value
	}
	for key, row := range rows {
		other := key
		other.Proto = map[uint8]uint8{unix.IPPROTO_TCP: unix.IPPROTO_UDP, unix.IPPROTO_UDP: unix.IPPROTO_TCP}[key.Proto]
		if pair, ok := rows[other]; ok && pair.ID == row.ID {
			if pair.Revision > row.Revision {
				row = pair
			}
			key.Proto = 0
		}
		if err := m.o.Filter.Add([]ServiceKey{key}); err != nil {
			return err
		}
		if err := m.o.putService(key, Service{
			Id: row.ID, Revision: row.Revision, Count: uint16(row.Count), Flags: row.Flags, Total: uint16(row.Total), Local: uint16(row.Local),
			AffinityTimeout: row.AffinityTimeout, Owner: row.Owner, Tag: m.o.Filter.Tag(key),
		}); err != nil {
			return err
		}
	}
	return m.o.CountAddresses()
}

// putService stores a service of an earlier layout, whose row had no backends.
func (o *Objects) putService(key ServiceKey, row Service) error {
	for slot := range min(int(row.Total), FirstBackends) {
		b, _, err := o.Backends.Get(BackendKey{Revision: row.Revision, Slot: uint32(slot)})
		if err != nil {
			return err
		}
		row.SetBackend(slot, b)
	}
	return o.Services.Put(key, row)
}
