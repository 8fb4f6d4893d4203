// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/flows"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// current is how long names are good for.
const current = 2 * time.Second

// names knows whose addresses, devices and network namespaces are.
type names struct {
	datapath *datapath.Datapath
	read     time.Time // when it was known

	addresses  map[netip.Addr]string
	devices    map[int]string // of the host
	namespaces map[uint64]string
	services   map[service.Key]bool // whether there is one, of those that were asked for
	rules      map[uint32]policy.Origin
}

// refresh reads the names, unless they are current.
func (n *names) refresh() error {
	if time.Since(n.read) < current {
		return nil
	}
	endpoints, err := n.datapath.Endpoints().List(context.Background())
	if err != nil {
		return err
	}
	known, err := n.datapath.Policies().Snapshot()
	if err != nil {
		return err
	}
	host, err := n.datapath.Host()
	if err != nil {
		return err
	}
	n.addresses, n.devices, n.namespaces = map[netip.Addr]string{}, map[int]string{}, map[uint64]string{}
	n.services, n.rules = map[service.Key]bool{}, nil
	for _, p := range known.Pods {
		for _, a := range p.Addresses {
			if !p.HostNetwork {
				n.addresses[a.Unmap()] = cli.Printable(p.Namespace + "/" + p.Name)
			}
		}
	}
	if host != 0 {
		n.namespaces[host] = "host"
	}
	for _, e := range endpoints {
		name := n.addresses[e.IP]
		if e.Host {
			n.devices[e.IfIndex] = name
		}
		if cookie := e.Namespace(); cookie != 0 && cookie != host {
			n.namespaces[cookie] = name
		}
	}
	n.read = time.Now()
	return nil
}

// line returns the line of an event.
func (n *names) line(e *flows.Event) (l line, err error) {
	if err := n.refresh(); err != nil {
		return l, err
	}
	l.describe(e)
	l.SourcePod, l.DestinationPod, l.BackendPod = n.addresses[e.Source.Addr()], n.addresses[e.Destination.Addr()], n.addresses[e.Backend.Addr()]
	l.Pod = n.namespaces[e.Namespace]
	if e.OnLink {
		l.Pod = n.devices[e.Device]
	}
	if l.Pod == "" && e.Device == 0 { // of a connection, whichever program has made it
		l.Pod = l.SourcePod
	}
	if is, err := n.isService(e); err != nil {
		return l, err
	} else if is {
		l.Service = service.Key{Frontend: e.Destination, Protocol: e.Protocol}.String()
	}
	if e.Rule != 0 {
		l.Rule, err = n.rule(e.Rule)
	}
	return l, err
}

// isService reports whether the destination of an event is that of a service.
func (n *names) isService(e *flows.Event) (bool, error) {
	if e.Service || e.Destination.Port() == 0 || !slices.Contains([]service.Protocol{service.TCP, service.UDP, service.SCTP}, e.Protocol) {
		return e.Service, nil
	}
	key := service.Key{Frontend: e.Destination, Protocol: e.Protocol}
	if is, known := n.services[key]; known {
		return is, nil
	}
	is, err := n.datapath.Services().Has(key)
	n.services[key] = is
	return is, err
}

// rule names a rule of a policy.
func (n *names) rule(number uint32) (_ string, err error) {
	if n.rules == nil {
		if n.rules, err = n.datapath.Policies().Rules(); err != nil {
			return "", err
		}
	}
	return cli.Printable(n.rules[number].String()), nil
}
