// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"mustang/internal/lab/labfile"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/qdisc"
	"mustang/internal/service"
)

const serviceName = "service" // the name of the service of pod-a in [Info.Hosts]

// ServiceNames returns the names by which commands in the lab find its services.
func (i Info) ServiceNames() []string {
	switch {
	case i.File != nil:
		return i.File.ServiceNames()
	case i.Topology == TopologyPodLinks && i.Via != ViaNone:
		return []string{serviceName}
	}
	return nil
}

// Trial returns how to try a service of the lab by hand; ok is false without services.
func (i Info) Trial() (_ labfile.Trial, ok bool) {
	switch {
	case i.File != nil:
		return i.File.Trial()
	case len(i.ServiceNames()) == 0:
		return labfile.Trial{}, false
	}
	return labfile.Trial{Server: labfile.Backend{Pod: PodA, Port: ServicePort}, Client: PodB, Service: serviceName,
		Port: ServicePort}, true
}

// Addresses returns the addresses of a place of the lab, or of one of ServiceNames.
func (i Info) Addresses(place string) []netip.Addr {
	if i.File != nil || !slices.Contains(i.ServiceNames(), place) {
		return Addresses(i.Options, place)
	}
	return convert(Services(), func(s service.Service) netip.Addr { return s.Frontend.Addr() })
}

// Hosts returns lines for a file such as /etc/hosts with the names of places and of services.
func (i Info) Hosts(places []string) string {
	var lines strings.Builder
	for _, name := range append(i.ServiceNames(), places...) {
		for _, address := range i.Addresses(name) {
			fmt.Fprintf(&lines, "%s\t%s\n", address, name)
		}
	}
	return lines.String()
}

// UnsupportedError reports a feature that a lab or its link mode needs and the running kernel lacks.
type UnsupportedError = podlink.UnsupportedError

// limitWire sets a wire's rate and delay on both ends. If the kernel lacks one, the error is an *UnsupportedError.
func limitWire(w labfile.Wire, hosts ...*netns.Namespace) error {
	if w.Rate == 0 && w.Delay == 0 {
		return nil
	}
	queue, since := "tbf", "2.2"
	if w.Delay > 0 {
		queue, since = "netem", "2.6.8"
	}
	for _, host := range hosts {
		err := qdisc.Emulate(host, w.Device, w.Rate, w.Delay)
		if errors.Is(err, errors.ErrUnsupported) {
			err = UnsupportedError{Feature: queue + " queues", Module: "sch_" + queue, Since: since, Err: err}.Here()
		}
		if err != nil {
			return err
		}
	}
	return nil
}
