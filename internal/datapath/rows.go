// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"math/bits"
	"net/netip"
	"slices"
	"time"

	"mustang/internal/datapath/objects"
	"mustang/internal/service"
)

// The objects are for little-endian machines only, so network order is the opposite of theirs.

func swapPort(port uint16) uint16 { return bits.ReverseBytes16(port) }

func encodeAddr(a netip.Addr) objects.Addr { return objects.Addr{Bytes: a.As16()} }

func decodeAddr(a objects.Addr) netip.Addr { return netip.AddrFrom16(a.Bytes).Unmap() }

func decodeAddrPort(a objects.Addr, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(decodeAddr(a), swapPort(port))
}

func serviceKey(frontend netip.AddrPort, p service.Protocol) objects.ServiceKey {
	return objects.ServiceKey{Addr: encodeAddr(frontend.Addr()), Port: swapPort(frontend.Port()), Proto: uint8(p)}
}

// encodeService returns the value of the service's row. Its backends are in order.
func encodeService(s service.Service) objects.Service {
	first, local := s.LocalServing()
	all, near := tableEntries(s)
	row := objects.Service{
		Id: s.ID, Revision: s.Revision, Count: uint32(len(s.Serving())), Total: uint32(len(s.Backends)), Table: uint32(all),
		Local: uint32(len(local)), LocalFirst: uint32(first), LocalTable: uint32(near), AffinityTimeout: uint32(s.Affinity / time.Second),
		Owner: uint8(s.Owner), Choice: uint8(s.Choice), OnRemove: uint8(s.OnRemove), HealthCheckPort: s.HealthCheckPort,
		Ranges: uint16(len(s.SourceRanges)), Tag: new(objects.Filter).Tag(serviceKey(s.Frontend, s.Protocol)),
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
		{objects.ServiceSourceRanges, len(s.SourceRanges) > 0 && !slices.ContainsFunc(s.SourceRanges, isEveryone)},
	} {
		if f.set {
			row.Flags |= f.flag
		}
	}
	return row
}

// decodeService returns the service of one row, without its backends.
func decodeService(key objects.ServiceKey, row objects.Service) service.Service {
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
		Frontend: decodeAddrPort(key.Addr, key.Port), Protocol: service.Protocol(key.Proto),
		Choice: service.Choice(row.Choice), OnRemove: service.OnRemove(row.OnRemove), HealthCheckPort: row.HealthCheckPort,
		Affinity:       time.Duration(row.AffinityTimeout) * time.Second,
		NodePort:       row.Flags&objects.ServiceNodePort != 0,
		External:       row.Flags&objects.ServiceExternal != 0,
		InternalPolicy: policy(objects.ServiceInternalLocal),
		ExternalPolicy: policy(objects.ServiceExternalLocal),
	}
}

func encodeBackend(b service.Backend) objects.Backend {
	row := objects.Backend{
		Addr: encodeAddr(b.Addr.Addr()), Port: swapPort(b.Addr.Port()), Weight: b.Weight, State: uint8(b.State),
	}
	if b.Local {
		row.Flags = objects.BackendLocal
	}
	return row
}

func decodeBackend(row objects.Backend) service.Backend {
	return service.Backend{
		Addr: decodeAddrPort(row.Addr, row.Port), State: service.State(row.State), Weight: row.Weight,
		Local: row.Flags&objects.BackendLocal != 0,
	}
}

// isEveryone reports whether a range has all addresses of its family.
func isEveryone(r netip.Prefix) bool { return r.Bits() == 0 }

// sourceRangeKey returns the key of a source range of a revision.
func sourceRangeKey(revision uint32, r netip.Prefix) objects.SourceRange {
	length := 32 + r.Bits()
	if r.Addr().Is4() {
		length += 128 - 32
	}
	return objects.SourceRange{Length: uint32(length), Revision: revision, Addr: encodeAddr(r.Addr())}
}

// encodeRange returns the row of backends that tells user space of a source range.
func encodeRange(r netip.Prefix) objects.Backend {
	return objects.Backend{Addr: encodeAddr(r.Addr()), Weight: uint16(r.Bits()), Flags: objects.BackendSourceRange}
}

func decodeRange(row objects.Backend) netip.Prefix {
	return netip.PrefixFrom(decodeAddr(row.Addr), int(row.Weight))
}

// reverse returns the tuple of the replies.
func reverse(t objects.Tuple) objects.Tuple {
	t.Saddr, t.Daddr = t.Daddr, t.Saddr
	t.Sport, t.Dport = t.Dport, t.Sport
	return t
}

func encodeEndpoint(e Endpoint) (objects.Addr, objects.Endpoint) {
	value := objects.Endpoint{Id: e.ID, Segment: e.segment, Netns: e.netns, Owner: uint8(e.Owner)}
	value.Path.Ifindex, value.Path.Flags = uint32(e.IfIndex), e.flags
	copy(value.Path.PodMac[:], e.PodMAC)
	copy(value.Path.NodeMac[:], e.NodeMAC)
	return encodeAddr(e.IP), value
}

func decodeEndpoint(key objects.Addr, value objects.Endpoint) Endpoint {
	e := decodeEndpointPlace(key, value)
	e.PodMAC, e.NodeMAC = bytes.Clone(value.Path.PodMac[:]), bytes.Clone(value.Path.NodeMac[:])
	return e
}

// decodeEndpointPlace is decodeEndpoint without the MAC addresses, which take allocations.
func decodeEndpointPlace(key objects.Addr, value objects.Endpoint) Endpoint {
	return Endpoint{
		ID:      value.Id,
		IP:      decodeAddr(key),
		Owner:   service.Owner(value.Owner),
		Host:    value.Path.Flags&objects.EndpointEgress != 0,
		IfIndex: int(value.Path.Ifindex),
		flags:   value.Path.Flags,
		segment: value.Segment,
		netns:   value.Netns,
	}
}

// decodeScope returns the kind as which an owner has registered the namespace of a row; 0 if it has not.
func decodeScope(row objects.SocketScope, owner service.Owner) ScopeKind {
	switch bit := uint8(1) << owner; {
	case row.HostOwners&bit != 0:
		return HostScope
	case row.PodOwners&bit != 0:
		return PodScope
	}
	return 0
}

// encodeScope stores the kind in a row, with the flags that follow from all owners' kinds.
func encodeScope(row *objects.SocketScope, owner service.Owner, kind ScopeKind) {
	row.HostOwners &^= 1 << owner
	row.PodOwners &^= 1 << owner
	row.Flags &= objects.NamespacePod
	switch kind {
	case HostScope:
		row.HostOwners |= 1 << owner
	case PodScope:
		row.PodOwners |= 1 << owner
	}
	if row.HostOwners != 0 {
		row.Flags |= objects.NamespaceHost
	}
	if row.PodOwners != 0 {
		row.Flags |= objects.NamespaceSockets
	}
}
