// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"slices"
)

// smallSubject is how many bytes a selector of pods may have that [Policy.Strip] leaves.
const smallSubject = 4096

// Bulk returns how large that is which [Policy.Strip] takes away, in bytes, about as it is stored.
func (p *Policy) Bulk() int {
	var f form
	for _, rules := range [][]Rule{p.Ingress, p.Egress} {
		for i := range rules {
			f.rule(&rules[i])
		}
	}
	return len(f) + p.largeSubject()
}

// Isolate has one NetworkPolicy stand for all of each of some namespaces: it isolates all pods, in each direction in which one of them isolates some, and
// allows nothing.
func (s *Snapshot) Isolate(namespaces ...string) {
	if len(namespaces) == 0 {
		return
	}
	of := make(map[string]*Policy, len(namespaces))
	for _, namespace := range namespaces {
		of[namespace] = nil
	}
	all := make([]Policy, 0, len(s.Policies))
	for _, p := range s.Policies {
		one, gone := of[p.Namespace]
		if !gone || p.Tier != Namespaced {
			all = append(all, p)
			continue
		}
		if one == nil {
			p.Subject.Pods, p.Ingress, p.Egress = Selector{}, nil, nil
			of[p.Namespace] = &p
			continue
		}
		one.Name = min(one.Name, p.Name)
		one.IsolatesIngress, one.IsolatesEgress = one.IsolatesIngress || p.IsolatesIngress, one.IsolatesEgress || p.IsolatesEgress
		one.JudgesNode = one.JudgesNode || p.JudgesNode
	}
	for _, namespace := range slices.Sorted(maps.Keys(of)) {
		if one := of[namespace]; one != nil {
			all = append(all, *one)
		}
	}
	s.Policies = all
}

// IsolateTogether isolates as [Snapshot.Isolate] does, with one NetworkPolicy for all of the namespaces that are isolated in the same directions: their
// pods have the same rule sets then.
func (s *Snapshot) IsolateTogether(namespaces ...string) {
	s.Isolate(namespaces...)
	type alike struct{ ingress, egress, node bool }
	of := map[alike]*Requirement{}
	var all []Policy
	for _, p := range s.Policies { // in the order of namespaces
		if p.Tier == Namespaced && slices.Contains(namespaces, p.Namespace) {
			like := alike{p.IsolatesIngress, p.IsolatesEgress, p.JudgesNode}
			if in := of[like]; in != nil {
				in.Values = append(in.Values, p.Namespace)
				continue
			}
			p.Name = "isolated-together"
			p.Subject.Namespaces = Selector{Requirements: []Requirement{{Key: NamespaceLabel, Operator: "In", Values: []string{p.Namespace}}}}
			of[like] = &p.Subject.Namespaces.Requirements[0]
		}
		all = append(all, p)
	}
	s.Policies = all
}

// Strip takes away the rules of a NetworkPolicy, so that it isolates its pods and allows nothing. One whose selector is large selects all
// pods of its namespace then.
func (p *Policy) Strip() {
	if p.largeSubject() > 0 {
		p.Subject.Pods = Selector{}
	}
	p.Ingress, p.Egress = nil, nil
}

// largeSubject returns the size of the selector of pods, 0 if it is small.
func (p *Policy) largeSubject() int {
	var f form
	if f.selector(p.Subject.Pods); len(f) <= smallSubject {
		return 0
	}
	return len(f)
}
