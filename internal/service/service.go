// SPDX-License-Identifier: Apache-2.0

// Package service holds services and their backends as plain values: it parses and validates them, and computes the
// difference between two sets. It makes no system calls.
package service

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// MaxBackends is the maximum number of backends of one service.
const MaxBackends = 4096

// Key identifies a service: no two services have equal keys.
type Key struct {
	Frontend netip.AddrPort
	Protocol Protocol
}

// String formats k for messages: "10.96.0.100:5201/tcp".
func (k Key) String() string { return fmt.Sprintf("%s/%s", k.Frontend, k.Protocol) }

// Policy selects the backends that a client may reach.
type Policy uint8

// The traffic policies, as Kubernetes names them.
const (
	Cluster Policy = iota // all backends
	Local                 // backends on the client's or the receiving node
)

// Service is a frontend, an address and port, that is load-balanced over a set of backends.
type Service struct {
	// ID is assigned by the datapath when the service is stored, and kept for its lifetime; 0 before.
	ID uint32
	// Frontend is the address and port that clients connect to. A loopback address serves only the processes of hosts, by
	// socket translation.
	Frontend netip.AddrPort
	// Protocol is TCP, UDP, or Any for both.
	Protocol Protocol
	// Backends serve the connections, in any order.
	Backends []Backend

	// Owner is the client of the datapath that stored the service.
	Owner Owner `json:",omitzero"`
	// Revision identifies the stored set of backends; 0 before it is stored.
	Revision uint32 `json:"-"`
	// Affinity is how long a client keeps its backend after its last connection; 0 is no session affinity.
	Affinity time.Duration `json:",omitzero"`
	// InternalPolicy applies to clients in the cluster, ExternalPolicy to all others.
	InternalPolicy Policy `json:",omitzero"`
	ExternalPolicy Policy `json:",omitzero"`
	// NodePort marks a frontend that is an address and node port of this node.
	NodePort bool `json:",omitzero"`
	// External marks a frontend that is an external or load-balancer address.
	External bool `json:",omitzero"`
	// SourceRanges are the only clients that are served; none is all clients.
	SourceRanges []netip.Prefix `json:",omitempty"`
}

// Key returns the key of s.
func (s Service) Key() Key { return Key{s.Frontend, s.Protocol} }

// String formats the key of s.
func (s Service) String() string { return s.Key().String() }

// Validate returns an error that names the first invalid field of s.
func (s Service) Validate() error {
	switch s.Protocol {
	case Any, TCP, UDP:
	default:
		return fmt.Errorf("service %s: unknown protocol", s)
	}
	if err := validateAddrPort(s.Frontend); err != nil {
		return fmt.Errorf("service %q: %w", s.Frontend, err)
	}
	if len(s.Backends) > MaxBackends {
		return fmt.Errorf("service %q: %d backends exceed the maximum of %d", s.Frontend, len(s.Backends), MaxBackends)
	}
	backends := sorted(s.Backends)
	for i, b := range backends {
		if err := validateBackend(b.Addr); err != nil {
			return fmt.Errorf("backend %q: %w", b.Addr, err)
		}
		switch {
		case b.State > Quarantined:
			return fmt.Errorf("backend %q: unknown state %d", b.Addr, b.State)
		case b.Addr.Addr().Is4() != s.Frontend.Addr().Is4():
			return fmt.Errorf("backend %q: the address family differs from that of service %q", b.Addr, s.Frontend)
		case b.Addr == s.Frontend:
			return fmt.Errorf("backend %q: equal to the service's own frontend", b.Addr)
		case i > 0 && backends[i-1].Addr == b.Addr:
			return fmt.Errorf("backend %q: duplicate", b.Addr)
		}
	}
	return nil
}

// Equal reports whether s and o serve the same frontend with the same settings and set of backends. IDs, revisions and
// owners are ignored.
func (s Service) Equal(o Service) bool {
	return s.Frontend == o.Frontend && s.Protocol == o.Protocol && s.Affinity == o.Affinity &&
		s.InternalPolicy == o.InternalPolicy && s.ExternalPolicy == o.ExternalPolicy &&
		s.NodePort == o.NodePort && s.External == o.External &&
		slices.Equal(s.SourceRanges, o.SourceRanges) && s.SameBackends(o)
}

// SameBackends reports whether s and o have the same set of backends, in any order.
func (s Service) SameBackends(o Service) bool {
	return len(s.Backends) == len(o.Backends) && slices.Equal(sorted(s.Backends), sorted(o.Backends))
}

// Sorted returns s with its backends in the order of Backend.Compare. It copies those that are not.
func (s Service) Sorted() Service {
	s.Backends = sorted(s.Backends)
	return s
}
