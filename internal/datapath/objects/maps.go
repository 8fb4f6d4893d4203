// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/cilium/ebpf"
)

// Sizes are the numbers of rows that maps are created with. Zero means the default.
type Sizes struct {
	// Services counts rows: a service of protocol any takes two. 131072 by default.
	Services uint32
	// Backends counts the backends of all services. A service that changes holds its old and its new backends until the
	// programs have left the old ones. 524288 by default.
	Backends uint32
	// Tables counts rows of 64 entries of the look-up tables of services with choice maglev or with weights: 16 for one of 2
	// to 6 backends, 64 for up to 25. As with backends, a service that changes holds two tables for a while. 262144 by default.
	Tables uint32
	// SourceRanges counts the source ranges of all services, which are counted among the backends too. 65536 by default.
	SourceRanges uint32
	// Connections counts connections, which take about 500 bytes each, at once. By default one for each 128 KiB of the
	// machine's memory, between 8192 and 1048576. As many backends are remembered of unconnected datagram sockets with more than eight.
	Connections uint32
	// Endpoints counts addresses of pods. 16384 by default.
	Endpoints uint32
}

// byName returns the size of each map.
func (s Sizes) byName() map[string]uint32 {
	endpoints := cmp.Or(s.Endpoints, 16384)
	connections := s.connections()
	return map[string]uint32{
		tcMapServices:       cmp.Or(s.Services, 131072),
		tcMapServiceAddrs:   cmp.Or(s.Services, 131072),
		tcMapBackends:       cmp.Or(s.Backends, 524288),
		tcMapBackendLut:     cmp.Or(s.Tables, 262144),
		tcMapSourceRanges:   cmp.Or(s.SourceRanges, 65536),
		tcMapConnections:    2*connections + 1024, // deleted rows are free a moment later
		tcMapSlots:          connections,
		tcMapAffinities:     min(connections, 65536),
		tcMapEndpoints:      endpoints,
		tcMapFragments:      8192,
		tcMapMetrics:        1,
		tcMapNodeState:      1,
		tcMapUplinks:        256,
		tcMapNodeAddresses:  4096,
		tcMapGuardedDevices: 4096,
		tcMapServiceCounts:  CountedServices + 1,
		tcMapEvents:         1 << 19,
		tcMapPolicySettings: 3,
		tcMapIdentities:     524288,
		tcMapVerdicts:       524288,
		tcMapPolicyPorts:    131072,
		tcMapPolicyNumbers:  131072,
		socklbMapNamespaces: endpoints + 4096, // an endpoint is in one namespace, and hosts are few
		tcMapSourceGuard:    endpoints,
	}
}

// format is the type and row sizes that a pinned map must have. The object holds the same, but takes longer to read than all
// else that opens a datapath; a test compares the two.
type format struct {
	kind       ebpf.MapType
	key, value uintptr
}

// formats returns those of all pinned maps, by name.
func formats() map[string]format {
	const number, cookie = unsafe.Sizeof(uint32(0)), unsafe.Sizeof(uint64(0))
	return map[string]format{
		tcMapServices:        {ebpf.Hash, unsafe.Sizeof(tcServiceKey{}), unsafe.Sizeof(tcService{})},
		tcMapServiceAddrs:    {ebpf.Hash, unsafe.Sizeof(tcAddr{}), number},
		tcMapBackends:        {ebpf.Hash, unsafe.Sizeof(tcBackendKey{}), unsafe.Sizeof(tcBackend{})},
		tcMapBackendLut:      {ebpf.Hash, unsafe.Sizeof(tcBackendKey{}), unsafe.Sizeof([64]uint16{})},
		tcMapSourceRanges:    {ebpf.LPMTrie, unsafe.Sizeof(tcSourceRange{}), unsafe.Sizeof(uint8(0))},
		tcMapAffinities:      {ebpf.LRUHash, unsafe.Sizeof(tcAffinityKey{}), unsafe.Sizeof(tcAffinity{})},
		tcMapConnections:     {ebpf.Hash, unsafe.Sizeof(tcTuple{}), unsafe.Sizeof(tcCtEntry{})},
		tcMapSlots:           {ebpf.Array, number, unsafe.Sizeof(tcCtSlot{})},
		tcMapEndpoints:       {ebpf.Hash, unsafe.Sizeof(tcAddr{}), unsafe.Sizeof(tcEndpoint{})},
		tcMapFragments:       {ebpf.LRUHash, unsafe.Sizeof(tcFragmentKey{}), unsafe.Sizeof(tcPorts{})},
		tcMapMetrics:         {ebpf.PerCPUArray, number, unsafe.Sizeof(tcMetrics{})},
		tcMapNodeState:       {ebpf.Array, number, unsafe.Sizeof(tcNodeState{})},
		tcMapUplinks:         {ebpf.Hash, number, unsafe.Sizeof(tcUplink{})},
		tcMapGuardedDevices:  {ebpf.Hash, number, number},
		tcMapServiceCounts:   {ebpf.PerCPUArray, number, unsafe.Sizeof(tcServiceCounts{})},
		tcMapEvents:          {ebpf.RingBuf, 0, 0},
		tcMapNodeAddresses:   {ebpf.Hash, unsafe.Sizeof(tcAddr{}), number},
		tcMapPolicySettings:  {ebpf.Array, number, unsafe.Sizeof(tcPolicySettings{})},
		tcMapIdentities:      {ebpf.Hash, unsafe.Sizeof(tcPrefix{}), number},
		tcMapVerdicts:        {ebpf.Hash, unsafe.Sizeof(tcVerdictKey{}), unsafe.Sizeof(tcVerdictRow{})},
		tcMapPolicyPorts:     {ebpf.Hash, unsafe.Sizeof(tcPortKey{}), unsafe.Sizeof(tcPortRow{})},
		tcMapPolicyNumbers:   {ebpf.Hash, unsafe.Sizeof(tcContentDigest{}), number},
		socklbMapNamespaces:  {ebpf.Hash, cookie, unsafe.Sizeof(socklbSkScope{})},
		socklbMapSockets:     {ebpf.SkStorage, number, unsafe.Sizeof(socklbSkService{})},
		socklbMapUdpBackends: {ebpf.SkStorage, number, unsafe.Sizeof(socklbSkUdpBackends{})},
		socklbMapSkRevnat:    {ebpf.LRUHash, unsafe.Sizeof(socklbSkRevnatKey{}), unsafe.Sizeof(socklbAddrPort{})},
		tcMapSourceGuard:     {ebpf.Hash, unsafe.Sizeof(tcSenderKey{}), unsafe.Sizeof(tcSender{})},
	}
}

// pinner opens the pinned maps of one object, and creates those that are missing if sizes are given. The caller then has
// the lock.
type pinner struct {
	layout layout
	sizes  map[string]uint32
	load   func() (*ebpf.CollectionSpec, error)
	spec   *ebpf.CollectionSpec // read when it is needed
}

// open opens each map into its slot, and none on error.
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
	want := formats()[name]
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
	if name == tcMapNodeState { // before it is pinned
		err = (&NodeState{m}).init(p.sizes[tcMapSlots])
	}
	if err == nil {
		err = m.Pin(p.layout.mapPin(name))
	}
	if err != nil {
		_ = m.Close()
		return nil, fmt.Errorf("pin map %q: %w", name, err)
	}
	return m, nil
}

func closeMaps(slots map[string]**ebpf.Map) error {
	var errs []error
	for _, slot := range slots {
		errs = append(errs, (*slot).Close()) // does nothing for a nil map
	}
	return errors.Join(errs...)
}

// slots returns where the maps of packet translation go, by name.
func slots(maps *tcMaps) map[string]**ebpf.Map {
	return map[string]**ebpf.Map{
		tcMapServices:     &maps.Services,
		tcMapServiceAddrs: &maps.ServiceAddrs,
		tcMapBackends:     &maps.Backends,
		tcMapBackendLut:   &maps.BackendLut,
		tcMapSourceRanges: &maps.SourceRanges,
		tcMapAffinities:   &maps.Affinities,
		tcMapConnections:  &maps.Connections,
		tcMapEndpoints:    &maps.Endpoints,
		tcMapSourceGuard:  &maps.SourceGuard,
		tcMapSlots:        &maps.Slots,
		tcMapFragments:    &maps.Fragments,
		tcMapMetrics:      &maps.Metrics,
		tcMapNodeState:    &maps.NodeState,
		tcMapUplinks:      &maps.Uplinks,

		tcMapNodeAddresses:  &maps.NodeAddresses,
		tcMapGuardedDevices: &maps.GuardedDevices,
		tcMapServiceCounts:  &maps.ServiceCounts,
		tcMapEvents:         &maps.Events,

		tcMapPolicySettings: &maps.PolicySettings,
		tcMapIdentities:     &maps.Identities,
		tcMapVerdicts:       &maps.Verdicts,
		tcMapPolicyPorts:    &maps.PolicyPorts,
		tcMapPolicyNumbers:  &maps.PolicyNumbers,
	}
}

// replacements returns the maps that a collection is to use, by name.
func replacements(slots map[string]**ebpf.Map) map[string]*ebpf.Map {
	maps := make(map[string]*ebpf.Map, len(slots))
	for name, slot := range slots {
		maps[name] = *slot
	}
	return maps
}

// hasTables reports whether all maps of packet translation are pinned.
func (l layout) hasTables() bool {
	for name := range slots(&tcMaps{}) {
		if _, err := os.Lstat(l.mapPin(name)); err != nil {
			return false
		}
	}
	return true
}
