// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
)

// Sort sorts the values, each once.
func (r *Requirement) Sort() {
	slices.Sort(r.Values)
	r.Values = slices.Compact(r.Values)
}

// Matches reports whether the selector selects an object with these labels.
func (s Selector) Matches(labels map[string]string) bool {
	for k, v := range s.Labels {
		if has, ok := labels[k]; !ok || has != v {
			return false
		}
	}
	return !slices.ContainsFunc(s.Requirements, func(r Requirement) bool { return !r.matches(labels) })
}

func (r Requirement) matches(labels map[string]string) bool {
	value, ok := labels[r.Key]
	_, in := slices.BinarySearch(r.Values, value)
	switch r.Operator {
	case "In":
		return ok && in
	case "NotIn": // an object without the label is not in
		return !ok || !in
	case "Exists":
		return ok
	}
	return !ok
}

func (s *Selector) keysTo(all map[string]bool) {
	for key := range s.Labels {
		all[key] = true
	}
	for _, r := range s.Requirements {
		all[r.Key] = true
	}
}

func (s Selector) terms() int    { return len(s.Labels) + len(s.Requirements) }
func (s PodSelector) terms() int { return s.Namespaces.terms() + s.Pods.terms() }

// Validate returns an error that names the field.
func (s Selector) Validate() error {
	for i, r := range s.Requirements {
		if err := r.Validate(); err != nil {
			return fmt.Errorf("matchExpressions[%d]: %w", i, err)
		}
	}
	return nil
}

// Validate returns an error that names the field.
func (r Requirement) Validate() error {
	takesValues := r.Operator == "In" || r.Operator == "NotIn"
	switch {
	case r.Key == "":
		return errors.New("key: missing")
	case !takesValues && r.Operator != "Exists" && r.Operator != "DoesNotExist":
		return fmt.Errorf("operator: %q: want In, NotIn, Exists or DoesNotExist", r.Operator)
	case takesValues && len(r.Values) == 0:
		return fmt.Errorf("values: missing: operator %s needs some", r.Operator)
	case !slices.IsSorted(r.Values):
		return errors.New("values: not sorted")
	case !takesValues && len(r.Values) != 0:
		return fmt.Errorf("values: operator %s takes none", r.Operator)
	}
	return nil
}

func eachLabel(namespace, pod map[string]string, do func(label)) {
	for of, labels := range [...]map[string]string{aPod: pod, aNamespace: namespace} {
		for key, value := range labels {
			do(label{of: kind(of), key: key, value: value})
		}
	}
}

func (s PodSelector) matches(namespace, pod map[string]string) bool {
	return s.Namespaces.Matches(namespace) && s.Pods.Matches(pod)
}

// podsBy returns the pods for which is returns true, as a list and by the labels that policies' subjects require.
func (s *Snapshot) podsBy(is func(*Pod) bool) (all []*pod, by labelled[*pod]) {
	namespaces := s.NamespaceLabels()
	by = labelled[*pod]{{}: nil}
	for i := range s.Policies {
		of := &s.Policies[i].Subject
		eachLabel(of.Namespaces.Labels, of.Pods.Labels, func(l label) { by[l] = nil })
	}
	for i := range s.Pods {
		p := &s.Pods[i]
		if !is(p) {
			continue
		}
		at := &pod{Pod: p, namespace: namespaces[p.Namespace]}
		all, by[label{}] = append(all, at), append(by[label{}], at)
		eachLabel(at.namespace, p.Labels, func(l label) {
			if had, ok := by[l]; ok {
				by[l] = append(had, at)
			}
		})
	}
	return all, by
}

func (s PodSelector) selected(pods labelled[*pod]) iter.Seq[*pod] {
	return func(yield func(*pod) bool) {
		for _, at := range pods.rarest(&s) {
			if s.matches(at.namespace, at.Labels) && !yield(at) {
				return
			}
		}
	}
}

// Selected returns for each policy the number of pods of this node that it selects.
func (s *Snapshot) Selected() []int {
	_, pods := s.podsBy(func(p *Pod) bool { return p.enforced(s.Node) })
	out := make([]int, len(s.Policies))
	for i := range s.Policies {
		for range s.Policies[i].Subject.selected(pods) {
			out[i]++
		}
	}
	return out
}

// Remarks lists likely mistakes of each policy: it selects no pod, or none of its pods has a port of its ingress rules.
func (s *Snapshot) Remarks() [][]string {
	_, pods := s.podsBy(func(p *Pod) bool { return !p.HostNetwork })
	out := make([][]string, len(s.Policies))
	for i := range s.Policies {
		ingress := Policy{Ingress: s.Policies[i].Ingress}
		var subjects []Pod
		for at := range s.Policies[i].Subject.selected(pods) {
			subjects = append(subjects, *at.Pod)
			if len(subjects) == 1 && len(ingress.MissingPorts(subjects)) == 0 {
				break
			}
		}
		if len(subjects) == 0 {
			out[i] = []string{"selects no pod of the cluster"}
			continue
		}
		for _, name := range ingress.MissingPorts(subjects) {
			out[i] = append(out[i], fmt.Sprintf("no pod that it selects has the port %q", name))
		}
	}
	return out
}

func (p *Pod) enforced(node string) bool {
	return !p.HostNetwork && p.Node == node && len(p.Addresses) > 0
}

// NamespaceLabels returns the labels of each namespace of the snapshot and of its pods.
func (s *Snapshot) NamespaceLabels() map[string]map[string]string {
	out := make(map[string]map[string]string, len(s.Namespaces))
	put := func(name string, labels map[string]string) {
		all := make(map[string]string, len(labels)+1)
		maps.Copy(all, labels)
		all[NamespaceLabel] = name
		out[name] = all
	}
	for _, n := range s.Namespaces {
		put(n.Name, n.Labels)
	}
	for i := range s.Pods {
		if name := s.Pods[i].Namespace; out[name] == nil {
			put(name, nil)
		}
	}
	return out
}

func (p *Policy) selectors(yield func(kind, *Selector) bool) {
	pods := func(s *PodSelector) bool { return yield(aNamespace, &s.Namespaces) && yield(aPod, &s.Pods) }
	if !pods(&p.Subject) {
		return
	}
	for _, r := range p.allRules {
		for i := range r.Peers {
			peer := &r.Peers[i]
			if peer.Pods != nil && !pods(peer.Pods) || peer.Nodes != nil && !yield(aNode, peer.Nodes) {
				return
			}
		}
	}
}

func (x labelled[T]) rarest(s *PodSelector) []T {
	rarest := x[label{}]
	eachLabel(s.Namespaces.Labels, s.Pods.Labels, func(l label) {
		if have := x[l]; len(have) < len(rarest) {
			rarest = have
		}
	})
	return rarest
}
