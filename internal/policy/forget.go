// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"slices"
)

// Labelled returns how many bytes the labels have that [Snapshot.Forget] takes from the pods of each namespace.
func (s *Snapshot) Labelled() map[string]int {
	n := s.named()
	sizes := map[string]int{}
	for i := range s.Pods {
		for k, v := range s.Pods[i].Labels {
			if !n.keeps(k) {
				sizes[s.Pods[i].Namespace] += len(k) + len(v)
			}
		}
	}
	return sizes
}

// fewNames is how many namespaces pay the whole for labels that they name: whoever names some may do so in several.
const fewNames = 8

// Named returns how many bytes of those labels are there for the NetworkPolicies of each namespace. Labels that more than a few name are divided between them.
func (s *Snapshot) Named() map[string]int {
	n := s.named()
	type of struct{ key, namespace string }
	bytes, sizes := map[of]int{}, map[string]int{}
	for i := range s.Pods {
		p := &s.Pods[i]
		for k, v := range p.Labels {
			if n.names(k, p.Namespace) && !n.keeps(k) {
				bytes[of{k, p.Namespace}] += len(k) + len(v)
			}
		}
	}
	for of, size := range bytes {
		by := maps.Clone(n.pods[of.key].by[of.namespace])
		if by == nil {
			by = map[string]bool{}
		}
		maps.Copy(by, n.pods[of.key].by[""])
		for namespace := range by {
			sizes[namespace] += size * fewNames / max(fewNames, len(by))
		}
	}
	return sizes
}

// Forget takes labels from the pods of some namespaces, all but those that policies of the tiers Admin and Baseline ask for, and the rules
// from their NetworkPolicies, each of which selects all pods of its namespace then: they are isolated, and no NetworkPolicy allows them something by their
// labels, nor by labels that they do not have. What it changes are copies.
func (s *Snapshot) Forget(namespaces ...string) {
	n, of := s.named(), make(map[string]bool, len(namespaces))
	for _, namespace := range namespaces {
		of[namespace] = true
	}
	s.Pods = slices.Clone(s.Pods)
	for i := range s.Pods {
		if p := &s.Pods[i]; of[p.Namespace] {
			had := len(p.Labels)
			p.Labels = maps.Clone(p.Labels)
			maps.DeleteFunc(p.Labels, func(k, _ string) bool { return !n.keeps(k) })
			p.Lacks = p.Lacks || len(p.Labels) < had
		}
	}
	s.Policies = slices.Clone(s.Policies)
	for i := range s.Policies {
		if p := &s.Policies[i]; p.Tier == Namespaced && of[p.Namespace] {
			p.Subject.Pods, p.Ingress, p.Egress = Selector{}, nil, nil
		}
	}
}

// keeps reports whether Forget leaves a label of pods.
func (n *named) keeps(key string) bool {
	l := n.pods[key]
	return l != nil && l.tier != Namespaced
}
