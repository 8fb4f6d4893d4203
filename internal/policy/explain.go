// SPDX-License-Identifier: Apache-2.0

package policy

import (
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
