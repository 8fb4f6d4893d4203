// SPDX-License-Identifier: Apache-2.0

// Package policy decides which pods may talk, by the policies of Kubernetes, as docs/reference/policy.md explains.
package policy

import (
	"net/netip"
	"slices"

	"mustang/internal/service"
)

// Snapshot is the input of verdicts.
type Snapshot struct {
	Node       string // the name of this node: Steps makes rule sets for its pods
	Nodes      []Node
	Namespaces []Namespace
	Pods       []Pod
	Policies   []Policy
	// Previous is enforced until the rows of this snapshot are written. Steps also makes its rule sets: each verdict
	// between two writes is an old or a new one.
	Previous *Snapshot `json:"-"`
}

// Node is a machine with pods.
type Node struct {
	Name      string
	Labels    map[string]string
	Addresses []netip.Addr
}

// Namespace is a namespace of pods. Its label kubernetes.io/metadata.name is implicit.
type Namespace struct {
	Name   string
	Labels map[string]string
}

// Pod is a pod with its addresses.
type Pod struct {
	Namespace, Name string
	Labels          map[string]string
	Addresses       []netip.Addr
	Ports           []NamedPort
	HostNetwork     bool // pods have the addresses of their node: no policy selects them, as subject or as peer
	Node            string
}

// NamedPort is a port of a container that policies may name.
type NamedPort struct {
	Name     string
	Protocol service.Protocol
	Port     uint16
}

// Policy is a NetworkPolicy or a ClusterNetworkPolicy.
type Policy struct {
	Tier Tier
	// Priority orders the policies of tier Admin or Baseline, the lowest first, and policies of equal priority by name.
	Priority uint16
	// Namespace is empty in the tiers Admin and Baseline.
	Namespace, Name string
	// Subject selects the pods. It selects the namespace of a NetworkPolicy by the label kubernetes.io/metadata.name.
	Subject         PodSelector
	Ingress, Egress []Rule
	// IsolatesIngress and IsolatesEgress are the directions in which a NetworkPolicy denies what none allows.
	IsolatesIngress, IsolatesEgress bool
	// JudgesNode applies NetworkPolicies of the selected pods also to traffic with their node.
	JudgesNode bool `json:",omitempty"`
}

// Tier is the place of a policy in evaluation: a tier's decision is final. Without one, the next tier decides.
type Tier uint8

// The tiers in their order.
const (
	Admin      Tier = iota
	Namespaced      // NetworkPolicy
	Baseline
)

// String returns the tier's name in Kubernetes.
func (t Tier) String() string {
	return [...]string{"Admin", "NetworkPolicy", "Baseline"}[min(t, Baseline)]
}

// Action is the verdict of a rule.
type Action uint8

// Pass leaves the decision to the next tier. A NetworkPolicy has Accept only.
const (
	Accept Action = iota
	Deny
	Pass
)

// Rule matches traffic from or to any of its peers by any of its ports.
type Rule struct {
	Name   string `json:",omitempty"`
	Action Action
	Peers  []Peer // match any of them; empty: anyone
	Ports  []Port // match any of them; empty: any port of any protocol
}

// Peer has exactly one field.
type Peer struct {
	Pods  *PodSelector `json:",omitempty"`
	Nodes *Selector    `json:",omitempty"`
	Block *Block       `json:",omitempty"`
}

// Block is a range of addresses, including pods and nodes, without some ranges inside it.
type Block struct {
	CIDR   netip.Prefix
	Except []netip.Prefix `json:",omitempty"`
}

// PodSelector selects pods by their own labels and the labels of their namespace.
type PodSelector struct{ Namespaces, Pods Selector }

// Port is a range of destination ports, or a port that the destination pod names.
type Port struct {
	Protocol    service.Protocol // 0 means any protocol, and needs a Name
	First, Last uint16
	Name        string `json:",omitempty"`
}

func (p Port) isNamed(n NamedPort) bool {
	return p.Name == n.Name && (p.Protocol == 0 || p.Protocol == n.Protocol)
}

// Direction is the direction of a connection, seen from the pod that a policy selects.
type Direction uint8

// The directions.
const (
	Egress Direction = iota
	Ingress
)

// String returns "egress" or "ingress".
func (d Direction) String() string { return [...]string{"egress", "ingress"}[d] }

// Concerns reports whether the policy applies to a direction.
func (p *Policy) Concerns(d Direction) bool {
	_, ok := p.rules(d)
	return ok
}

func (p *Policy) rules(d Direction) (rules []Rule, ok bool) {
	rules, isolates := p.Egress, p.IsolatesEgress
	if d == Ingress {
		rules, isolates = p.Ingress, p.IsolatesIngress
	}
	if p.Tier == Namespaced {
		return rules, isolates
	}
	return rules, len(rules) > 0
}

func (p *Policy) allRules(yield func(Direction, *Rule) bool) {
	for d, rules := range [][]Rule{Egress: p.Egress, Ingress: p.Ingress} {
		for i := range rules {
			if !yield(Direction(d), &rules[i]) {
				return
			}
		}
	}
}

// MissingPorts returns the names of ports in the policy that no pod has, sorted.
func (p *Policy) MissingPorts(pods []Pod) (names []string) {
	for _, r := range p.allRules {
		for _, port := range r.Ports {
			has := func(pod Pod) bool { return slices.ContainsFunc(pod.Ports, port.isNamed) }
			if port.Name != "" && !slices.ContainsFunc(pods, has) {
				names = append(names, port.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Selector is a label selector of Kubernetes. All of its terms must hold, so an empty one selects everything.
type Selector struct {
	Labels       map[string]string `json:",omitempty"`
	Requirements []Requirement     `json:",omitempty"`
}

// Requirement is a term of a selector.
type Requirement struct {
	Key      string
	Operator string   // In, NotIn, Exists or DoesNotExist
	Values   []string `json:",omitempty"` // sorted
}

// NamespaceLabel is the label with the name of a namespace, which each namespace has.
const NamespaceLabel = "kubernetes.io/metadata.name"
