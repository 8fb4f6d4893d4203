// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"mustang/internal/document"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// Set is the content of a file.
type Set struct {
	Snapshot policy.Snapshot // lacks the name of this node
	Notes    []string        // list what was left out, a line each

	seen map[string]string // where an object is, by kind and name
}

// Add adds the content of another file of this name. Its error names an object that both files have.
func (s *Set) Add(file string, other Set) error {
	if s.seen == nil {
		s.seen = map[string]string{}
	}
	for _, object := range slices.Sorted(maps.Keys(other.seen)) {
		where := file + ": " + other.seen[object]
		if had := s.seen[object]; had != "" {
			return fmt.Errorf("%s: it is there already: %s", where, had)
		}
		s.seen[object] = where
	}
	to, from := &s.Snapshot, other.Snapshot
	to.Nodes, to.Namespaces = append(to.Nodes, from.Nodes...), append(to.Namespaces, from.Namespaces...)
	to.Pods, to.Policies = append(to.Pods, from.Pods...), append(to.Policies, from.Policies...)
	for _, note := range other.Notes {
		s.Notes = append(s.Notes, file+": "+note)
	}
	return nil
}

type set struct {
	Set
	written bool // by somebody, not by a cluster
}

func (s *set) addPolicy(p policy.Policy) error {
	s.Snapshot.Policies = append(s.Snapshot.Policies, p)
	if err := p.Validate(); err != nil || !s.written {
		return err
	}
	return p.ValidateLabels()
}

type pod struct {
	Spec struct {
		NodeName       string      `json:"nodeName"`
		HostNetwork    bool        `json:"hostNetwork"`
		Containers     []container `json:"containers"`
		InitContainers []container `json:"initContainers"`
	} `json:"spec"`
	Status struct {
		Phase  string     `json:"phase"`
		PodIP  netip.Addr `json:"podIP"`
		PodIPs []struct {
			IP netip.Addr `json:"ip"`
		} `json:"podIPs"`
	} `json:"status"`
}

type container struct {
	RestartPolicy string `json:"restartPolicy"`
	Ports         []struct {
		Name          string     `json:"name"`
		Protocol      protocol   `json:"protocol"`
		ContainerPort portNumber `json:"containerPort"`
	} `json:"ports"`
}

type node struct {
	Status struct {
		Addresses []struct {
			Type    string `json:"type"`
			Address string `json:"address"`
		} `json:"addresses"`
	} `json:"status"`
}

func (s *set) addNamespace(o document.Object, _ jsontext.Value) error {
	s.Snapshot.Namespaces = append(s.Snapshot.Namespaces, policy.Namespace{Name: o.Metadata.Name,
		Labels: o.Metadata.Labels})
	return nil
}

func (s *set) addNode(o document.Object, data jsontext.Value) error {
	var of node
	if err := document.Decode(data, &of); err != nil {
		return err
	}
	n := policy.Node{Name: o.Metadata.Name, Labels: o.Metadata.Labels}
	for i, a := range of.Status.Addresses {
		if a.Type != "InternalIP" && a.Type != "ExternalIP" {
			continue
		}
		addr, err := netip.ParseAddr(a.Address)
		if err != nil {
			return fmt.Errorf("status.addresses[%d].address: %q is not an address", i, a.Address)
		}
		n.Addresses = append(n.Addresses, addr)
	}
	s.Snapshot.Nodes = append(s.Snapshot.Nodes, n)
	return nil
}

func (s *set) addPod(o document.Object, data jsontext.Value) error {
	var of pod
	if err := document.Decode(data, &of); err != nil {
		return err
	}
	if of.Status.Phase == "Succeeded" || of.Status.Phase == "Failed" {
		return nil // another pod may have its address
	}
	p := policy.Pod{
		Namespace: o.Metadata.Namespace, Name: o.Metadata.Name, Labels: o.Metadata.Labels,
		HostNetwork: of.Spec.HostNetwork, Node: of.Spec.NodeName,
	}
	for _, a := range of.Status.PodIPs {
		p.Addresses = append(p.Addresses, a.IP)
	}
	if len(p.Addresses) == 0 && of.Status.PodIP.IsValid() {
		p.Addresses = []netip.Addr{of.Status.PodIP}
	}
	once := func(c container) bool { return c.RestartPolicy != "Always" } // others are sidecars
	for _, c := range append(of.Spec.Containers, slices.DeleteFunc(of.Spec.InitContainers, once)...) {
		for _, q := range c.Ports {
			if q.Name != "" && q.ContainerPort == 0 {
				return fmt.Errorf("spec.containers: port %q: containerPort: missing", q.Name)
			}
			if q.Name != "" {
				of := cmp.Or(service.Protocol(q.Protocol), service.TCP)
				p.Ports = append(p.Ports, policy.NamedPort{Name: q.Name, Protocol: of, Port: uint16(q.ContainerPort)})
			}
		}
	}
	s.Snapshot.Pods = append(s.Snapshot.Pods, p)
	return nil
}

func decodeSpec(data jsontext.Value, spec any) error {
	var o struct {
		Spec jsontext.Value `json:"spec"`
	}
	if err := document.Decode(data, &o); err != nil {
		return err
	}
	if o.Spec == nil {
		return errors.New("spec: missing")
	}
	err := document.Decode(o.Spec, spec, json.RejectUnknownMembers(true))
	if field := (*document.FieldError)(nil); errors.As(err, &field) {
		return fieldError("spec"+string(field.Pointer), field.Err)
	} else if err != nil {
		return fmt.Errorf("spec: %w", err)
	}
	return nil
}

func fieldError(field string, err error) error {
	return &document.FieldError{Pointer: jsontext.Pointer("/" + field), Err: err}
}

type selector struct{ policy.Selector }

// UnmarshalJSONFrom decodes and validates it.
func (s *selector) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	var of struct {
		MatchLabels      map[string]string `json:"matchLabels"`
		MatchExpressions []struct {
			Key      string   `json:"key"`
			Operator string   `json:"operator"`
			Values   []string `json:"values"`
		} `json:"matchExpressions"`
	}
	if err := json.UnmarshalDecode(d, &of); err != nil {
		return err
	}
	s.Labels = of.MatchLabels
	for i, e := range of.MatchExpressions {
		r := policy.Requirement{Key: e.Key, Operator: e.Operator, Values: e.Values}
		r.Sort()
		if err := r.Validate(); err != nil {
			return fieldError(fmt.Sprintf("matchExpressions/%d", i), err)
		}
		s.Requirements = append(s.Requirements, r)
	}
	return nil
}

type protocol service.Protocol

// UnmarshalText parses it.
func (p *protocol) UnmarshalText(text []byte) error {
	of, err := service.ParseProtocol(string(text))
	if err != nil || of == service.Any || string(text) != strings.ToUpper(string(text)) {
		return fmt.Errorf("%q: want TCP, UDP or SCTP", text)
	}
	*p = protocol(of)
	return nil
}

type portNumber uint16

// UnmarshalJSONFrom decodes and validates it.
func (p *portNumber) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	var n int
	if err := json.UnmarshalDecode(d, &n); err != nil {
		return err
	}
	if n < 1 || n > math.MaxUint16 {
		return fmt.Errorf("%d: want 1 to 65535", n)
	}
	*p = portNumber(n)
	return nil
}
