// SPDX-License-Identifier: Apache-2.0

// Package manifest reads sets of services from YAML or JSON: our own form, or the objects of Kubernetes.
//
// The objects of Kubernetes are structs of this package with the fields that matter here: k8s.io/api and its
// dependencies would add hundreds of types for some thirty fields.
package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"mustang/internal/document"
	"mustang/internal/service"
)

// Options select where objects are served, and which endpoints are near. Without a zone, hints are ignored.
type Options struct {
	Node, Zone string       // names in Kubernetes
	Localhost  bool         // node ports also at 127.0.0.1 if all addresses have them, as in kube-proxy's iptables mode
	NodePorts  []netip.Addr // the addresses of the node with node ports; nil: all addresses
	Taken      Taken        // cannot be external addresses
}

// Taken are addresses that Services must not have. Without this check, a user who may write a Service could attract
// their traffic (CVE-2020-8554).
type Taken struct {
	Pods map[netip.Prefix]string // the nodes' ranges of pods with the names of the nodes
	// Nodes are addresses of machines that the cluster needs, and their owners: "node n1", "the API server". A load
	// balancer's address is left to the machine there.
	Nodes map[netip.Addr]string
	// Hosts are all addresses of this node, and external addresses of other nodes, with their owners. A Service may have
	// such an address from its load balancer.
	Hosts map[netip.Addr]string
	// Pools are the addresses of load balancers. A Service may have such an address in its status alone.
	Pools []netip.Prefix
	// Tunnel is the UDP port of VXLAN; 0: none. Only pods can be backends there: other nodes could take a packet from this
	// node for one of the tunnel.
	Tunnel uint16
}

// Set is the content of a file.
type Set struct {
	Services  []service.Service // valid, also as a set (service.ValidateSet)
	Notes     []string          // omissions, a line each
	NotServed []string          // frontends that a Service of a cluster requests and does not get, a line each
	Remarks   []string          // likely mistakes in a Service of a cluster, such as no ready endpoints
}

// Read reads all documents. Its error is one line that names the document, the object and the field. A file without
// services is an error, also with Notes. An empty set is written `{schema: 1, services: []}`.
func Read(r io.Reader, o Options) (Set, error) {
	s := &set{Options: o}
	err := document.Each(r, s.add)
	if err == nil {
		err = s.join()
	}
	if err == nil {
		err = s.checkSet()
	}
	if err != nil {
		return Set{}, errors.New(document.OneLine(err.Error()))
	}
	for i, note := range s.Notes {
		s.Notes[i] = document.OneLine(note)
	}
	if len(s.Services) == 0 && !s.own {
		if err = errors.New("no services"); len(s.Notes) == 0 {
			err = errors.New("no services: to delete all, write {schema: 1, services: []}")
		}
	}
	return s.Set, err
}

type set struct {
	Options
	Set
	origins    []string            // of each service
	own        bool                // there is a document of our own form
	cluster    bool                // skip external addresses that cannot be served
	apiServers []netip.Addr        // endpoints of the cluster's API
	clusterIPs map[netip.Addr]bool // of a cluster's Services, among the external addresses of this one
	kube       *Cluster            // the objects of Kubernetes that were read; nil: none were
	order      []Name              // its Services, as they stand
	seen       map[string]string   // where an object is, by kind and name
}

// put validates and adds a service. Backends of a cluster's Service were checked before, once for all frontends.
func (s *set) put(origin string, v service.Service) error {
	checked := v
	if s.cluster {
		checked.Backends = nil
	}
	if err := checked.Validate(); err != nil {
		return fmt.Errorf("%s: %w", origin, err)
	}
	s.Services, s.origins = append(s.Services, v), append(s.origins, origin)
	return nil
}

// maxTold is the largest number of lines of each kind about a Service: NotServed, Notes and Remarks.
const maxTold = 100

func (s *set) note(format string, args ...any) {
	if !s.cluster || len(s.Notes) < maxTold {
		s.Notes = append(s.Notes, fmt.Sprintf(format, args...))
	}
}

func (s *set) refuse(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if len(s.NotServed) == maxTold-1 {
		text = "more is not served"
	}
	if len(s.NotServed) < maxTold && !slices.Contains(s.NotServed, text) {
		s.NotServed = append(s.NotServed, text)
	}
}

// checkSet returns an error if two services have one frontend, or a node port is a health-check port. It notes backends
// that are services themselves.
func (s *set) checkSet() error {
	byFrontend := make(map[netip.AddrPort][]int, len(s.Services))
	at := func(addr netip.AddrPort, p service.Protocol) int { // the first service there; -1: none
		same := func(j int) bool { return s.Services[j].Protocol.Overlaps(p) }
		if i := slices.IndexFunc(byFrontend[addr], same); i >= 0 {
			return byFrontend[addr][i]
		}
		return -1
	}
	for i, v := range s.Services {
		if j := at(v.Frontend, v.Protocol); j >= 0 {
			return fmt.Errorf("%s: frontend %s also belongs to %s", s.origins[i], v, s.origins[j])
		}
		byFrontend[v.Frontend] = append(byFrontend[v.Frontend], i)
	}
	for i, v := range s.Services {
		for _, b := range v.Backends {
			if j := at(b.Addr, v.Protocol); j >= 0 {
				s.note("%s: backend %s is the frontend of %s, and calls are translated once", s.origins[i], b.Addr, s.origins[j])
			}
		}
	}
	return service.CheckHealthPorts(s.Services)
}

// sorted returns the services by frontend and protocol, for output that changes only with the services.
func sorted(services []service.Service) []service.Service {
	services = slices.Clone(services)
	slices.SortFunc(services, func(a, b service.Service) int {
		return cmp.Or(a.Frontend.Compare(b.Frontend), cmp.Compare(a.Protocol, b.Protocol))
	})
	return services
}
