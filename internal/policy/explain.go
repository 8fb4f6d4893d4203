// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"mustang/internal/service"
)

// Flow is the first packet of a connection, after the translation of services.
type Flow struct {
	Source, Destination netip.Addr
	// Protocol is any IP protocol; only TCP, UDP and SCTP have ports.
	Protocol service.Protocol
	Port     uint16
}

// Decision is a verdict with its reason.
type Decision struct {
	Allow  bool
	Origin Origin
}

// Origin is the policy, rule or default behind a decision. The zero value means that no policy decides: all is allowed.
type Origin struct {
	Reason          Reason
	Tier            Tier
	Namespace, Name string // of the policy
	Direction       Direction
	Index           int // of the rule in its direction
}

// Reason is the kind of an origin.
type Reason uint8

// The reasons.
const (
	Default     Reason = iota
	ByRule             // a rule of a policy
	DefaultDeny        // the policy isolates the pod, and no policy has a rule for the traffic
	ToItself           // a pod always reaches itself
	OwnNode            // a pod and its node reach each other, but for tier Admin and policies that judge the node
)

// String returns a readable line.
func (o Origin) String() string {
	policy := "NetworkPolicy " + o.Namespace + "/" + o.Name
	if o.Tier != Namespaced {
		policy = fmt.Sprintf("ClusterNetworkPolicy %s (%s)", o.Name, o.Tier)
	}
	switch {
	case o.Reason == ByRule:
		return fmt.Sprintf("%s, rule %s[%d]", policy, o.Direction, o.Index)
	case o.Reason == DefaultDeny:
		return fmt.Sprintf("%s, default deny of %s", policy, o.Direction)
	case o.Reason == ToItself:
		return "a pod always reaches itself"
	case o.Reason == OwnNode:
		return "a pod and its node reach each other"
	case o.Name != "":
		return policy
	}
	return "default: no policy decides"
}

// Rule returns the rule that made the decision; nil if no rule did, or the policy is another one.
func (o Origin) Rule(of *Policy) *Rule {
	rules, _ := of.rules(o.Direction)
	if o.Reason != ByRule || of.Tier != o.Tier || of.Namespace != o.Namespace || of.Name != o.Name ||
		o.Index >= len(rules) {
		return nil
	}
	return &rules[o.Index]
}

// digest identifies a rule by its place in a policy, not by its content, so that a change of a policy leaves the
// numbers of the others. Names of Kubernetes have no zero byte.
func (o Origin) digest() Digest {
	f := newForm("rule")
	f.bytes(byte(o.Reason), byte(o.Tier), byte(o.Direction))
	*f = binary.BigEndian.AppendUint32(*f, uint32(o.Index))
	*f = append(append(append(*f, o.Namespace...), 0), o.Name...)
	return f.digest()
}

// origin returns the policy, without a rule.
func (p *Policy) origin() Origin { return Origin{Tier: p.Tier, Namespace: p.Namespace, Name: p.Name} }

// Explain evaluates the policies for a flow by their definition, without regard to cost: egress at its source, ingress
// at its destination. The flow passes if both allow it.
func Explain(s Snapshot, f Flow) (egress, ingress Decision, err error) {
	v, err := newView(&s)
	if err != nil {
		return Decision{}, Decision{}, err
	}
	return v.decide(f, Egress), v.decide(f, Ingress), nil
}

// Isolating returns the NetworkPolicies, by NAMESPACE/NAME, that select the pod at a flow's end in a direction: they
// deny what none of their rules allows.
func Isolating(s Snapshot, f Flow, d Direction) (names []string, err error) {
	v, err := newView(&s)
	if err != nil {
		return nil, err
	}
	subject, _ := f.ends(d)
	for _, p := range v.selecting(v.pods[subject], d) {
		if p.Tier == Namespaced {
			names = append(names, p.Namespace+"/"+p.Name)
		}
	}
	return slices.Compact(names), nil
}

// ends returns the pod that policies of a direction select, and its peer.
func (f Flow) ends(d Direction) (subject, peer netip.Addr) {
	if d == Ingress {
		return f.Destination.Unmap(), f.Source.Unmap()
	}
	return f.Source.Unmap(), f.Destination.Unmap()
}

// view indexes a snapshot by address.
type view struct {
	pods       map[netip.Addr]*Pod
	nodes      map[netip.Addr]*Node
	namespaces map[string]map[string]string
	policies   []*entry // in their order
}

func newView(s *Snapshot) (*view, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	v := &view{map[netip.Addr]*Pod{}, map[netip.Addr]*Node{}, s.NamespaceLabels(), make([]*entry, len(s.Policies))}
	for i := range s.Policies {
		v.policies[i] = &entry{Policy: &s.Policies[i], id: s.Policies[i].Digest()}
	}
	slices.SortFunc(v.policies, (*entry).compare)
	for i := range s.Nodes {
		for _, a := range s.Nodes[i].Addresses {
			v.nodes[a.Unmap()] = &s.Nodes[i]
		}
	}
	for i := range s.Pods {
		for _, a := range s.Pods[i].Addresses {
			if !s.Pods[i].HostNetwork {
				v.pods[a.Unmap()] = &s.Pods[i]
			}
		}
	}
	return v, nil
}

// compare compares policies by their order. Policies of several sources with one name have a stable order.
func (e *entry) compare(f *entry) int {
	return cmp.Or(cmp.Compare(e.Tier, f.Tier), cmp.Compare(e.Priority, f.Priority),
		cmp.Compare(e.Namespace, f.Namespace), cmp.Compare(e.Name, f.Name), bytes.Compare(e.id[:], f.id[:]))
}

// decide evaluates a flow in one direction.
func (v *view) decide(f Flow, d Direction) Decision {
	subject, peer := f.ends(d)
	pod := v.pods[subject]
	if pod != nil && subject == peer {
		return Decision{true, Origin{Reason: ToItself}}
	}
	selecting := v.selecting(pod, d)
	isolated := slices.ContainsFunc(selecting, func(p *Policy) bool { return p.Tier == Namespaced })
	judged := slices.ContainsFunc(selecting, func(p *Policy) bool { return p.JudgesNode })
	for t := Admin; t <= Baseline; t++ {
		node := v.nodes[peer]
		if t == Namespaced && isolated && node != nil && node.Name == pod.Node && !judged {
			return Decision{true, Origin{Reason: OwnNode}}
		}
		if decision, ok := v.tier(t, selecting, f, d); ok {
			return decision
		}
	}
	return Decision{Allow: true}
}

// selecting returns the policies that select a pod and apply to a direction.
func (v *view) selecting(pod *Pod, d Direction) (out []*Policy) {
	if pod == nil {
		return nil
	}
	for _, p := range v.policies {
		if p.Concerns(d) && p.Subject.matches(v.namespaces[pod.Namespace], pod.Labels) {
			out = append(out, p.Policy)
		}
	}
	return out
}

// tier evaluates the policies of a tier; ok is false if they leave the decision to the next tier.
func (v *view) tier(t Tier, selecting []*Policy, f Flow, d Direction) (decision Decision, ok bool) {
	for _, p := range selecting {
		if p.Tier != t {
			continue
		}
		rules, _ := p.rules(d)
		origin := p.origin()
		origin.Direction = d
		if t == Namespaced && !ok {
			origin.Reason = DefaultDeny
			decision, ok = Decision{false, origin}, true
		}
		origin.Reason = ByRule
		for origin.Index = range rules {
			switch r := &rules[origin.Index]; {
			case !v.matches(r, f, d):
			case r.Action == Pass:
				return Decision{}, false
			default:
				return Decision{r.Action == Accept, origin}, true
			}
		}
	}
	return decision, ok
}

func (v *view) matches(r *Rule, f Flow, d Direction) bool {
	_, peer := f.ends(d)
	return (len(r.Peers) == 0 || slices.ContainsFunc(r.Peers, func(p Peer) bool { return v.isPeer(p, peer) })) &&
		(len(r.Ports) == 0 || slices.ContainsFunc(r.Ports, func(p Port) bool { return v.isPort(p, f) }))
}

func (v *view) isPeer(p Peer, a netip.Addr) bool {
	switch {
	case p.Pods != nil:
		pod := v.pods[a]
		return pod != nil && p.Pods.matches(v.namespaces[pod.Namespace], pod.Labels)
	case p.Nodes != nil:
		node := v.nodes[a]
		return node != nil && p.Nodes.Matches(node.Labels)
	}
	return p.Block.CIDR.Contains(a) &&
		!slices.ContainsFunc(p.Block.Except, func(e netip.Prefix) bool { return e.Contains(a) })
}

func (v *view) isPort(p Port, f Flow) bool {
	if p.Name == "" {
		return p.Protocol == f.Protocol && p.First <= f.Port && f.Port <= p.Last
	}
	pod := v.pods[f.Destination.Unmap()]
	return pod != nil && slices.ContainsFunc(pod.Ports, func(n NamedPort) bool {
		return p.isNamed(n) && n.Protocol == f.Protocol && n.Port == f.Port
	})
}
