// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/policy"
	"mustang/internal/service"
)

func encodeEndpoint(e Endpoint) (objects.Addr, objects.Endpoint) {
	value := objects.Endpoint{Id: e.ID, Segment: e.segment, Netns: e.netns, Owner: uint8(e.Owner), Egress: e.sets.Egress,
		Ingress: e.sets.Ingress}
	value.Path.Ifindex, value.Path.Flags = uint32(e.IfIndex), e.flags
	copy(value.Path.PodMac[:], e.PodMAC)
	copy(value.Path.NodeMac[:], e.NodeMAC)
	return rows.EncodeAddr(e.IP), value
}

func decodeEndpoint(key objects.Addr, value objects.Endpoint) Endpoint {
	return Endpoint{
		ID: value.Id, IP: rows.DecodeAddr(key), Owner: service.Owner(value.Owner),
		Host: value.Path.Flags&objects.EndpointOnHost != 0, IfIndex: int(value.Path.Ifindex),
		PodMAC: bytes.Clone(value.Path.PodMac[:]), NodeMAC: bytes.Clone(value.Path.NodeMac[:]),
		flags: value.Path.Flags, segment: value.Segment, netns: value.Netns,
		sets: policy.Sets{Egress: value.Egress, Ingress: value.Ingress},
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
