// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"os"
	"slices"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Sizes are the numbers of rows that maps are created with. Zero means the default.
type Sizes struct {
	// Services counts rows: a service of protocol any takes two. 131072 by default.
	Services uint32
	// Backends counts the backends of all services. A service that changes holds its old and its new backends until the
	// programs have left the old ones. 524288 by default.
	Backends uint32
	// Tables counts rows of 64 entries of the look-up tables of services with maglev or weights: 16 for one of 2 to 6
	// backends, 64 for up to 25. As with backends, a service that changes holds two tables for a while. 262144 by default.
	Tables uint32
	// SourceRanges counts the source ranges of all services, which are counted among the backends too. 65536 by default.
	SourceRanges uint32
	// Connections counts connections, which take about 500 bytes each, at once. By default one for each 128 KiB of the
	// machine's memory, between 8192 and 1048576. As many backends are remembered of unconnected datagram sockets with
	// more than eight.
	Connections uint32
	// Endpoints counts addresses of pods. 16384 by default.
	Endpoints uint32
	// PolicyRows counts verdicts of network policies, and the addresses that they name. A quarter is the number of rows of
	// ports, and of numbers of rules. Each change of policies reads all rows. 524288 by default.
	PolicyRows uint32
}

// Validate returns an error if connections are neither 0 nor between 1024 and 16777216.
func (s Sizes) Validate() error {
	const least, most = 1 << 10, 1 << 24
	if s.Connections != 0 && (s.Connections < least || s.Connections > most) {
		return fmt.Errorf("%d is not between %d and %d, and not 0 (by memory)", s.Connections, least, most)
	}
	return nil
}

// connections returns the number of connections: the configured size, or else a power of two by the machine's memory.
func (s Sizes) connections() uint32 {
	if s.Connections != 0 {
		return s.Connections
	}
	const share, least, most = 128 << 10, 8192, 1 << 20
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return least
	}
	n := uint64(info.Totalram) * uint64(info.Unit) / share
	return uint32(min(max(1<<(bits.Len64(n)-1), least), most))
}

// format is the type and row sizes that a pinned map must have, and its number of rows at creation. The object stores
// the same, but reading it takes longer than all other steps of Open; a test compares the two.
type format struct {
	kind       ebpf.MapType
	key, value uintptr
	size       uint32
}

func (s Sizes) formats() map[string]format {
	const number, cookie = unsafe.Sizeof(uint32(0)), unsafe.Sizeof(uint64(0))
	services, endpoints, connections := cmp.Or(s.Services, 131072), cmp.Or(s.Endpoints, 16384), s.connections()
	policyRows := cmp.Or(s.PolicyRows, 524288)
	return map[string]format{
		tcMapServices:     {ebpf.Hash, unsafe.Sizeof(tcServiceKey{}), unsafe.Sizeof(tcService{}), services},
		tcMapServiceAddrs: {ebpf.Hash, unsafe.Sizeof(tcAddr{}), number, services},
		tcMapBackends:     {ebpf.Hash, unsafe.Sizeof(tcBackendKey{}), unsafe.Sizeof(tcBackend{}), cmp.Or(s.Backends, 524288)},
		tcMapBackendLut:   {ebpf.Hash, unsafe.Sizeof(tcBackendKey{}), unsafe.Sizeof([64]uint16{}), cmp.Or(s.Tables, 262144)},
		tcMapSourceRanges: {ebpf.LPMTrie, unsafe.Sizeof(tcSourceRange{}), unsafe.Sizeof(uint8(0)),
			cmp.Or(s.SourceRanges, 65536)},
		tcMapAffinities: {ebpf.LRUHash, unsafe.Sizeof(tcAffinityKey{}), unsafe.Sizeof(tcAffinity{}), min(connections, 65536)},
		// Deleted rows are free a moment later.
		tcMapConnections:    {ebpf.Hash, unsafe.Sizeof(tcTuple{}), unsafe.Sizeof(tcCtEntry{}), 2*connections + 1024},
		tcMapSlots:          {ebpf.Array, number, unsafe.Sizeof(tcCtSlot{}), connections},
		tcMapEndpoints:      {ebpf.Hash, unsafe.Sizeof(tcAddr{}), unsafe.Sizeof(tcEndpoint{}), endpoints},
		tcMapSourceGuard:    {ebpf.Hash, unsafe.Sizeof(tcSenderKey{}), unsafe.Sizeof(tcSender{}), endpoints},
		tcMapFragments:      {ebpf.LRUHash, unsafe.Sizeof(tcFragmentKey{}), unsafe.Sizeof(tcPorts{}), 8192},
		tcMapMetrics:        {ebpf.PerCPUArray, number, unsafe.Sizeof(tcMetrics{}), 1},
		tcMapNodeState:      {ebpf.Array, number, unsafe.Sizeof(tcNodeState{}), 1},
		tcMapDevices:        {ebpf.Hash, unsafe.Sizeof(tcDeviceKey{}), unsafe.Sizeof(tcDevice{}), 4352},
		tcMapRemotes:        {ebpf.LPMTrie, unsafe.Sizeof(tcRemoteKey{}), unsafe.Sizeof(tcRemote{}), 16384},
		tcMapServiceCounts:  {ebpf.PerCPUArray, number, unsafe.Sizeof(tcServiceCounts{}), CountedServices + 1},
		tcMapEvents:         {ebpf.RingBuf, 0, 0, 1 << 19},
		tcMapNodeAddresses:  {ebpf.Hash, unsafe.Sizeof(tcAddr{}), number, 4096},
		tcMapPolicySettings: {ebpf.Array, number, unsafe.Sizeof(tcPolicySettings{}), 3},
		tcMapIdentities:     {ebpf.Hash, unsafe.Sizeof(tcPrefix{}), number, policyRows},
		tcMapVerdicts:       {ebpf.Hash, unsafe.Sizeof(tcVerdictKey{}), unsafe.Sizeof(tcVerdictRow{}), policyRows},
		tcMapPolicyPorts:    {ebpf.Hash, unsafe.Sizeof(tcPortKey{}), unsafe.Sizeof(tcPortRow{}), policyRows / 4},
		tcMapPolicyNumbers:  {ebpf.Hash, unsafe.Sizeof(tcContentDigest{}), number, policyRows / 4},
		// An endpoint is in one namespace, and hosts are few.
		socklbMapNamespaces: {ebpf.Hash, cookie, unsafe.Sizeof(socklbSkScope{}), endpoints + 4096},
		// Maps of sockets take as many as there are.
		socklbMapSockets:     {ebpf.SkStorage, number, unsafe.Sizeof(socklbSkService{}), 0},
		socklbMapUdpBackends: {ebpf.SkStorage, number, unsafe.Sizeof(socklbSkUdpBackends{}), 0},
		socklbMapSkRevnat: {
			ebpf.LRUHash, unsafe.Sizeof(socklbSkRevnatKey{}), unsafe.Sizeof(socklbAddrPort{}), connections,
		},
	}
}

// openMaps opens pinned maps by name: with sockets the maps that only socket programs use, else all others. If create
// is set, the caller has the lock, and missing maps are created.
func (l layout) openMaps(sizes Sizes, sockets, create bool) (all map[string]*ebpf.Map, err error) {
	all = make(map[string]*ebpf.Map)
	defer func() {
		if err != nil {
			_ = closeMaps(all)
		}
	}()
	readAll := sync.OnceValues(readSpecs)
	formats := sizes.formats()
	for name, want := range formats {
		if slices.Contains([]string{socklbMapSockets, socklbMapUdpBackends, socklbMapSkRevnat}, name) != sockets {
			continue
		}
		m, err := ebpf.LoadPinnedMap(l.mapPin(name), nil)
		if create && errors.Is(err, os.ErrNotExist) {
			var specs map[string]*ebpf.MapSpec
			if specs, err = readAll(); err == nil {
				specs[name].MaxEntries = want.size
				m, err = l.createMap(specs[name], formats[tcMapSlots].size)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("open map: %w", err)
		}
		all[name] = m
		if m.Type() != want.kind || uintptr(m.KeySize()) != want.key || uintptr(m.ValueSize()) != want.value {
			return nil, &LayoutError{Root: l.root, Found: "unknown", Want: fmt.Sprintf("v%d", LayoutVersion)}
		}
	}
	return all, nil
}

func readSpecs() (map[string]*ebpf.MapSpec, error) {
	tc, err := loadTc()
	socklb, socklbErr := loadSocklb()
	if err := errors.Join(err, socklbErr); err != nil {
		return nil, fmt.Errorf("read embedded objects: %w", err)
	}
	maps.Copy(socklb.Maps, tc.Maps)
	return socklb.Maps, nil
}

func (l layout) createMap(spec *ebpf.MapSpec, slots uint32) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("create map %q: %w", spec.Name, err)
	}
	if spec.Name == tcMapNodeState { // before it is pinned
		err = (&NodeState{m}).init(slots)
	}
	if err == nil {
		err = m.Pin(l.mapPin(spec.Name))
	}
	if err != nil {
		_ = m.Close()
		return nil, fmt.Errorf("pin map %q: %w", spec.Name, err)
	}
	return m, nil
}

func closeMaps(all map[string]*ebpf.Map) (err error) {
	for _, m := range all {
		err = errors.Join(err, m.Close())
	}
	return err
}
