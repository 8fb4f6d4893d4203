// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"mustang/internal/service"
)

// Flow is the first packet of a connection, after the translation of services.
type Flow struct {
	Source, Destination netip.Addr
	Protocol            service.Protocol // any IP protocol; only TCP, UDP and SCTP have ports
	Port                uint16
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

// digest identifies a rule by its place, so that a change of a policy leaves the numbers of the others.
func (o Origin) digest() Digest {
	f := newForm("rule")
	f.bytes(byte(o.Reason), byte(o.Tier), byte(o.Direction))
	*f = binary.BigEndian.AppendUint32(*f, uint32(o.Index))
	*f = append(append(append(*f, o.Namespace...), 0), o.Name...)
	return f.digest()
}

func (p *Policy) origin() Origin { return Origin{Tier: p.Tier, Namespace: p.Namespace, Name: p.Name} }

// Explain decides a flow like a datapath: egress at its source, ingress at its destination. Both must allow it.
func Explain(s Snapshot, f Flow) (egress, ingress Decision, err error) {
	s.Previous = nil
	decisions := [2]Decision{Egress: {Allow: true}, Ingress: {Allow: true}}
	for d := range decisions {
		pod := s.subject(f, Direction(d))
		if pod == nil {
			continue
		}
		s.Node = pod.Node
		rows, err := compile(s, Rows{}, Limits{})
		if err != nil {
			return Decision{}, Decision{}, err
		}
		decisions[d] = rows.Lookup(f, Direction(d), s.Rules(rows.Numbers))
	}
	return decisions[Egress], decisions[Ingress], nil
}

// Isolating returns the NetworkPolicies, by NAMESPACE/NAME, that isolate the pod at a flow's end in a direction.
func Isolating(s Snapshot, f Flow, d Direction) (names []string) {
	pod, namespaces := s.subject(f, d), s.NamespaceLabels()
	for i := range s.Policies {
		p := &s.Policies[i]
		if pod != nil && p.Tier == Namespaced && p.Concerns(d) && p.Subject.matches(namespaces[pod.Namespace], pod.Labels) {
			names = append(names, p.Namespace+"/"+p.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (s *Snapshot) subject(f Flow, d Direction) *Pod {
	subject, _ := f.ends(d)
	i := slices.IndexFunc(s.Pods, func(p Pod) bool {
		return !p.HostNetwork && slices.ContainsFunc(p.Addresses, func(a netip.Addr) bool { return a.Unmap() == subject })
	})
	if i < 0 {
		return nil
	}
	return &s.Pods[i]
}

func (f Flow) ends(d Direction) (subject, peer netip.Addr) {
	if d == Ingress {
		return f.Destination.Unmap(), f.Source.Unmap()
	}
	return f.Source.Unmap(), f.Destination.Unmap()
}

// Lookup decides like a datapath with these rows. Rules has the origins of the rules' numbers.
func (r *Rows) Lookup(f Flow, d Direction, rules map[uint32]Origin) Decision {
	endpoint, peer := f.ends(d)
	sets, known := r.Endpoints[mapped(endpoint)]
	set := [...]uint32{Egress: sets.Egress, Ingress: sets.Ingress}[d]
	switch {
	case known && endpoint == peer:
		return Decision{true, Origin{Reason: ToItself}}
	case set == 0:
		return Decision{Allow: true}
	}
	v, ok := r.Verdicts[VerdictKey{set, r.identity(mapped(peer))}]
	if !ok {
		v = r.Verdicts[VerdictKey{set, 0}]
	}
	if v.Ports != 0 {
		for bits := 16; bits >= 0; bits-- {
			port := f.Port &^ uint16(0xffff>>bits)
			if p, ok := r.Ports[PortKey{v.Ports, port, f.Protocol, uint8(bits)}]; ok {
				return Decision{p.Allow, rules[p.Rule]}
			}
		}
	}
	return Decision{v.Allow, rules[v.Rule]}
}

func (r *Rows) identity(a netip.Addr) (identity uint32) {
	longest := -1
	for p, of := range r.Addresses {
		if p.Bits() > longest && p.Contains(a) {
			longest, identity = p.Bits(), of&^onLink
		}
	}
	return identity
}
