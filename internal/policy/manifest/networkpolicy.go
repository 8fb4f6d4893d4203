// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"errors"
	"fmt"
	"math"
	"net/netip"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"mustang/internal/document"
	"mustang/internal/policy"
	"mustang/internal/service"
)

type networkPolicySpec struct {
	PodSelector selector `json:"podSelector"`
	PolicyTypes []string `json:"policyTypes"`
	Ingress     []struct {
		From  []peer `json:"from"`
		Ports []port `json:"ports"`
	} `json:"ingress"`
	Egress []struct {
		To    []peer `json:"to"`
		Ports []port `json:"ports"`
	} `json:"egress"`
}

func (s *set) addNetworkPolicy(o document.Object, data jsontext.Value) error {
	var spec networkPolicySpec
	if err := decodeSpec(data, &spec); err != nil {
		return err
	}
	p := policy.Policy{Tier: policy.Namespaced, Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}
	p.Subject = policy.PodSelector{Namespaces: inNamespace(p.Namespace), Pods: spec.PodSelector.Selector}
	types := spec.PolicyTypes
	p.IsolatesIngress, p.IsolatesEgress = len(types) == 0, len(types) == 0 && len(spec.Egress) > 0
	for i, t := range types {
		if t != "Ingress" && t != "Egress" {
			return fmt.Errorf("spec.policyTypes[%d]: %q: want Ingress or Egress", i, t)
		}
		p.IsolatesIngress, p.IsolatesEgress = p.IsolatesIngress || t == "Ingress", p.IsolatesEgress || t == "Egress"
	}
	for _, r := range spec.Ingress {
		p.Ingress = append(p.Ingress, rule(p.Namespace, r.From, r.Ports))
	}
	for _, r := range spec.Egress {
		p.Egress = append(p.Egress, rule(p.Namespace, r.To, r.Ports))
	}
	return s.addPolicy(p)
}

func rule(namespace string, peers []peer, ports []port) (r policy.Rule) {
	for _, q := range peers {
		if q.own {
			q.Pods.Namespaces = inNamespace(namespace)
		}
		r.Peers = append(r.Peers, q.Peer)
	}
	for _, q := range ports {
		r.Ports = append(r.Ports, policy.Port(q))
	}
	return r
}

func inNamespace(name string) policy.Selector {
	return policy.Selector{Labels: map[string]string{policy.NamespaceLabel: name}}
}

type peer struct {
	policy.Peer
	own bool // pods of the policy's own namespace
}

// UnmarshalJSONFrom decodes it.
func (p *peer) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	var of struct {
		PodSelector       *selector `json:"podSelector"`
		NamespaceSelector *selector `json:"namespaceSelector"`
		IPBlock           *struct {
			CIDR   netip.Prefix   `json:"cidr"`
			Except []netip.Prefix `json:"except"`
		} `json:"ipBlock"`
	}
	err := json.UnmarshalDecode(d, &of)
	pods := of.PodSelector != nil || of.NamespaceSelector != nil
	switch {
	case err != nil:
		return err
	case of.IPBlock != nil && pods:
		return fieldError("ipBlock", errors.New("it cannot be with podSelector or namespaceSelector"))
	case of.IPBlock != nil:
		p.Block = &policy.Block{CIDR: masked(of.IPBlock.CIDR)}
		for _, e := range of.IPBlock.Except {
			p.Block.Except = append(p.Block.Except, masked(e))
		}
		return nil
	case !pods:
		return fieldError("podSelector", errors.New("missing: a peer has it, or namespaceSelector, or ipBlock"))
	}
	p.Pods, p.own = &policy.PodSelector{}, of.NamespaceSelector == nil
	if of.NamespaceSelector != nil {
		p.Pods.Namespaces = of.NamespaceSelector.Selector
	}
	if of.PodSelector != nil {
		p.Pods.Pods = of.PodSelector.Selector
	}
	return nil
}

type port policy.Port

// UnmarshalJSONFrom decodes it.
func (p *port) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	of := struct {
		Protocol protocol       `json:"protocol"`
		Port     jsontext.Value `json:"port"` // a number or a name
		EndPort  *portNumber    `json:"endPort"`
	}{Protocol: protocol(service.TCP)}
	if err := json.UnmarshalDecode(d, &of); err != nil {
		return err
	}
	if p.Protocol = service.Protocol(of.Protocol); of.Protocol == 0 { // null
		p.Protocol = service.TCP
	}
	var number portNumber
	var err error
	kind := of.Port.Kind()
	switch {
	case kind != '0' && of.EndPort != nil:
		return fieldError("endPort", errors.New("port has to be a number"))
	case kind == '"':
		if err = document.Decode(of.Port, &p.Name); err == nil && p.Name == "" {
			err = errors.New("the name is empty")
		}
	case kind == '0':
		err = document.Decode(of.Port, &number)
		p.First, p.Last = uint16(number), uint16(number)
	case of.Port == nil || kind == 'n':
		p.Last = math.MaxUint16
	default:
		err = errors.New("want a number or a name")
	}
	if err != nil {
		return fieldError("port", err)
	}
	if of.EndPort != nil {
		p.Last = uint16(*of.EndPort)
	}
	return nil
}

// masked returns the network of a prefix. IPv4-mapped prefixes stay as they are: Validate refuses them.
func masked(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() {
		return p
	}
	return p.Masked()
}
