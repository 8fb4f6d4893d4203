// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"mustang/internal/document"
)

func nameOf(m document.Metadata) Name { return Name{cmp.Or(m.Namespace, "default"), m.Name} }

// kubeService is a Service of v1.
type kubeService struct {
	document.Object
	Spec   serviceSpec `json:"spec"`
	Status struct {
		LoadBalancer struct {
			Ingress []ingress `json:"ingress"`
		} `json:"loadBalancer"`
	} `json:"status"`

	origin string // document and object
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

// endpointSlice is an EndpointSlice of discovery.k8s.io/v1.
type endpointSlice struct {
	document.Object
	AddressType string         `json:"addressType"`
	Endpoints   []endpoint     `json:"endpoints"`
	Ports       []endpointPort `json:"ports"`

	origin  string
	service string // whose it is
}

type endpoint struct {
	Addresses  []string `json:"addresses"`
	NodeName   string   `json:"nodeName"`
	Conditions struct {
		Ready       *bool `json:"ready"`
		Serving     *bool `json:"serving"`
		Terminating *bool `json:"terminating"`
	} `json:"conditions"`
	Hints struct {
		ForZones []hint `json:"forZones"`
		ForNodes []hint `json:"forNodes"`
	} `json:"hints"`
}

type hint struct {
	Name string `json:"name"`
}

type endpointPort struct {
	Name     string  `json:"name"`
	Protocol string  `json:"protocol"`
	Port     *uint16 `json:"port"`
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
	if err := add(id, origin, data); err != nil {
		return fmt.Errorf("%s: %w", origin, err)
	}
	return nil
}

func (s *set) addService(id Name, origin string, data jsontext.Value) error {
	if had := s.kube.services[id]; had != nil {
		return fmt.Errorf("it is there already: %s", had.origin)
	}
	v := &kubeService{origin: origin}
	if err := document.Decode(data, v); err != nil {
		return err
	}
	s.kube.services[id], s.order = v, append(s.order, id)
	return nil
}

func (s *set) addSlice(id Name, origin string, data jsontext.Value) error {
	if had := s.kube.slices[id]; had != nil {
		return fmt.Errorf("it is there already: %s", had.origin)
	}
	v := &endpointSlice{origin: origin}
	if err := document.Decode(data, v); err != nil {
		return err
	}
	if v.Metadata.Labels[labelService] == "" {
		return errors.New("metadata.labels: " + labelService + " is missing")
	}
	s.kube.add(id, v)
	return nil
}
