// SPDX-License-Identifier: Apache-2.0

// Package service holds services with their backends as plain values. It makes no system calls.
package service

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Limits of a service.
const (
	MaxBackends     = 4096
	MaxSourceRanges = 4096
	MaxAffinity     = 24 * time.Hour
)

// Key identifies a service: no two services have equal keys.
type Key struct {
	Frontend netip.AddrPort
	Protocol Protocol
}

// String formats k for messages: "10.96.0.100:5201/tcp".
func (k Key) String() string { return fmt.Sprintf("%s/%s", k.Frontend, k.Protocol) }

// Service is a frontend, an address and port, that is load-balanced over a set of backends.
type Service struct {
	ID uint32 // assigned by the datapath when the service is stored, and kept for its lifetime; 0 before
	// Frontend is the address and port that clients connect to. A loopback address serves only the processes of hosts, by
	// socket translation. The unspecified address of a node port, 0.0.0.0 or ::, stands for all addresses of the node.
	Frontend netip.AddrPort
	Protocol Protocol
	Backends []Backend // in any order; without one, clients are refused

	Owner    Owner  `json:",omitzero"` // the client of the datapath that stored the service
	Revision uint32 `json:"-"`         // of the stored set of backends; 0 before it is stored
	Choice   Choice `json:",omitzero"`
	// Affinity is how long a client keeps its backend after its last connection, in whole seconds; 0: no session affinity.
	Affinity       time.Duration  `json:",omitzero"`
	InternalPolicy Policy         `json:",omitzero"` // applies to clients in the cluster, ExternalPolicy to all others
	ExternalPolicy Policy         `json:",omitzero"`
	NodePort       bool           `json:",omitzero"`  // the frontend is an address and node port of this node
	External       bool           `json:",omitzero"`  // the frontend is an external or load-balancer address
	DSR            DSR            `json:",omitzero"`  // for backends on other nodes and clients outside
	SourceRanges   []netip.Prefix `json:",omitempty"` // the only clients that are served; empty: all clients
	// HealthCheckPort is the port at which load balancers query whether the node has a backend of the service; 0: none.
	// Services with one port are one to the load balancer: a backend of any of them counts.
	HealthCheckPort uint16   `json:",omitzero"`
	OnRemove        OnRemove `json:",omitzero"`
}

// Serving returns the backends of s that get new connections, in the order of Sorted: the active ones or, without any,
// the terminating ones. They are the first.
func (s Service) Serving() []Backend {
	_, backends := s.serving(false)
	return backends
}

// LocalServing returns the backends on this node that get new connections where a policy is Local, and the index of the
// first, in the order of Sorted: the active ones or, without any on this node, the terminating ones.
func (s Service) LocalServing() (first int, backends []Backend) { return s.serving(true) }

func (s Service) serving(local bool) (first int, backends []Backend) {
	for _, state := range []State{Active, Terminating} {
		serves := func(b Backend) bool { return b.State == state && (b.Local || !local) }
		if first = slices.IndexFunc(s.Backends, serves); first >= 0 {
			n := first
			for n < len(s.Backends) && serves(s.Backends[n]) {
				n++
			}
			return first, s.Backends[first:n]
		}
	}
	return 0, nil
}

// Key returns the key of s.
func (s Service) Key() Key { return Key{s.Frontend, s.Protocol} }

// String formats the key of s.
func (s Service) String() string { return s.Key().String() }

// Equal reports whether s and o serve the same frontend with the same settings and set of backends. IDs, revisions and
// owners are ignored.
func (s Service) Equal(o Service) bool {
	return s.Frontend == o.Frontend && s.Protocol == o.Protocol && s.Choice == o.Choice && s.Affinity == o.Affinity &&
		s.InternalPolicy == o.InternalPolicy && s.ExternalPolicy == o.ExternalPolicy &&
		s.NodePort == o.NodePort && s.External == o.External && s.DSR == o.DSR &&
		s.HealthCheckPort == o.HealthCheckPort && s.OnRemove == o.OnRemove &&
		slices.Equal(sortedRanges(s.SourceRanges), sortedRanges(o.SourceRanges)) && s.SameBackends(o)
}

// SameBackends reports whether s and o have the same set of backends, in any order.
func (s Service) SameBackends(o Service) bool {
	return len(s.Backends) == len(o.Backends) && slices.EqualFunc(sorted(s.Backends), sorted(o.Backends), Backend.equal)
}

// Sorted returns s with its backends in the order of Backend.Compare, and its source ranges in order. It copies
// unsorted lists.
func (s Service) Sorted() Service {
	s.Backends, s.SourceRanges = sorted(s.Backends), sortedRanges(s.SourceRanges)
	return s
}

func sorted(backends []Backend) []Backend               { return inOrder(backends, Backend.Compare) }
func sortedRanges(ranges []netip.Prefix) []netip.Prefix { return inOrder(ranges, netip.Prefix.Compare) }

// inOrder returns the list in order; it copies the list unless it is in order.
func inOrder[T any](list []T, compare func(a, b T) int) []T {
	if slices.IsSortedFunc(list, compare) {
		return list
	}
	return slices.SortedFunc(slices.Values(list), compare)
}

// Changes turn one set of services into another.
type Changes struct {
	Add       []Service
	Update    []Update
	Delete    []Service
	Unchanged int
}

// Update is a service whose stored settings or backends differ from the desired ones.
type Update struct{ Have, Want Service }

// Diff returns the changes that turn have into want. Both must have unique keys.
func Diff(have, want []Service) Changes {
	stored := make(map[Key]int, len(have))
	for i := range have {
		stored[have[i].Key()] = i
	}
	c := Changes{Add: make([]Service, 0, max(len(want)-len(have), 0))}
	kept := make([]bool, len(have))
	for n := range want { // by index: a service is large
		w := &want[n]
		i, ok := stored[w.Key()]
		if !ok {
			c.Add = append(c.Add, *w)
			continue
		}
		kept[i] = true
		if have[i].Equal(*w) {
			c.Unchanged++
		} else {
			c.Update = append(c.Update, Update{have[i], *w})
		}
	}
	for i, h := range have {
		if !kept[i] {
			c.Delete = append(c.Delete, h)
		}
	}
	return c
}
