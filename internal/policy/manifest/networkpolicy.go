// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"mustang/internal/document"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// networkPolicySpec is the spec of a NetworkPolicy of networking.k8s.io/v1.
type networkPolicySpec struct {
	PodSelector labelSelector `json:"podSelector"`
	PolicyTypes []string      `json:"policyTypes"`
	Ingress     []ingressRule `json:"ingress"`
	Egress      []egressRule  `json:"egress"`
}

type ingressRule struct {
	From  []networkPolicyPeer `json:"from"`
	Ports []networkPolicyPort `json:"ports"`
}

type egressRule struct {
	To    []networkPolicyPeer `json:"to"`
	Ports []networkPolicyPort `json:"ports"`
}

type networkPolicyPeer struct {
	PodSelector       *labelSelector `json:"podSelector"`
	NamespaceSelector *labelSelector `json:"namespaceSelector"`
	IPBlock           *struct {
		CIDR   string   `json:"cidr"`
		Except []string `json:"except"`
	} `json:"ipBlock"`
}

type networkPolicyPort struct {
	Protocol *string        `json:"protocol"`
	Port     jsontext.Value `json:"port"` // a number or a name
	EndPort  *int64         `json:"endPort"`
}

func (s *set) addNetworkPolicy(o document.Object, data jsontext.Value) error {
	var of struct {
		Spec networkPolicySpec `json:"spec"`
	}
	err := decodeSpec(data, &of)
	if err != nil {
		return err
	}
	p := policy.Policy{Tier: policy.Namespaced, Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}
	if err := of.Spec.fill(&p); err != nil {
		return under("spec", err)
	}
	s.Snapshot.Policies = append(s.Snapshot.Policies, p)
	return p.Validate()
}

func (spec *networkPolicySpec) fill(p *policy.Policy) (err error) {
	p.Subject.Namespaces = inNamespace(p.Namespace)
	if p.Subject.Pods, err = spec.PodSelector.selector(); err != nil {
		return under("podSelector", err)
	}
	p.IsolatesIngress, p.IsolatesEgress = len(spec.PolicyTypes) == 0, len(spec.PolicyTypes) == 0 && len(spec.Egress) > 0
	for i, t := range spec.PolicyTypes {
		switch t {
		case "Ingress":
			p.IsolatesIngress = true
		case "Egress":
			p.IsolatesEgress = true
		default:
			return fmt.Errorf("policyTypes[%d]: %q: want Ingress or Egress", i, t)
		}
	}
	rule := func(field string, peers []networkPolicyPeer, ports []networkPolicyPort) (r policy.Rule, err error) {
		peer := func(q networkPolicyPeer) (policy.Peer, error) { return q.peer(p.Namespace) }
		if r.Peers, err = each(field, peers, peer); err == nil {
			r.Ports, err = each("ports", ports, networkPolicyPort.port)
		}
		return r, err
	}
	ingress := func(r ingressRule) (policy.Rule, error) { return rule("from", r.From, r.Ports) }
	egress := func(r egressRule) (policy.Rule, error) { return rule("to", r.To, r.Ports) }
	if p.Ingress, err = each("ingress", spec.Ingress, ingress); err == nil {
		p.Egress, err = each("egress", spec.Egress, egress)
	}
	return err
}

// inNamespace selects a namespace by its name.
func inNamespace(name string) policy.Selector {
	return policy.Selector{Labels: map[string]string{policy.NamespaceLabel: name}}
}

func (q networkPolicyPeer) peer(namespace string) (out policy.Peer, err error) {
	pods := q.PodSelector != nil || q.NamespaceSelector != nil
	switch {
	case q.IPBlock != nil && pods:
		return out, errors.New("ipBlock: it cannot be with podSelector or namespaceSelector")
	case q.IPBlock != nil:
		out.Block = &policy.Block{}
		if out.Block.CIDR, err = parseCIDR(q.IPBlock.CIDR); err != nil {
			return out, fmt.Errorf("ipBlock.cidr: %w", err)
		}
		for i, e := range q.IPBlock.Except {
			var p netip.Prefix
			if p, err = parseCIDR(e); err != nil {
				return out, fmt.Errorf("ipBlock.except[%d]: %w", i, err)
			}
			out.Block.Except = append(out.Block.Except, p)
		}
		return out, out.Block.Validate()
	case !pods:
		return out, errors.New("podSelector: missing: a peer has it, or namespaceSelector, or ipBlock")
	}
	out.Pods = &policy.PodSelector{Namespaces: inNamespace(namespace)}
	if q.NamespaceSelector != nil {
		if out.Pods.Namespaces, err = q.NamespaceSelector.selector(); err != nil {
			return out, under("namespaceSelector", err)
		}
	}
	if q.PodSelector != nil {
		if out.Pods.Pods, err = q.PodSelector.selector(); err != nil {
			return out, under("podSelector", err)
		}
	}
	return out, nil
}

func (q networkPolicyPort) port() (p policy.Port, err error) {
	p.Protocol = service.TCP
	if q.Protocol != nil {
		if p.Protocol, err = parseProtocol(*q.Protocol); err != nil {
			return p, fmt.Errorf("protocol: %w", err)
		}
	}
	switch q.Port.Kind() {
	case 0, 'n':
		if q.EndPort != nil {
			return p, errors.New("endPort: it needs port")
		}
		p.Last = math.MaxUint16
		return p, nil
	case '"':
		if err = document.Decode(q.Port, &p.Name); err == nil && p.Name == "" {
			err = errors.New("the name is empty")
		}
		if err == nil && q.EndPort != nil {
			return p, errors.New("endPort: port has to be a number")
		}
	case '0':
		var n int64
		if err = document.Decode(q.Port, &n); err == nil {
			p.First, err = portNumber(n)
			p.Last = p.First
		}
	default:
		err = errors.New("want a number or a name")
	}
	if err != nil {
		return p, fmt.Errorf("port: %w", err)
	}
	if q.EndPort != nil {
		if p.Last, err = portNumber(*q.EndPort); err == nil && p.Last < p.First {
			err = fmt.Errorf("%d is less than port %d", p.Last, p.First)
		}
		if err != nil {
			return p, fmt.Errorf("endPort: %w", err)
		}
	}
	return p, nil
}

// parseProtocol parses a protocol as Kubernetes writes it.
func parseProtocol(s string) (service.Protocol, error) {
	p, err := service.ParseProtocol(s)
	if err != nil || p == service.Any || s != strings.ToUpper(s) {
		return 0, fmt.Errorf("%q: want TCP, UDP or SCTP", s)
	}
	return p, nil
}

func portNumber(n int64) (uint16, error) {
	if n < 1 || n > math.MaxUint16 {
		return 0, fmt.Errorf("%d: want 1 to 65535", n)
	}
	return uint16(n), nil
}
