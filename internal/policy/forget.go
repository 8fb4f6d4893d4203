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

// Forget takes labels from the pods of a namespace, all but those that policies of the tiers Admin and Baseline ask for, and the rules
// from its NetworkPolicies, each of which selects all its pods then: they are isolated, and NetworkPolicies of others do not know them by labels.
// What it changes are copies.
func (s *Snapshot) Forget(namespace string) {
	n := s.named()
	s.Pods = slices.Clone(s.Pods)
	for i := range s.Pods {
		if p := &s.Pods[i]; p.Namespace == namespace {
			p.Labels = maps.Clone(p.Labels)
			maps.DeleteFunc(p.Labels, func(k, _ string) bool { return !n.keeps(k) })
		}
	}
	s.Policies = slices.Clone(s.Policies)
	for i := range s.Policies {
		if p := &s.Policies[i]; p.Tier == Namespaced && p.Namespace == namespace {
			p.Subject.Pods, p.Ingress, p.Egress = Selector{}, nil, nil
		}
	}
}

// keeps reports whether Forget leaves a label of pods.
func (n *named) keeps(key string) bool {
	tier, ok := n.pods[key]
	return ok && tier != Namespaced
}
