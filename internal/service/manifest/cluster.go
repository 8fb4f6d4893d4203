// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"mustang/internal/document"
)

// Cluster holds the current Service and EndpointSlice objects of a Kubernetes cluster. Only one goroutine may use it.
type Cluster struct {
	options  Options
	services map[Name]*kubeService
	slices   map[Name]*endpointSlice
	of       map[Name][]*endpointSlice // the slices of a Service, sorted by their own names

	clusterIPs map[netip.Addr]int           // how many Services have one
	asked      map[netip.Addr]map[Name]bool // the Services with an external IP
}

// NewCluster returns a cluster without objects.
func NewCluster(o Options) *Cluster {
	return &Cluster{
		o, map[Name]*kubeService{}, map[Name]*endpointSlice{}, map[Name][]*endpointSlice{}, map[netip.Addr]int{},
		map[netip.Addr]map[Name]bool{},
	}
}

// SetZone replaces the zone of this node, on which backends may depend.
func (c *Cluster) SetZone(zone string) { c.options.Zone = zone }

// SetNodePorts replaces the addresses of the node with node ports; nil: all addresses.
func (c *Cluster) SetNodePorts(addresses []netip.Addr) { c.options.NodePorts = addresses }

// SetTaken replaces Options.Taken, and returns the affected Services.
func (c *Cluster) SetTaken(taken Taken) (concerned []Name) {
	was := c.options.Taken.Tunnel
	c.options.Taken = taken
	concerned = c.withExternal()
	for n, of := range c.of {
		at := func(p endpointPort) bool { return p.Port != nil && (*p.Port == was || *p.Port == taken.Tunnel) }
		if c.services[n] != nil &&
			slices.ContainsFunc(of, func(s *endpointSlice) bool { return slices.ContainsFunc(s.Ports, at) }) {
			concerned = append(concerned, n)
		}
	}
	return concerned
}

func (c *Cluster) withExternal() (all []Name) {
	for n, k := range c.services {
		if k.hasExternal() {
			all = append(all, n)
		}
	}
	return all
}

func (k *kubeService) hasExternal() bool {
	return len(k.Spec.ExternalIPs)+len(k.Status.LoadBalancer.Ingress) > 0
}

var apiService = Name{"default", "kubernetes"}

// ClusterIPs returns the cluster IPs of all Services.
func (c *Cluster) ClusterIPs() []netip.Addr { return slices.Collect(maps.Keys(c.clusterIPs)) }

// PutService stores a Service. It returns the others that have one of its cluster IPs as an external IP. On error, the
// previous Service is deleted too.
func (c *Cluster) PutService(n Name, object jsontext.Value) (concerned []Name, err error) {
	concerned = c.DeleteService(n)
	origin := "Service " + n.String()
	v, err := readService(origin, object)
	if err != nil {
		return concerned, fmt.Errorf("%s: %w", origin, err)
	}
	c.services[n] = v
	return append(concerned, c.index(n, v, 1)...), nil
}

// DeleteService deletes a Service, if it exists. It returns the others with one of its cluster IPs as an external IP.
func (c *Cluster) DeleteService(n Name) (concerned []Name) {
	v, ok := c.services[n]
	if !ok {
		return nil
	}
	delete(c.services, n)
	return c.index(n, v, -1)
}

func (c *Cluster) index(n Name, v *kubeService, factor int) (concerned []Name) {
	for _, addr := range addresses(v.Spec.ExternalIPs) {
		if c.asked[addr] == nil {
			c.asked[addr] = map[Name]bool{}
		}
		if c.asked[addr][n] = true; factor < 0 {
			delete(c.asked[addr], n)
		}
		if len(c.asked[addr]) == 0 {
			delete(c.asked, addr)
		}
	}
	for _, addr := range addresses(v.clusterIPs()) {
		if c.clusterIPs[addr] += factor; c.clusterIPs[addr] == 0 {
			delete(c.clusterIPs, addr)
		}
		concerned = slices.AppendSeq(concerned, maps.Keys(c.asked[addr]))
	}
	return concerned
}

func addresses(texts []string) (all []netip.Addr) {
	for _, text := range texts {
		if addr, err := netip.ParseAddr(text); err == nil {
			all = append(all, addr)
		}
	}
	return all
}

// PutSlice stores an EndpointSlice. It returns the Services whose backends may change. On error, the previous slice is
// deleted too.
func (c *Cluster) PutSlice(n Name, object jsontext.Value) (concerned []Name, err error) {
	concerned = c.DeleteSlice(n)
	v, err := readSlice("", n, object, c.options.Node)
	if err != nil {
		return concerned, fmt.Errorf("EndpointSlice %s: %w", n, err)
	}
	if v.service == "" {
		return concerned, nil // belongs to no Service
	}
	if of := c.add(v); !slices.Contains(concerned, of) {
		concerned = append(concerned, c.dependOn(of)...)
	}
	return concerned, nil
}

func (c *Cluster) dependOn(n Name) []Name {
	if n == apiService {
		return append(c.withExternal(), n)
	}
	return []Name{n}
}

func (c *Cluster) add(v *endpointSlice) (of Name) {
	of = Name{v.name.Namespace, v.service}
	c.slices[v.name] = v
	at, _ := slices.BinarySearchFunc(c.of[of], v.name, compareName)
	c.of[of] = slices.Insert(c.of[of], at, v)
	return of
}

func compareName(s *endpointSlice, n Name) int { return s.name.Compare(n) }

// DeleteSlice deletes an EndpointSlice, if it exists. It returns the Services whose backends may change.
func (c *Cluster) DeleteSlice(n Name) (concerned []Name) {
	v, ok := c.slices[n]
	if !ok {
		return nil
	}
	of := Name{n.Namespace, v.service}
	delete(c.slices, n)
	at, _ := slices.BinarySearchFunc(c.of[of], n, compareName)
	c.of[of] = slices.Delete(c.of[of], at, at+1)
	if len(c.of[of]) == 0 {
		delete(c.of, of)
	}
	return c.dependOn(of)
}

// Names returns the names of all Services, sorted.
func (c *Cluster) Names() []Name { return slices.SortedFunc(maps.Keys(c.services), Name.Compare) }

// Gives reports whether a Service's load balancer has an address, according to its status.
func (c *Cluster) Gives(n Name, addr netip.Addr) bool {
	k := c.services[n]
	has := func(in ingress) bool { return slices.Contains(addresses([]string{in.IP}), addr) }
	return k != nil && k.Spec.Type == "LoadBalancer" && slices.ContainsFunc(k.Status.LoadBalancer.Ingress, has)
}

func (s *set) add(where string, data jsontext.Value) error {
	var o document.Object
	if err := document.Decode(data, &o); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	if o.Kind == "" {
		return s.addOwn(where, data)
	}
	return document.EachObject(where, o, data, s.addObject)
}

func (s *set) addObject(where string, o document.Object, data jsontext.Value) error {
	id := Name{cmp.Or(o.Metadata.Namespace, "default"), o.Metadata.Name}
	object := o.Kind + " " + id.String()
	origin := where + ": " + object
	known := map[string]string{"Service": "v1", "EndpointSlice": "discovery.k8s.io/v1"}
	if want, ok := known[o.Kind]; !ok || o.APIVersion != want && !strings.HasSuffix(want, "/"+o.APIVersion) {
		s.note("%s: not read: only Service (v1) and EndpointSlice (discovery.k8s.io/v1) are", origin)
		return nil
	}
	if o.Metadata.Name == "" {
		return fmt.Errorf("%s: metadata.name: missing", origin)
	}
	if s.kube == nil {
		s.kube, s.seen = NewCluster(s.Options), map[string]string{}
	}
	if had := s.seen[object]; had != "" {
		return fmt.Errorf("%s: it is there already: %s", origin, had)
	}
	s.seen[object] = origin
	if o.Kind == "Service" {
		v, err := readService(origin, data)
		if err != nil {
			return fmt.Errorf("%s: %w", origin, err)
		}
		s.order, s.kube.services[id] = append(s.order, id), v
		return nil
	}
	v, err := readSlice(where+": ", id, data, s.Node)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", origin, err)
	case len(v.bad) > 0:
		return fmt.Errorf("%s: %s", origin, v.bad[0])
	case v.service == "":
		return fmt.Errorf("%s: metadata.labels: %s is missing", origin, labelService)
	}
	s.kube.add(v)
	return nil
}

func (s *set) join() error {
	if s.kube == nil {
		return nil
	}
	for _, id := range s.order {
		k := s.kube.services[id]
		if why := k.skip(); why != "" {
			s.note("%s: left out: %s", k.origin, why)
		} else if err := s.joinOne(k, s.kube.of[id]); err != nil {
			return err
		}
	}
	for _, slice := range s.kube.slices {
		if s.kube.services[Name{slice.name.Namespace, slice.service}] == nil {
			s.note("%s: left out: there is no Service %s", slice.origin(), slice.service)
		}
	}
	slices.Sort(s.Notes)
	return nil
}

// Snapshot is an immutable copy of a Service and its dependencies: its services can be computed while objects change.
type Snapshot struct {
	kube *kubeService // nil: there is none
	of   []*endpointSlice
	set  set
}

// Created returns when the Service was made, in RFC 3339; empty if it does not exist.
func (s Snapshot) Created() string {
	if s.kube == nil {
		return ""
	}
	return s.kube.created
}

// Snapshot returns the Service of a name.
func (c *Cluster) Snapshot(n Name) Snapshot {
	k, ok := c.services[n]
	if !ok {
		return Snapshot{}
	}
	s := Snapshot{k, slices.Clone(c.of[n]), set{Options: c.options, cluster: true, clusterIPs: map[netip.Addr]bool{}}}
	if k.hasExternal() {
		for _, slice := range c.of[apiService] { // which the API servers write
			for _, e := range slice.Endpoints {
				s.set.apiServers = append(s.set.apiServers, e.addr)
			}
		}
	}
	for _, addr := range addresses(k.Spec.ExternalIPs) {
		if c.clusterIPs[addr] > 0 {
			s.set.clusterIPs[addr] = true
		}
	}
	return s
}

// Set returns what the Service provides, without invalid external addresses. It fails if the Service cannot be served.
func (s Snapshot) Set() (Set, error) {
	k := s.kube
	if k == nil {
		return Set{}, nil
	}
	out := s.set
	if why := k.skip(); why != "" {
		out.Remarks = append(out.Remarks, why)
		return out.Set, nil
	}
	n := 0
	for _, slice := range s.of {
		n += len(slice.Endpoints) + len(slice.Ports)
	}
	if n > maxListed {
		return Set{}, fmt.Errorf("%s: its EndpointSlices have %d endpoints and ports: a Service has at most %d", k.origin, n,
			maxListed)
	}
	if err := out.joinOne(k, s.of); err != nil {
		return Set{}, err
	}
	out.remark(k, s.of)
	return out.Set, nil
}
