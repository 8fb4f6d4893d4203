// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Validate returns an error that names the first invalid field of s.
func (s Service) Validate() error {
	if !slices.Contains(Protocols(), s.Protocol) {
		return fmt.Errorf("service %s: unknown protocol", s)
	}
	if err := validateFrontend(s.Frontend); err != nil {
		return fmt.Errorf("service %q: %w", s.Frontend, err)
	}
	if err := cmp.Or(s.validatePlace(), s.validateSettings(), s.validateRanges()); err != nil {
		return fmt.Errorf("service %q: %w", s.Frontend, err)
	}
	return s.validateBackends()
}

func (s Service) validatePlace() error {
	addr := s.Frontend.Addr()
	switch {
	case addr.IsUnspecified() && !s.NodePort:
		return fmt.Errorf("%s is the unspecified address, which only a node port may have", addr)
	case s.NodePort && s.External:
		return errors.New("a frontend is a node port or an external address, not both")
	case addr.IsLoopback() && (s.NodePort || s.External):
		return fmt.Errorf("%s is a loopback address, which no client outside reaches", addr)
	case addr.IsLoopback() && s.Protocol == SCTP:
		return fmt.Errorf("%s is a loopback address, which sockets translate, and no socket translates sctp", addr)
	}
	return nil
}

func (s Service) validateSettings() error {
	switch {
	case s.Choice > Maglev:
		return fmt.Errorf("unknown choice %d", s.Choice)
	case s.InternalPolicy > Local || s.ExternalPolicy > Local:
		return fmt.Errorf("unknown policy %d", max(s.InternalPolicy, s.ExternalPolicy))
	case s.OnRemove > Reset:
		return fmt.Errorf("unknown on-remove %d", s.OnRemove)
	case s.OnRemove == Reset && s.Protocol != TCP && s.Protocol != Any:
		return fmt.Errorf("on-remove %s ends connections of tcp only, not of %s", s.OnRemove, s.Protocol)
	case s.DSR > IPIP:
		return fmt.Errorf("unknown dsr %d", s.DSR)
	case s.DSR != NoDSR && !s.NodePort && !s.External:
		return fmt.Errorf("dsr %s needs a node port or an external address", s.DSR)
	case s.Affinity < 0 || s.Affinity > MaxAffinity || s.Affinity%time.Second != 0:
		return fmt.Errorf("affinity %s is not in whole seconds up to %s", s.Affinity, MaxAffinity)
	case s.HealthCheckPort != 0 && s.ExternalPolicy != Local:
		return fmt.Errorf("health-check port %d needs the external policy local", s.HealthCheckPort)
	case s.HealthCheckPort != 0 && !s.NodePort && !s.External:
		return fmt.Errorf("health-check port %d needs a node port or an external address", s.HealthCheckPort)
	case s.NodePort && s.HealthCheckPort == s.Frontend.Port() && (s.Protocol == TCP || s.Protocol == Any):
		return fmt.Errorf("health-check port %d is the node port itself, which would take the checks", s.HealthCheckPort)
	}
	return nil
}

func (s Service) validateRanges() error {
	if len(s.SourceRanges) > MaxSourceRanges {
		return fmt.Errorf("%d source ranges exceed the maximum of %d", len(s.SourceRanges), MaxSourceRanges)
	}
	ranges := sortedRanges(s.SourceRanges)
	for i, r := range ranges {
		switch {
		case !r.IsValid():
			return errors.New("invalid source range")
		case r != r.Masked():
			return fmt.Errorf("source range %s has host bits; write %s", r, r.Masked())
		case r.Addr().Is4In6():
			return fmt.Errorf("source range %s: write it as IPv4", r)
		case r.Addr().Is4() != s.Frontend.Addr().Is4():
			return fmt.Errorf("source range %s: the address family differs from the frontend's", r)
		case i > 0 && ranges[i-1] == r:
			return fmt.Errorf("source range %s: duplicate", r)
		}
	}
	return nil
}

// CheckBackend returns an error if the service cannot have a backend, regardless of its other backends.
func (s Service) CheckBackend(b Backend) error {
	if err := validateBackend(b.Addr); err != nil {
		return fmt.Errorf("backend %q: %w", b.Addr, err)
	}
	switch {
	case b.State > Quarantined:
		return fmt.Errorf("backend %q: unknown state %d", b.Addr, b.State)
	case b.Addr.Addr().Is4() != s.Frontend.Addr().Is4():
		return fmt.Errorf("backend %q: the address family differs from service %q", b.Addr, s.Frontend)
	case b.Addr == s.Frontend:
		return fmt.Errorf("backend %q: equal to the service's own frontend", b.Addr)
	case s.Protocol == SCTP && b.Addr.Port() != s.Frontend.Port():
		return fmt.Errorf("backends at port %d: the port differs from service %q, and the kernel cannot correct the "+
			"checksum of sctp",
			b.Addr.Port(), s.Frontend)
	}
	return nil
}

func (s Service) validateBackends() error {
	if len(s.Backends) > MaxBackends {
		return fmt.Errorf("service %q: %d backends exceed the maximum of %d", s.Frontend, len(s.Backends), MaxBackends)
	}
	backends, addresses := make(map[netip.AddrPort]bool, len(s.Backends)), make(map[netip.Addr]bool, len(s.Backends))
	for _, b := range s.Backends {
		if err := s.CheckBackend(b); err != nil {
			return err
		}
		switch {
		case backends[b.Addr]:
			return fmt.Errorf("backend %q: duplicate", b.Addr)
		case s.DSR != NoDSR && addresses[b.Addr.Addr()]:
			return fmt.Errorf("backend %q: address used twice; with dsr %s the tunnel carries no backend port", b.Addr, s.DSR)
		}
		backends[b.Addr], addresses[b.Addr.Addr()] = true, true
	}
	return nil
}

// ValidateSet validates each service. It fails if two of them have one frontend for the same protocol, or if
// CheckHealthPorts fails.
func ValidateSet(services []Service) error {
	seen := make(map[Key]bool, len(services))
	for i := range services {
		s := &services[i]
		if err := s.Validate(); err != nil {
			return err
		}
		for _, p := range s.Protocol.Each() {
			key := Key{s.Frontend, p}
			if seen[key] {
				return fmt.Errorf("service %s: duplicate frontend", s)
			}
			seen[key] = true
		}
	}
	return CheckHealthPorts(services)
}

// CheckHealthPorts returns an error if a service's health-check port is a node port of all addresses of the node: the
// service would answer load balancers instead of the node.
func CheckHealthPorts(sets ...[]Service) error {
	checked := map[uint16]*Service{}
	for _, set := range sets {
		for i := range set {
			if port := set[i].HealthCheckPort; port != 0 {
				checked[port] = &set[i]
			}
		}
	}
	for _, set := range sets {
		for i := range set {
			s := &set[i]
			other := checked[s.Frontend.Port()]
			if other != nil && s.NodePort && s.Frontend.Addr().IsUnspecified() && s.Protocol.Overlaps(TCP) {
				return fmt.Errorf("service %s: health-check port %d is the node port of service %s", other,
					other.HealthCheckPort, s)
			}
		}
	}
	return nil
}
