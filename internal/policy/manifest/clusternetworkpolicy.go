// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"mustang/internal/document"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// clusterSpec is the spec of a ClusterNetworkPolicy of policy.networking.k8s.io, the same in v1beta1 and v1alpha2.
type clusterSpec struct {
	Tier     string        `json:"tier"`
	Priority *int64        `json:"priority"`
	Subject  clusterPeer   `json:"subject"`
	Ingress  []clusterRule `json:"ingress"`
	Egress   []clusterRule `json:"egress"`
}

type clusterRule struct {
	Name      string            `json:"name"`
	Action    string            `json:"action"`
	From      []clusterPeer     `json:"from"`
	To        []clusterPeer     `json:"to"`
	Protocols []clusterProtocol `json:"protocols"`
}

// clusterPeer is a peer, or a subject, which has the first two fields only.
type clusterPeer struct {
	Namespaces *labelSelector `json:"namespaces"`
	Pods       *struct {
		NamespaceSelector labelSelector `json:"namespaceSelector"`
		PodSelector       labelSelector `json:"podSelector"`
	} `json:"pods"`
	Nodes       *labelSelector `json:"nodes"`
	Networks    []string       `json:"networks"`
	DomainNames []string       `json:"domainNames"`
}

type clusterProtocol struct {
	TCP                  *clusterPorts `json:"tcp"`
	UDP                  *clusterPorts `json:"udp"`
	SCTP                 *clusterPorts `json:"sctp"`
	DestinationNamedPort string        `json:"destinationNamedPort"`
}

type clusterPorts struct {
	DestinationPort *struct {
		Number *int64 `json:"number"`
		Range  *struct {
			Start int64 `json:"start"`
			End   int64 `json:"end"`
		} `json:"range"`
	} `json:"destinationPort"`
}

// maxItems is the most that the API takes in a list of rules, peers, protocols or networks.
const maxItems = 25

func (s *set) addClusterNetworkPolicy(o document.Object, data jsontext.Value) error {
	var of struct {
		Spec clusterSpec `json:"spec"`
	}
	if err := decodeSpec(data, &of); err != nil {
		return err
	}
	p := policy.Policy{Name: o.Metadata.Name}
	if err := of.Spec.fill(&p); err != nil {
		return under("spec", err)
	}
	s.Snapshot.Policies = append(s.Snapshot.Policies, p)
	return p.Validate()
}

func (spec *clusterSpec) fill(p *policy.Policy) (err error) {
	switch spec.Tier {
	case "Admin":
		p.Tier = policy.Admin
	case "Baseline":
		p.Tier = policy.Baseline
	default:
		return fmt.Errorf("tier: %q: want Admin or Baseline", spec.Tier)
	}
	switch {
	case spec.Priority == nil:
		return errors.New("priority: missing")
	case *spec.Priority < 0 || *spec.Priority > 1000:
		return fmt.Errorf("priority: %d: want 0 to 1000", *spec.Priority)
	}
	p.Priority = uint16(*spec.Priority)
	if !spec.Subject.ofPods() {
		return errors.New("subject: want either namespaces or pods")
	}
	subject, err := spec.Subject.peers()
	if err != nil {
		return under("subject", err)
	}
	p.Subject = *subject[0].Pods
	if err := tooMany("ingress", len(spec.Ingress)); err != nil {
		return err
	}
	if err := tooMany("egress", len(spec.Egress)); err != nil {
		return err
	}
	if p.Ingress, err = each("ingress", spec.Ingress, clusterRule.ingress); err == nil {
		p.Egress, err = each("egress", spec.Egress, clusterRule.egress)
	}
	return err
}

func tooMany(field string, n int) error {
	if n > maxItems {
		return fmt.Errorf("%s: %d of them: want at most %d", field, n, maxItems)
	}
	return nil
}

func (r clusterRule) ingress() (policy.Rule, error) {
	if r.To != nil {
		return policy.Rule{}, errors.New("to: unknown field")
	}
	for i, q := range r.From {
		if !q.ofPods() {
			return policy.Rule{}, fmt.Errorf("from[%d]: want either namespaces or pods", i)
		}
	}
	return r.rule("from", r.From)
}

func (r clusterRule) egress() (policy.Rule, error) {
	if r.From != nil {
		return policy.Rule{}, errors.New("from: unknown field")
	}
	for i, q := range r.To {
		if q.fields() != 1 {
			return policy.Rule{}, fmt.Errorf("to[%d]: want exactly one of namespaces, pods, nodes and networks", i)
		}
	}
	named := slices.ContainsFunc(r.Protocols, func(p clusterProtocol) bool { return p.DestinationNamedPort != "" })
	if named && slices.ContainsFunc(r.To, func(q clusterPeer) bool { return q.Nodes != nil || q.Networks != nil }) {
		return policy.Rule{}, errors.New("protocols: nodes and networks lack named ports")
	}
	return r.rule("to", r.To)
}

func (r clusterRule) rule(field string, peers []clusterPeer) (out policy.Rule, err error) {
	actions := map[string]policy.Action{"Accept": policy.Accept, "Deny": policy.Deny, "Pass": policy.Pass}
	action, ok := actions[r.Action]
	switch {
	case !ok:
		return out, fmt.Errorf("action: %q: want Accept, Deny or Pass", r.Action)
	case len(peers) == 0:
		return out, fmt.Errorf("%s: missing", field)
	case r.Protocols != nil && len(r.Protocols) == 0:
		return out, errors.New("protocols: empty: leave it out to match all")
	}
	if err := errors.Join(tooMany(field, len(peers)), tooMany("protocols", len(r.Protocols))); err != nil {
		return out, err
	}
	out.Name, out.Action = r.Name, action
	lists, err := each(field, peers, clusterPeer.peers)
	if err != nil {
		return out, err
	}
	out.Peers = slices.Concat(lists...)
	out.Ports, err = each("protocols", r.Protocols, clusterProtocol.port)
	return out, err
}

// fields returns how many of the fields are there, of which a peer has one.
func (q clusterPeer) fields() (n int) {
	for _, is := range []bool{q.Namespaces != nil, q.Pods != nil, q.Nodes != nil, q.Networks != nil, q.DomainNames != nil} {
		if is {
			n++
		}
	}
	return n
}

// ofPods reports whether one field is there, of those that subjects and peers of ingress may have.
func (q clusterPeer) ofPods() bool { return q.fields() == 1 && (q.Namespaces != nil || q.Pods != nil) }

// peers returns a peer that has one field, or as many as it has networks.
func (q clusterPeer) peers() (out []policy.Peer, err error) {
	var p policy.PodSelector
	switch {
	case q.Namespaces != nil:
		if p.Namespaces, err = q.Namespaces.selector(); err != nil {
			return nil, under("namespaces", err)
		}
	case q.Pods != nil:
		if p.Namespaces, err = q.Pods.NamespaceSelector.selector(); err != nil {
			return nil, under("pods.namespaceSelector", err)
		}
		if p.Pods, err = q.Pods.PodSelector.selector(); err != nil {
			return nil, under("pods.podSelector", err)
		}
	case q.Nodes != nil:
		nodes, err := q.Nodes.selector()
		return []policy.Peer{{Nodes: &nodes}}, under("nodes", err)
	case q.DomainNames != nil:
		return nil, errors.New("domainNames: not supported: rules know addresses only")
	case len(q.Networks) == 0:
		return nil, errors.New("networks: empty")
	default:
		for i, n := range q.Networks {
			cidr, err := parseCIDR(n)
			if err != nil {
				return nil, fmt.Errorf("networks[%d]: %w", i, err)
			}
			out = append(out, policy.Peer{Block: &policy.Block{CIDR: cidr}})
		}
		return out, tooMany("networks", len(out))
	}
	return []policy.Peer{{Pods: &p}}, nil
}

func (q clusterProtocol) port() (p policy.Port, err error) {
	var ports *clusterPorts
	name, fields := "destinationNamedPort", 0
	for _, of := range []struct {
		name     string
		protocol service.Protocol
		ports    *clusterPorts
	}{{"tcp", service.TCP, q.TCP}, {"udp", service.UDP, q.UDP}, {"sctp", service.SCTP, q.SCTP}} {
		if of.ports != nil {
			name, p.Protocol, ports = of.name, of.protocol, of.ports
			fields++
		}
	}
	if q.DestinationNamedPort != "" {
		p.Name = q.DestinationNamedPort
		fields++
	}
	switch {
	case fields != 1:
		return p, errors.New("tcp: want exactly one of tcp, udp, sctp and destinationNamedPort")
	case ports == nil:
		return p, nil
	case ports.DestinationPort == nil:
		p.Last = math.MaxUint16
		return p, nil
	}
	at := ports.DestinationPort
	switch {
	case (at.Number == nil) == (at.Range == nil):
		err = errors.New("number: want either number or range")
	case at.Number != nil:
		if p.First, err = portNumber(*at.Number); err != nil {
			err = fmt.Errorf("number: %w", err)
		}
		p.Last = p.First
	default:
		if p.First, err = portNumber(at.Range.Start); err != nil {
			err = fmt.Errorf("range.start: %w", err)
		} else if p.Last, err = portNumber(at.Range.End); err != nil {
			err = fmt.Errorf("range.end: %w", err)
		} else if p.Last <= p.First {
			err = fmt.Errorf("range.end: %d is not greater than start %d", p.Last, p.First)
		}
	}
	return p, under(name+".destinationPort", err)
}
