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
	service string // whose it is; of a Cluster only
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
	byName   map[Name]*kubeService
	slices   map[Name][]*endpointSlice // by the service
	seen     map[Name]string           // slices: where they are
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
	if s.kube.byName == nil {
		s.kube = cluster{nil, map[Name]*kubeService{}, map[Name][]*endpointSlice{}, map[Name]string{}}
	}
	var err error
	if o.Kind == "Service" {
		v := &kubeService{origin: origin}
		if err = document.Decode(data, v); err == nil {
			err = s.kube.addService(v, id)
		}
	} else {
		v := &endpointSlice{origin: origin}
		if err = document.Decode(data, v); err == nil {
			err = s.kube.addSlice(v, id)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", origin, err)
	}
	return nil
}

func (c *cluster) addService(v *kubeService, id Name) error {
	if had := c.byName[id]; had != nil {
		return fmt.Errorf("it is there already: %s", had.origin)
	}
	c.services, c.byName[id] = append(c.services, v), v
	return nil
}

func (c *cluster) addSlice(v *endpointSlice, id Name) error {
	if had := c.seen[id]; had != "" {
		return fmt.Errorf("it is there already: %s", had)
	}
	c.seen[id] = v.origin
	of := v.Metadata.Labels[labelService]
	if of == "" {
		return errors.New("metadata.labels: " + labelService + " is missing")
	}
	id.Name = of
	c.slices[id] = append(c.slices[id], v)
	return nil
}
