// SPDX-License-Identifier: Apache-2.0

// Package rows converts between services or addresses, as plain values, with the rows of the datapath's maps. Integers
// that the programs read in network order are swapped: the objects are for little-endian machines only.
package rows

import (
	"bytes"
	"math/bits"
	"net/netip"
	"slices"
	"time"

	"mustang/internal/datapath/objects"
	"mustang/internal/service"
)

// SwapPort turns a port into network order, and back.
func SwapPort(port uint16) uint16 { return bits.ReverseBytes16(port) }

// EncodeAddr returns an address as keys have it: IPv4 as v4-mapped IPv6.
func EncodeAddr(a netip.Addr) objects.Addr { return objects.Addr{Bytes: a.As16()} }

// DecodeAddr reverses EncodeAddr.
func DecodeAddr(a objects.Addr) netip.Addr { return netip.AddrFrom16(a.Bytes).Unmap() }

// EncodeMask returns the bits of an address that a prefix fixes.
func EncodeMask(p netip.Prefix) objects.Addr {
	ones := p.Bits()
	if p.Addr().Is4() {
		ones += 128 - 32
	}
	all := netip.AddrFrom16([16]byte(bytes.Repeat([]byte{0xff}, 16)))
	fixed, _ := all.Prefix(ones)
	return EncodeAddr(fixed.Addr())
}

// DecodePrefix returns the prefix of an address and a mask.
func DecodePrefix(a, mask objects.Addr) netip.Prefix {
	ones := 0
	for _, b := range mask.Bytes {
		ones += bits.OnesCount8(b)
	}
	addr := DecodeAddr(a)
	if addr.Is4() {
		ones -= 128 - 32
	}
	return netip.PrefixFrom(addr, ones)
}

// DecodeAddrPort returns an address and a port of a row.
func DecodeAddrPort(a objects.Addr, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(DecodeAddr(a), SwapPort(port))
}

// ServiceKey returns the key of a service.
func ServiceKey(frontend netip.AddrPort, p service.Protocol) objects.ServiceKey {
	return objects.ServiceKey{Addr: EncodeAddr(frontend.Addr()), Port: SwapPort(frontend.Port()), Proto: uint8(p)}
}

// EncodeService returns the value of the service's row. Its backends are in order.
func EncodeService(s service.Service) objects.Service {
	first, local := s.LocalServing()
	all, near := TableEntries(s)
	row := objects.Service{
		Id: s.ID, Revision: s.Revision, Count: uint16(len(s.Serving())), Total: uint16(len(s.Backends)), Table: uint32(all),
		Local: uint16(len(local)), LocalFirst: uint16(first), LocalTable: uint32(near),
		AffinityTimeout: uint32(s.Affinity / time.Second),
		Owner:           uint8(s.Owner), Choice: uint8(s.Choice), OnRemove: uint8(s.OnRemove),
		HealthCheckPort: s.HealthCheckPort,
		Ranges:          uint16(len(s.SourceRanges)), Tag: new(objects.NodeState).Tag(ServiceKey(s.Frontend, s.Protocol)),
	}
	for _, f := range []struct {
		flag uint32
		set  bool
	}{
		{objects.ServiceLoopback, s.Frontend.Addr().IsLoopback()},
		{objects.ServiceAffinity, s.Affinity > 0},
		{objects.ServiceNodePort, s.NodePort},
		{objects.ServiceExternal, s.External},
		{objects.ServiceDSRIPIP, s.DSR == service.IPIP},
		{objects.ServiceInternalLocal, s.InternalPolicy == service.Local},
		{objects.ServiceExternalLocal, s.ExternalPolicy == service.Local},
		{objects.ServiceReset, s.OnRemove == service.Reset},
		{objects.ServiceSourceRanges, len(s.SourceRanges) > 0 && !slices.ContainsFunc(s.SourceRanges,
			func(r netip.Prefix) bool { return r.Bits() == 0 })},
	} {
		if f.set {
			row.Flags |= f.flag
		}
	}
	for slot, b := range s.Backends[:min(len(s.Backends), objects.FirstBackends)] {
		row.SetBackend(slot, EncodeBackend(b))
	}
	return row
}

// DecodeService returns the service of one row, without its backends.
func DecodeService(key objects.ServiceKey, row objects.Service) service.Service {
	policy := func(flag uint32) service.Policy {
		if row.Flags&flag != 0 {
			return service.Local
		}
		return service.Cluster
	}
	dsr := service.NoDSR
	if row.Flags&objects.ServiceDSRIPIP != 0 {
		dsr = service.IPIP
	}
	return service.Service{
		DSR: dsr,
		ID:  row.Id, Revision: row.Revision, Owner: service.Owner(row.Owner),
		Frontend: DecodeAddrPort(key.Addr, key.Port), Protocol: service.Protocol(key.Proto),
		Choice: service.Choice(row.Choice), OnRemove: service.OnRemove(row.OnRemove), HealthCheckPort: row.HealthCheckPort,
		Affinity:       time.Duration(row.AffinityTimeout) * time.Second,
		NodePort:       row.Flags&objects.ServiceNodePort != 0,
		External:       row.Flags&objects.ServiceExternal != 0,
		InternalPolicy: policy(objects.ServiceInternalLocal),
		ExternalPolicy: policy(objects.ServiceExternalLocal),
	}
}

// EncodeBackend returns the row of a backend.
func EncodeBackend(b service.Backend) objects.Backend {
	row := objects.Backend{
		Addr: EncodeAddr(b.Addr.Addr()), Port: SwapPort(b.Addr.Port()), Weight: b.Weight, State: uint8(b.State),
	}
	if b.Local {
		row.Flags = objects.BackendLocal
	}
	return row
}

// DecodeBackend reverses EncodeBackend.
func DecodeBackend(row objects.Backend) service.Backend {
	return service.Backend{
		Addr: DecodeAddrPort(row.Addr, row.Port), State: service.State(row.State), Weight: row.Weight,
		Local: row.Flags&objects.BackendLocal != 0,
	}
}

// SourceRangeKey returns the key of a source range of a revision.
func SourceRangeKey(revision uint32, r netip.Prefix) objects.SourceRange {
	length := 32 + r.Bits()
	if r.Addr().Is4() {
		length += 128 - 32
	}
	return objects.SourceRange{Length: uint32(length), Revision: revision, Addr: EncodeAddr(r.Addr())}
}

// EncodeRange returns the row of backends that stores a source range for user space.
func EncodeRange(r netip.Prefix) objects.Backend {
	return objects.Backend{Addr: EncodeAddr(r.Addr()), Weight: uint16(r.Bits()), Flags: objects.BackendSourceRange}
}

// DecodeRange reverses EncodeRange.
func DecodeRange(row objects.Backend) netip.Prefix {
	return netip.PrefixFrom(DecodeAddr(row.Addr), int(row.Weight))
}

// Counts are numbers of rows of the maps of services.
type Counts struct {
	Services int
	Backends int // includes the rows of source ranges
	// Blocks are rows of look-up tables.
	Blocks, SourceRanges int
}

// Count returns how many rows a service takes. While it changes, it also takes its previous rows, except in Services.
func Count(s service.Service) Counts {
	services := 1
	if s.Protocol == service.Any {
		services = 2
	}
	all, local := TableEntries(s.Sorted())
	return Counts{services, len(s.Backends) + len(s.SourceRanges), (all + local) / MaglevBlock, len(s.SourceRanges)}
}

// Plus returns the sum of n and factor times more.
func (n Counts) Plus(more Counts, factor int) Counts {
	return Counts{n.Services + factor*more.Services, n.Backends + factor*more.Backends, n.Blocks + factor*more.Blocks,
		n.SourceRanges + factor*more.SourceRanges}
}

// TableEntries returns the lengths of a service's look-up tables: of all backends, and, if a policy is local, of this
// node's backends. The backends are in order.
func TableEntries(s service.Service) (all, local int) {
	all = entries(s.Choice, s.Serving())
	if s.InternalPolicy == service.Local || s.ExternalPolicy == service.Local {
		_, near := s.LocalServing()
		local = entries(s.Choice, near)
	}
	return all, local
}

// entries returns 0 if all backends get equally many connections and other nodes need not choose the same. A hash
// modulo the number of backends then chooses.
func entries(choice service.Choice, serving []service.Backend) int {
	differ := func(b service.Backend) bool { return max(b.Weight, 1) != max(serving[0].Weight, 1) }
	if choice != service.Maglev && !slices.ContainsFunc(serving, differ) {
		return 0
	}
	return maglevEntries(len(serving))
}

// Table returns the rows of a service's look-up tables, one behind the other. The backends are in order.
func Table(s service.Service) [][MaglevBlock]uint16 {
	all, local := TableEntries(s)
	var slots []uint16
	if all > 0 {
		slots = maglevTable(s.Serving())
	}
	if local > 0 {
		first, near := s.LocalServing()
		for _, i := range maglevTable(near) {
			slots = append(slots, uint16(first)+i)
		}
	}
	blocks := make([][MaglevBlock]uint16, len(slots)/MaglevBlock)
	for i := range blocks {
		copy(blocks[i][:], slots[i*MaglevBlock:])
	}
	return blocks
}
