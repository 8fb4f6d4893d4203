// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"slices"

	"mustang/internal/service"
)

// A Service of a cluster has so many frontends at most, and so many endpoints at all ports and addresses together; so many endpoints and ports of its
// EndpointSlices are looked at. An object of 20 KB can ask for more than there is room for.
const (
	maxFrontends = 1000
	maxBackends  = 1 << 18
	maxLooked    = 1 << 18
)

// room reports whether a Service of a cluster may have more endpoints at its ports.
func (s *set) room(more int) bool {
	s.stored += more
	return !s.cluster || s.stored <= maxBackends
}

// look returns the slices that are looked at.
func (s *set) look(k *kubeService, of []*endpointSlice) []*endpointSlice {
	n := 0
	for i, slice := range of {
		if n += len(slice.Endpoints) + len(slice.Ports); n > maxLooked {
			s.refuse("%s: its EndpointSlices have more than %d endpoints and ports: %d of %d are not looked at", k.origin, maxLooked, len(of)-i, len(of))
			return of[:i]
		}
	}
	return of
}

// limit returns the frontends of which all ports can be served, cluster IPs and node ports first.
func (s *set) limit(k *kubeService, all []frontend) []frontend {
	if len(all)*len(k.Spec.Ports) <= maxFrontends {
		return all
	}
	slices.SortStableFunc(all, func(a, b frontend) int { return a.order() - b.order() })
	kept := min(len(all), maxFrontends/len(k.Spec.Ports))
	s.refuse("%s: its %d ports at %s ask for %d frontends; a Service has at most %d: %s", k.origin, len(k.Spec.Ports), count(len(all)), len(all)*len(k.Spec.Ports), maxFrontends, told(kept))
	return all[:kept]
}

// limitRows returns the frontends that can have all endpoints at all ports: each has rows of its own for them.
func (s *set) limitRows(k *kubeService, all []frontend, o offers) []frontend {
	rows := 0
	for _, p := range k.Spec.Ports {
		protocol, _ := kubeProtocol(p.Protocol)
		rows += min(o.count(portName{p.Name, protocol}), service.MaxBackends)
	}
	if len(all)*rows <= maxBackends {
		return all
	}
	slices.SortStableFunc(all, func(a, b frontend) int { return a.order() - b.order() })
	kept := max(1, maxBackends/rows)
	if kept < len(all) {
		s.refuse("%s: its %d endpoints at %s ask for %d rows; a Service has at most %d: %s", k.origin, rows, count(len(all)), rows*len(all), maxBackends, told(kept))
	}
	return all[:min(kept, len(all))]
}

// count counts addresses.
func count(addresses int) string {
	if addresses == 1 {
		return "1 address"
	}
	return fmt.Sprintf("%d addresses", addresses)
}

// told tells how many addresses are served.
func told(kept int) string {
	switch kept {
	case 0:
		return "none is served"
	case 1:
		return "1 address is served"
	}
	return fmt.Sprintf("%d addresses are served", kept)
}

// order puts those first that nobody can choose.
func (f frontend) order() int {
	if f.external && !f.atNodePort {
		return 1
	}
	return 0
}

// maxTold is how many lines tell of a Service what it does not get, what is left out, or what its user may not have meant: it can be millions.
const maxTold = 100

// refuse notes what a Service of a cluster asks for and does not get.
func (s *set) refuse(format string, args ...any) {
	if len(s.NotServed) >= maxTold {
		return
	}
	text := fmt.Sprintf(format, args...)
	if len(s.NotServed) == maxTold-1 {
		text = "more is not served"
	}
	if !slices.Contains(s.NotServed, text) {
		s.NotServed = append(s.NotServed, text)
	}
}
