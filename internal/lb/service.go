// SPDX-License-Identifier: Apache-2.0

// Package lb holds services and their backends as plain values: reading them from text, judging them, and turning them
// into the rows of the datapath's tables and back. It touches no kernel.
package lb

import (
	"fmt"
	"net/netip"
	"slices"
)

// MaxBackends is the greatest number of backends of one service.
const MaxBackends = 4096

// Service is an address and port that stands for a set of backends.
type Service struct {
	// ID is given by the datapath and shared by the rows of one service; 0 before it is stored.
	ID uint32
	// Frontend is the address and port that clients connect to. A loopback address stands for that of hosts: only their
	// own processes call it, by socket translation.
	Frontend netip.AddrPort
	// Protocol is TCP, UDP, or Any for both.
	Protocol Protocol
	// Backends are the endpoints that serve it, in any order.
	Backends []netip.AddrPort
}

// String names a service for messages: "10.96.0.100:5201/tcp".
func (s Service) String() string {
	return fmt.Sprintf("%s/%s", s.Frontend, s.Protocol)
}

// Validate returns an error that names the first part of s that cannot be served.
func (s Service) Validate() error {
	switch s.Protocol {
	case Any, TCP, UDP:
	default:
		return fmt.Errorf("service %s: unknown protocol", s)
	}
	if err := validate(s.Frontend); err != nil {
		return fmt.Errorf("service %q: %w", s.Frontend, err)
	}
	switch {
	case len(s.Backends) == 0:
		return fmt.Errorf("service %q: no backend", s.Frontend)
	case len(s.Backends) > MaxBackends:
		return fmt.Errorf("service %q: %d backends, at most %d", s.Frontend, len(s.Backends), MaxBackends)
	}
	seen := make(map[netip.AddrPort]bool, len(s.Backends))
	for _, backend := range s.Backends {
		if err := validateBackend(backend); err != nil {
			return fmt.Errorf("backend %q: %w", backend, err)
		}
		switch {
		case backend.Addr().Is4() != s.Frontend.Addr().Is4():
			return fmt.Errorf("backend %q: not of the family of service %q", backend, s.Frontend)
		case backend == s.Frontend:
			return fmt.Errorf("backend %q: is the service itself", backend)
		case seen[backend]:
			return fmt.Errorf("backend %q: given twice", backend)
		}
		seen[backend] = true
	}
	return nil
}

// SameBackends says whether s and o have the same set of backends.
func (s Service) SameBackends(o Service) bool {
	return slices.Equal(sorted(s.Backends), sorted(o.Backends))
}

// sorted returns a sorted copy.
func sorted(backends []netip.AddrPort) []netip.AddrPort {
	backends = slices.Clone(backends)
	slices.SortFunc(backends, netip.AddrPort.Compare)
	return backends
}
