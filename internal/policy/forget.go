// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"slices"
)

// Labelled returns the labels that [Snapshot.Forget] takes from the pods of each namespace.
func (s *Snapshot) Labelled() map[string][]map[string]string {
	n := s.named()
	all := map[string][]map[string]string{}
	for i := range s.Pods {
		p := &s.Pods[i]
		labels := maps.Clone(p.Labels)
		maps.DeleteFunc(labels, func(k, _ string) bool { return n.keeps(k) })
		if len(labels) > 0 {
			all[p.Namespace] = append(all[p.Namespace], labels)
		}
	}
	return all
}

// fewNames is how many namespaces pay the whole for labels that they name: whoever names some may do so in several.
const fewNames = 8

// Named returns how many bytes of labels are there for the NetworkPolicies of each namespace. The labels that [Snapshot.Labelled] returns take sizes. Labels
// that more than a few name are divided between them.
func (s *Snapshot) Named(sizes map[string]int) map[string]int {
	n := s.named()
	type of struct{ key, namespace string }
	bytes, sums := map[of]int{}, map[string]int{}
	for namespace, pods := range s.Labelled() {
		for _, labels := range pods {
			for k, v := range labels {
				sums[namespace] += len(k) + len(v)
				if n.names(k, namespace) {
					bytes[of{k, namespace}] += len(k) + len(v)
				}
			}
		}
	}
	by, all := map[string]int{}, map[string]int{} // all is, by key, what each has who names it in all namespaces
	for of, raw := range bytes {
		names := n.pods[of.key].by
		var own []string
		for namespace := range names[of.namespace] {
			if !names[""][namespace] {
				own = append(own, namespace)
			}
		}
		share := int(float64(raw) / float64(sums[of.namespace]) * float64(sizes[of.namespace]) * fewNames / float64(max(fewNames, len(own)+len(names[""]))))
		all[of.key] += share
		for _, namespace := range own {
			by[namespace] += share
		}
	}
	for key, share := range all {
		for namespace := range n.pods[key].by[""] {
			by[namespace] += share
		}
	}
	return by
}

// Forget takes labels from the pods of some namespaces, all but those that policies of the tiers Admin and Baseline or of Previous ask for, and the rules
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
	return l != nil && (l.before || l.tier != Namespaced)
}
