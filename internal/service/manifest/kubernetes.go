// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// object is what all objects of Kubernetes have.
type object struct {
	Kind       string   `json:"kind"`
	APIVersion string   `json:"apiVersion"`
	Metadata   metadata `json:"metadata"`
}

type metadata struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace"`
	Labels    map[string]string `json:"labels"`
}

// name identifies an object of a kind.
type name struct{ namespace, name string }

func (m metadata) id() name {
	if m.Namespace == "" {
		m.Namespace = "default"
	}
	return name{m.Namespace, m.Name}
}

func (n name) String() string { return n.namespace + "/" + n.name }

// kubeService is a Service of v1.
type kubeService struct {
	object
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
	object
	AddressType string         `json:"addressType"`
	Endpoints   []endpoint     `json:"endpoints"`
	Ports       []endpointPort `json:"ports"`

	origin string
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

// cluster holds the objects of Kubernetes that were read.
type cluster struct {
	services []*kubeService // in their order
	byName   map[name]*kubeService
	slices   map[name][]*endpointSlice // by the service
	seen     map[name]string           // slices: where they are
}

// Labels of Kubernetes.
const (
	labelService = "kubernetes.io/service-name"
	labelProxy   = "service.kubernetes.io/service-proxy-name"
)

// add adds a document of any kind.
func (s *set) add(where string, data jsontext.Value) error {
	var o struct {
		object
		Items []jsontext.Value `json:"items"`
	}
	if err := decode(data, &o.object); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	if o.Kind == "" {
		return s.addOwn(where, data)
	}
	kind, isList := strings.CutSuffix(o.Kind, "List")
	if !isList {
		return s.addObject(where, o.object, data)
	}
	if err := decode(data, &o); err != nil {
		return fmt.Errorf("%s: %s: %w", where, o.Kind, err)
	}
	for i, item := range o.Items {
		where := fmt.Sprintf("%s: items[%d]", where, i)
		of := object{}
		if err := decode(item, &of); err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
		if of.Kind == "" && kind != "" { // the API leaves it out in a ServiceList
			of.Kind, of.APIVersion = kind, o.APIVersion
		}
		if err := s.addObject(where, of, item); err != nil {
			return err
		}
	}
	return nil
}

// addObject adds an object of Kubernetes.
func (s *set) addObject(where string, o object, data jsontext.Value) error {
	id := o.Metadata.id()
	origin := fmt.Sprintf("%s: %s %s", where, o.Kind, id)
	known := map[string]string{"Service": "v1", "EndpointSlice": "discovery.k8s.io/v1"}
	if want, ok := known[o.Kind]; !ok || o.APIVersion != want && !strings.HasSuffix(want, "/"+o.APIVersion) {
		s.note("%s: not read: only Service (v1) and EndpointSlice (discovery.k8s.io/v1) are", origin)
		return nil
	}
	if o.Metadata.Name == "" {
		return fmt.Errorf("%s: metadata.name: missing", origin)
	}
	if s.kube.byName == nil {
		s.kube = cluster{nil, map[name]*kubeService{}, map[name][]*endpointSlice{}, map[name]string{}}
	}
	var err error
	if o.Kind == "Service" {
		v := &kubeService{origin: origin}
		if err = decode(data, v); err == nil {
			err = s.kube.addService(v, id)
		}
	} else {
		v := &endpointSlice{origin: origin}
		if err = decode(data, v); err == nil {
			err = s.kube.addSlice(v, id)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", origin, err)
	}
	return nil
}

func (c *cluster) addService(v *kubeService, id name) error {
	if had := c.byName[id]; had != nil {
		return fmt.Errorf("it is there already: %s", had.origin)
	}
	c.services, c.byName[id] = append(c.services, v), v
	return nil
}

func (c *cluster) addSlice(v *endpointSlice, id name) error {
	if had := c.seen[id]; had != "" {
		return fmt.Errorf("it is there already: %s", had)
	}
	c.seen[id] = v.origin
	of := v.Metadata.Labels[labelService]
	if of == "" {
		return errors.New("metadata.labels: " + labelService + " is missing")
	}
	id.name = of
	c.slices[id] = append(c.slices[id], v)
	return nil
}
