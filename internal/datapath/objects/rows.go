// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
)

// Keys and rows of the maps, as bpf/mustang/maps.h and socklb_maps.h define them. Ports are in network order, IPv4
// addresses v4-mapped.
type (
	// Addr is an address of either family: the key of endpoints.
	Addr = tcAddr
	// Tuple is one direction of a connection: the key of connections.
	Tuple = tcTuple
	// ServiceKey is the key of services.
	ServiceKey = tcServiceKey
	// Service is a row of services.
	Service = tcService
	// BackendKey is the key of backends. In look-up tables, the slot is the number of a block of entries.
	BackendKey = tcBackendKey
	// Backend is a row of backends.
	Backend = tcBackend
	// SourceRange is the key of source ranges.
	SourceRange = tcSourceRange
	// ConnectionRow is a row of connections: one direction.
	ConnectionRow = tcCtEntry
	// Slot is a connection.
	Slot = tcCtSlot
	// Endpoint is a row of endpoints.
	Endpoint = tcEndpoint
	// SenderKey is the key of source_guard.
	SenderKey = tcSenderKey
	// Sender is a row of source_guard.
	Sender = tcSender
	// Device is a row of devices, by the index of an uplink, or the index and DeviceGuarded.
	Device = tcDevice
	// SocketScope is a row of namespaces, by cookie.
	SocketScope = socklbSkScope
	// IDs are the last ones given out.
	IDs = tcIdAlloc
)

// SetBackend writes an IPv4 backend's address into the row of its service, if its slot is below FirstBackends.
func (s *Service) SetBackend(slot int, b Backend) {
	if a := netip.AddrFrom16(b.Addr.Bytes); slot < FirstBackends && a.Is4In6() {
		s.FirstAddr[slot], s.FirstPort[slot] = binary.NativeEndian.Uint32(b.Addr.Bytes[12:]), b.Port
	}
}

// UplinkRows returns the rows of uplinks by the index of the device.
func (o *Objects) UplinkRows() (map[int]Device, error) {
	all := make(map[int]Device)
	for row, err := range o.Devices.All() {
		if err != nil {
			return nil, err
		}
		if row.Key < DeviceGuarded {
			all[int(row.Key)] = row.Value
		}
	}
	return all, nil
}

// Names of directories, and the version of their content; flags of rows, and states of slots; kinds of events; the
// number of backends whose addresses a row of services has.
const (
	// DefaultRoot is where a node's own datapath is pinned.
	DefaultRoot = "/sys/fs/bpf/mustang"
	// UnloadedSuffix marks a directory of pins that is being removed. A killed process leaves all of a datapath or none.
	UnloadedSuffix = "-unloaded"
	// LayoutVersion is the version of the layout of pinned maps: the structs in bpf/mustang/maps.h, choice.h, affinity.h,
	// metrics.h, policy.h and socklb_maps.h.
	LayoutVersion = 10

	// CountedServices is the number of services whose packets programs count: COUNTED_SERVICES of bpf/mustang/maps.h.
	CountedServices = 16384

	FirstBackends        = len(Service{}.FirstAddr)
	EventDenied          = uint32(tcEventKindEVENT_DENIED)
	EventDropped         = uint32(tcEventKindEVENT_DROPPED)
	EventMade            = uint32(tcEventKindEVENT_MADE)
	ServiceLoopback      = uint32(tcServiceFlagSERVICE_LOOPBACK)
	ServiceAffinity      = uint32(tcServiceFlagSERVICE_AFFINITY)
	ServiceNodePort      = uint32(tcServiceFlagSERVICE_NODE_PORT)
	ServiceExternal      = uint32(tcServiceFlagSERVICE_EXTERNAL)
	ServiceInternalLocal = uint32(tcServiceFlagSERVICE_INTERNAL_LOCAL)
	ServiceExternalLocal = uint32(tcServiceFlagSERVICE_EXTERNAL_LOCAL)
	ServiceDSRIPIP       = uint32(tcServiceFlagSERVICE_DSR_IPIP)
	ServiceSourceRanges  = uint32(tcServiceFlagSERVICE_SOURCE_RANGES)
	ServiceReset         = uint32(tcServiceFlagSERVICE_RESET)
	BackendLocal         = uint8(tcBackendFlagBACKEND_LOCAL)
	BackendSourceRange   = uint8(tcBackendFlagBACKEND_SOURCE_RANGE)
	ConnectionForward    = uint32(tcCtFlagCT_FORWARD)
	EndpointEgress       = uint32(tcEndpointFlagENDPOINT_EGRESS)
	EndpointPeer         = uint32(tcEndpointFlagENDPOINT_PEER)
	EndpointL3           = uint32(tcEndpointFlagENDPOINT_L3)
	EndpointOnHost       = uint32(tcEndpointFlagENDPOINT_ON_HOST)
	DeviceGuarded        = uint64(tcDeviceRoleDEVICE_GUARDED) << 32
	RemoteTunnel         = uint32(tcRemoteFlagREMOTE_TUNNEL)
	RemoteV6             = uint32(tcRemoteFlagREMOTE_V6)
	SenderUnguarded      = uint16(tcSenderFlagSENDER_UNGUARDED)
	SenderDHCP           = uint16(tcSenderFlagSENDER_DHCP)
	SenderAlone          = uint16(tcSenderFlagSENDER_ALONE)
	SenderSwitched       = uint16(tcSenderFlagSENDER_SWITCHED)
	SenderRouter         = uint16(tcSenderFlagSENDER_ROUTER)
	NamespaceHost        = uint32(socklbNamespaceFlagNAMESPACE_HOST)
	NamespacePod         = uint32(socklbNamespaceFlagNAMESPACE_POD)
	SlotSYN              = uint32(tcCtStateCT_SYN)
	SlotOpen             = uint32(tcCtStateCT_OPEN)
	SlotClosed           = uint32(tcCtStateCT_CLOSED)
	SlotUDP              = uint32(tcCtStateCT_UDP)
	SlotReplied          = uint32(tcCtStateCT_UDP_REPLIED)
	NamespaceSockets     = uint32(socklbNamespaceFlagNAMESPACE_SOCKETS)
)

// CountsRow returns the row of the service's counts: counts_of() of bpf/mustang/maps.h. Services whose ids differ by
// CountedServices have the same one.
func (s *Service) CountsRow() uint32 { return 1 + (s.Id-1)%CountedServices }

// Traffic is a number of packets, as the kernel carries them, and the bytes of their frames.
type Traffic struct{ Packets, Bytes uint64 }

// CountsOf returns the translated traffic of the services of a row: to backends, and back.
func (o *Objects) CountsOf(row uint32) (to, back Traffic, err error) {
	cpus, _, err := o.serviceCounts.Get(row)
	for _, cpu := range cpus {
		to = Traffic{to.Packets + cpu.Packets[0], to.Bytes + cpu.Bytes[0]}
		back = Traffic{back.Packets + cpu.Packets[1], back.Bytes + cpu.Bytes[1]}
	}
	return to, back, err
}

// ClearCounts sets rows to zero.
func (o *Objects) ClearCounts(rows []uint32) error {
	zero := make([]tcServiceCounts, ebpf.MustPossibleCPU())
	for _, row := range rows {
		if err := o.serviceCounts.Map.Put(row, zero); err != nil {
			return fmt.Errorf("write map %q: %w", tcMapServiceCounts, err)
		}
	}
	return nil
}
