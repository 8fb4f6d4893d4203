// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"mustang/internal/document"
	"mustang/internal/service"
)

func nameOf(m document.Metadata) Name { return Name{cmp.Or(m.Namespace, "default"), m.Name} }

// kubeService is what is kept of a Service of v1: a cluster has many.
type kubeService struct {
	Spec   serviceSpec
	Status serviceStatus

	origin  string // document and object
	created string // in RFC 3339, so that later is greater
	proxy   string // that serves it in the place of others
}

// readService reads a Service.
func readService(origin string, data jsontext.Value) (*kubeService, error) {
	var o struct {
		document.Object
		Spec   serviceSpec   `json:"spec"`
		Status serviceStatus `json:"status"`
	}
	if err := document.Decode(data, &o); err != nil {
		return nil, err
	}
	for _, texts := range []*[]string{&o.Spec.ClusterIPs, &o.Spec.ExternalIPs, &o.Spec.IPFamilies, &o.Spec.LoadBalancerSourceRanges} {
		*texts = slices.Clone(*texts) // without the room that a decoder leaves for more
	}
	o.Spec.Ports = slices.Clone(o.Spec.Ports)
	return &kubeService{o.Spec, o.Status, origin, o.Metadata.Created, o.Metadata.Labels[labelProxy]}, nil
}

type serviceStatus struct {
	LoadBalancer struct {
		Ingress []ingress `json:"ingress"`
	} `json:"loadBalancer"`
}

type serviceSpec struct {
	Type                     string        `json:"type"`
	ClusterIP                string        `json:"clusterIP"`
	ClusterIPs               []string      `json:"clusterIPs"`
	ExternalIPs              []string      `json:"externalIPs"`
	IPFamilies               []string      `json:"ipFamilies"`
	Ports                    []servicePort `json:"ports"`
	SessionAffinity          string        `json:"sessionAffinity"`
	SessionAffinityConfig    affinity      `json:"sessionAffinityConfig"`
	InternalTrafficPolicy    string        `json:"internalTrafficPolicy"`
	ExternalTrafficPolicy    string        `json:"externalTrafficPolicy"`
	LoadBalancerSourceRanges []string      `json:"loadBalancerSourceRanges"`
	HealthCheckNodePort      uint16        `json:"healthCheckNodePort"`
	PublishNotReadyAddresses bool          `json:"publishNotReadyAddresses"`
}

type servicePort struct {
	Name     string `json:"name"`
	Protocol string `json:"protocol"`
	Port     uint16 `json:"port"`
	NodePort uint16 `json:"nodePort"`
	// TargetPort is a number, or the name of a port of the pods.
	TargetPort jsontext.Value `json:"targetPort"`
}

type affinity struct {
	ClientIP struct {
		TimeoutSeconds uint32 `json:"timeoutSeconds"`
	} `json:"clientIP"`
}

type ingress struct {
	IP     string `json:"ip"`
	IPMode string `json:"ipMode"`
}

// endpointSlice is what is kept of an EndpointSlice of discovery.k8s.io/v1.
type endpointSlice struct {
	AddressType string
	Endpoints   []endpoint
	Ports       []endpointPort

	name    Name
	where   string // the document; empty: the object is of a cluster
	service string // whose it is
}

func (s *endpointSlice) origin() string { return s.where + "EndpointSlice " + s.name.String() }

// endpoint is what is kept of an endpoint.
type endpoint struct {
	addresses string // with commas between them
	hints     *hints // nil: it has none
	state     service.State
	local     bool // on this node
}

// hints are the names of the zones and nodes that an endpoint is for.
type hints struct {
	ForZones []hint `json:"forZones"`
	ForNodes []hint `json:"forNodes"`
}

type hint struct {
	Name string `json:"name"`
}

type endpointPort struct {
	Name     string  `json:"name"`
	Protocol string  `json:"protocol"`
	Port     *uint16 `json:"port"`
}

// readSlice reads an EndpointSlice. The name of this node tells which of the endpoints are there.
func readSlice(where string, n Name, data jsontext.Value, node string) (*endpointSlice, error) {
	var o struct {
		document.Object
		AddressType string           `json:"addressType"`
		Endpoints   []endpointObject `json:"endpoints"`
		Ports       []endpointPort   `json:"ports"`
	}
	if err := document.Decode(data, &o); err != nil {
		return nil, err
	}
	s := &endpointSlice{o.AddressType, make([]endpoint, len(o.Endpoints)), slices.Clone(o.Ports), n, where, o.Metadata.Labels[labelService]}
	for i, e := range o.Endpoints {
		s.Endpoints[i] = endpoint{strings.Join(e.Addresses, ","), e.Hints, e.state(), e.NodeName != "" && e.NodeName == node}
	}
	return s, nil
}

// endpointObject is an endpoint of an EndpointSlice.
type endpointObject struct {
	Addresses  []string `json:"addresses"`
	NodeName   string   `json:"nodeName"`
	Conditions struct {
		Ready       *bool `json:"ready"`
		Serving     *bool `json:"serving"`
		Terminating *bool `json:"terminating"`
	} `json:"conditions"`
	Hints *hints `json:"hints"`
}

// state returns the state of an endpoint. What is not ready keeps its connections.
func (e *endpointObject) state() service.State {
	is := func(condition *bool, otherwise bool) bool {
		if condition == nil {
			return otherwise
		}
		return *condition
	}
	ready := is(e.Conditions.Ready, true)
	serving := is(e.Conditions.Serving, ready)
	switch {
	case ready:
		return service.Active
	case is(e.Conditions.Terminating, false) && serving:
		return service.Terminating
	case is(e.Conditions.Terminating, false):
		return service.Draining
	}
	return service.Quarantined
}

// Labels of Kubernetes.
const (
	labelService = "kubernetes.io/service-name"
	labelProxy   = "service.kubernetes.io/service-proxy-name"
)

// add adds a document of any kind.
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

// addObject adds an object of Kubernetes.
func (s *set) addObject(where string, o document.Object, data jsontext.Value) error {
	id := nameOf(o.Metadata)
	origin := fmt.Sprintf("%s: %s %s", where, o.Kind, id)
	known := map[string]string{"Service": "v1", "EndpointSlice": "discovery.k8s.io/v1"}
	if want, ok := known[o.Kind]; !ok || o.APIVersion != want && !strings.HasSuffix(want, "/"+o.APIVersion) {
		s.note("%s: not read: only Service (v1) and EndpointSlice (discovery.k8s.io/v1) are", origin)
		return nil
	}
	if o.Metadata.Name == "" {
		return fmt.Errorf("%s: metadata.name: missing", origin)
	}
	if s.kube == nil {
		s.kube = NewCluster(s.Options)
	}
	add := s.addSlice
	if o.Kind == "Service" {
		add = s.addService
	}
	if err := add(where+": ", id, data); err != nil {
		return fmt.Errorf("%s: %w", origin, err)
	}
	return nil
}

func (s *set) addService(where string, id Name, data jsontext.Value) error {
	if had := s.kube.services[id]; had != nil {
		return fmt.Errorf("it is there already: %s", had.origin)
	}
	v, err := readService(where+"Service "+id.String(), data)
	if err != nil {
		return err
	}
	s.kube.services[id], s.order = v, append(s.order, id)
	return nil
}

func (s *set) addSlice(where string, id Name, data jsontext.Value) error {
	if had := s.kube.slices[id]; had != nil {
		return fmt.Errorf("it is there already: %s", had.origin())
	}
	v, err := readSlice(where, id, data, s.Node)
	if err != nil {
		return err
	}
	if v.service == "" {
		return errors.New("metadata.labels: " + labelService + " is missing")
	}
	s.kube.add(v)
	return nil
}
