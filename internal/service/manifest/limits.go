// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"slices"

	"mustang/internal/service"
)

// Limits of a Service of a cluster: frontends, rows of endpoints at all of them, and endpoints and ports of its
// EndpointSlices. One above a limit is not served.
const (
	maxFrontends = 1000
	maxRows      = 1 << 18
	maxListed    = 1 << 18
)

// checkSlices returns an error if the EndpointSlices of a Service have too many endpoints and ports.
func checkSlices(of []*endpointSlice) error {
	n := 0
	for _, slice := range of {
		n += len(slice.Endpoints) + len(slice.Ports)
	}
	if n > maxListed {
		return fmt.Errorf("its EndpointSlices have %d endpoints and ports: a Service has at most %d", n, maxListed)
	}
	return nil
}

// checkFrontends returns an error if a Service has too many frontends.
func (k *kubeService) checkFrontends(all []frontend) error {
	if n := len(all) * len(k.Spec.Ports); n > maxFrontends {
		return fmt.Errorf("%d ports at %s are %d frontends: a Service has at most %d",
			len(k.Spec.Ports), count(len(all)), n, maxFrontends)
	}
	return nil
}

// checkRows returns an error if the endpoints of a Service have too many rows: each frontend has its own ones.
func (k *kubeService) checkRows(frontends int, o offers) error {
	rows := 0
	for _, p := range k.Spec.Ports {
		n := o.count(p)
		rows += max(n, frontends*min(n, service.MaxBackends))
	}
	if rows > maxRows {
		return fmt.Errorf("its endpoints at %s have %d rows: a Service has at most %d", count(frontends), rows, maxRows)
	}
	return nil
}

// count counts addresses.
func count(addresses int) string {
	if addresses == 1 {
		return "1 address"
	}
	return fmt.Sprintf("%d addresses", addresses)
}

// maxTold is how many lines tell of a Service what it does not get, what is left out, or what its user may not have
// meant: it can be millions.
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
