// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"unique"

	"github.com/go-json-experiment/json/jsontext"

	"mustang/internal/document"
	"mustang/internal/service"
)

// Name identifies an object of Kubernetes among objects of its kind.
type Name struct{ Namespace, Name string }

// String returns "shop/web".
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Compare orders names by namespace, then by name.
func (n Name) Compare(o Name) int {
	return cmp.Or(cmp.Compare(n.Namespace, o.Namespace), cmp.Compare(n.Name, o.Name))
}

// kubeService is the stored part of a v1 Service: a cluster has many.
type kubeService struct {
	Spec   serviceSpec
	Status serviceStatus

	uid     string
	origin  string // document and object
	created string // in RFC 3339, so that later is greater
	left    string // why another proxy serves it; empty: none does
}

func readService(origin string, data jsontext.Value) (*kubeService, error) {
	var o struct {
		document.Object
		Spec   serviceSpec   `json:"spec"`
		Status serviceStatus `json:"status"`
	}
	if err := document.Decode(data, &o); err != nil {
		return nil, err
	}
	for _, texts := range []*[]string{&o.Spec.ClusterIPs, &o.Spec.ExternalIPs, &o.Spec.LoadBalancerSourceRanges} {
		*texts = slices.Clone(*texts) // without the room that a decoder leaves for more
	}
	o.Spec.Ports, o.Spec.IPFamilies = slices.Clone(o.Spec.Ports), slices.Clone(o.Spec.IPFamilies)
	k := &kubeService{Spec: o.Spec, Status: o.Status, origin: origin, created: o.Metadata.Created, uid: o.Metadata.UID}
	if proxy, ok := o.Metadata.Labels[labelProxy]; ok {
		k.left = fmt.Sprintf("label %s names the proxy %q", labelProxy, proxy)
	} else if _, ok := o.Metadata.Labels[labelHeadless]; ok {
		k.left = "label " + labelHeadless
	}
	return k, nil
}

type serviceStatus struct {
	LoadBalancer struct {
		Ingress []ingress `json:"ingress"`
	} `json:"loadBalancer"`
}

type serviceSpec struct {
	Type                  string        `json:"type"`
	ClusterIP             string        `json:"clusterIP"`
	ClusterIPs            []string      `json:"clusterIPs"`
	ExternalIPs           []string      `json:"externalIPs"`
	IPFamilies            []family      `json:"ipFamilies"`
	Ports                 []servicePort `json:"ports"`
	SessionAffinity       byClientIP    `json:"sessionAffinity"`
	SessionAffinityConfig struct {
		ClientIP struct {
			TimeoutSeconds uint32 `json:"timeoutSeconds"`
		} `json:"clientIP"`
	} `json:"sessionAffinityConfig"`
	InternalTrafficPolicy    trafficPolicy `json:"internalTrafficPolicy"`
	ExternalTrafficPolicy    trafficPolicy `json:"externalTrafficPolicy"`
	LoadBalancerSourceRanges []string      `json:"loadBalancerSourceRanges"`
	LoadBalancerClass        string        `json:"loadBalancerClass"`
	LoadBalancerIP           string        `json:"loadBalancerIP"`
	HealthCheckNodePort      uint16        `json:"healthCheckNodePort"`
	PublishNotReadyAddresses bool          `json:"publishNotReadyAddresses"`
}

type servicePort struct {
	Name       string         `json:"name"`
	Protocol   protocol       `json:"protocol"`
	Port       uint16         `json:"port"`
	NodePort   uint16         `json:"nodePort"`
	TargetPort jsontext.Value `json:"targetPort"` // a number, or the name of a port of the pods
}

type ingress struct {
	IP     string `json:"ip"`
	IPMode string `json:"ipMode"`
}

// Values of some fields.
type (
	protocol      service.Protocol // 0: TCP
	trafficPolicy service.Policy
	byClientIP    bool
	family        string
)

// UnmarshalText parses a protocol.
func (p *protocol) UnmarshalText(text []byte) error {
	all := map[string]protocol{"": 0, "TCP": 0, "UDP": protocol(service.UDP), "SCTP": protocol(service.SCTP)}
	return parseWord(p, text, "TCP, UDP or SCTP", all)
}

// UnmarshalText parses a traffic policy.
func (p *trafficPolicy) UnmarshalText(text []byte) error {
	all := map[string]trafficPolicy{"": 0, "Cluster": 0, "Local": trafficPolicy(service.Local)}
	return parseWord(p, text, "Cluster or Local", all)
}

// UnmarshalText parses a session affinity.
func (a *byClientIP) UnmarshalText(text []byte) error {
	return parseWord(a, text, "ClientIP or None", map[string]byClientIP{"": false, "None": false, "ClientIP": true})
}

// UnmarshalText parses a family of addresses.
func (f *family) UnmarshalText(text []byte) error {
	return parseWord(f, text, "IPv4 or IPv6", map[string]family{"IPv4": "IPv4", "IPv6": "IPv6"})
}

func parseWord[T any](to *T, text []byte, want string, words map[string]T) error {
	word, ok := words[string(text)]
	if !ok {
		return fmt.Errorf("%q: want %s", text, want)
	}
	*to = word
	return nil
}

func familyOf(addr netip.Addr) family {
	if addr.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// endpointSlice is the stored part of an EndpointSlice of discovery.k8s.io/v1.
type endpointSlice struct {
	AddressType string
	Endpoints   []endpoint
	Ports       []endpointPort

	name    Name
	where   string   // the document; empty: the object is of a cluster
	service string   // whose it is
	bad     []string // why endpoints are not kept
}

func (s *endpointSlice) origin() string { return s.where + "EndpointSlice " + s.name.String() }

type endpoint struct {
	addr  netip.Addr // the first, as with kube-proxy: all reach one pod
	hints *hints     // nil: it has none
	state service.State
	local bool // on this node
	node  unique.Handle[string]
}

// hints are the names of the zones and nodes that should use an endpoint.
type hints struct {
	ForZones []hint `json:"forZones"`
	ForNodes []hint `json:"forNodes"`
}

type hint struct {
	Name string `json:"name"`
}

type endpointPort struct {
	Name     string   `json:"name"`
	Protocol protocol `json:"protocol"`
	Port     *uint16  `json:"port"`
}

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
	s := &endpointSlice{AddressType: o.AddressType, Ports: slices.Clone(o.Ports), name: n, where: where}
	s.service = o.Metadata.Labels[labelService]
	if !s.hasAddresses() {
		return s, nil
	}
	s.Endpoints = make([]endpoint, 0, len(o.Endpoints))
	for i, e := range o.Endpoints {
		if len(e.Addresses) == 0 {
			s.bad = append(s.bad, fmt.Sprintf("endpoints[%d].addresses: empty", i))
			continue
		}
		addr, err := netip.ParseAddr(e.Addresses[0])
		if err != nil || string(familyOf(addr)) != s.AddressType {
			const text = "endpoints[%d].addresses[0]: %q is not an address of type %s"
			s.bad = append(s.bad, fmt.Sprintf(text, i, e.Addresses[0], s.AddressType))
			continue
		}
		s.Endpoints = append(s.Endpoints, endpoint{addr, e.Hints, e.state(), e.NodeName != "" && e.NodeName == node,
			unique.Make(e.NodeName)})
	}
	return s, nil
}

func (s *endpointSlice) hasAddresses() bool {
	return s.AddressType == "IPv4" || s.AddressType == "IPv6"
}

type endpointObject struct {
	Addresses  []string `json:"addresses"`
	NodeName   string   `json:"nodeName"`
	Conditions struct {
		Ready       *bool `json:"ready"`
		Serving     *bool `json:"serving"`
		Terminating bool  `json:"terminating"`
	} `json:"conditions"`
	Hints *hints `json:"hints"`
}

// state returns the state of an endpoint. An endpoint that is not ready keeps its connections.
func (e *endpointObject) state() service.State {
	c := e.Conditions
	ready := c.Ready == nil || *c.Ready
	serving := c.Serving == nil && ready || c.Serving != nil && *c.Serving
	switch {
	case ready:
		return service.Active
	case c.Terminating && serving:
		return service.Terminating
	case c.Terminating:
		return service.Draining
	}
	return service.Quarantined
}

// Labels of Kubernetes.
const (
	labelService  = "kubernetes.io/service-name"
	labelProxy    = "service.kubernetes.io/service-proxy-name"
	labelHeadless = "service.kubernetes.io/headless"
)
