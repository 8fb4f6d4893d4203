// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"slices"
)

// Peers are the pods that rules can match.
type Peers struct {
	by    labelled[*PodSelector] // by a label that they require
	ports map[string]bool        // of any pod
}

// Peers returns what rules can match: rules of the policies that select a pod of the snapshot, of all policies in
// Previous, and rules that do not accept. Without a pod that only other rules match, a verdict is at least as strict.
func (s *Snapshot) Peers() Peers {
	p := Peers{labelled[*PodSelector]{}, map[string]bool{}}
	_, pods := s.podsBy(func(p *Pod) bool { return !p.HostNetwork })
	for i := range s.Policies {
		selects := false
		for range s.Policies[i].Subject.selected(pods) {
			selects = true
			break
		}
		p.add(&s.Policies[i], selects)
	}
	if s.Previous != nil {
		for i := range s.Previous.Policies {
			p.add(&s.Previous.Policies[i], true)
		}
	}
	return p
}

func (p Peers) add(of *Policy, all bool) {
	for d, r := range of.allRules {
		if !all && r.Action == Accept {
			continue
		}
		for _, peer := range r.Peers {
			if peer.Pods != nil {
				var by label
				eachLabel(peer.Pods.Namespaces.Labels, peer.Pods.Pods.Labels, func(l label) {
					if by.key == "" || l.of == aPod { // a namespace has many pods
						by = l
					}
				})
				p.by[by] = append(p.by[by], peer.Pods)
			}
		}
		if d == Egress && (len(r.Peers) == 0 || slices.ContainsFunc(r.Peers, func(q Peer) bool { return q.Pods == nil })) {
			for _, port := range r.Ports {
				p.ports[port.Name] = true
			}
		}
	}
	delete(p.ports, "")
}

// None reports whether rules match no pod.
func (p Peers) None() bool { return len(p.by)+len(p.ports) == 0 }

// Has reports whether a rule can match a pod in a namespace with labels, as of [Snapshot.NamespaceLabels].
func (p Peers) Has(pod *Pod, namespace map[string]string) bool {
	has := slices.ContainsFunc(pod.Ports, func(port NamedPort) bool { return p.ports[port.Name] })
	look := func(l label) {
		has = has || slices.ContainsFunc(p.by[l], func(s *PodSelector) bool { return s.matches(namespace, pod.Labels) })
	}
	look(label{})
	eachLabel(namespace, pod.Labels, look)
	return has
}

const spareLabels = 64 // how many labels a pod of the node keeps that no policy names, for later policies

// Trim drops labels and named ports that no policy names, and other nodes' pods without an address. The pods of node
// keep up to spareLabels other labels. Trim changes copies.
func (s *Snapshot) Trim(node string) {
	keys, ports := [...]map[string]bool{aPod: {}, aNamespace: {}, aNode: {}}, map[string]bool{}
	all := s.Policies
	if s.Previous != nil {
		all = slices.Concat(all, s.Previous.Policies)
	}
	for i := range all {
		for of, selector := range all[i].selectors {
			selector.keysTo(keys[of])
		}
		for _, r := range all[i].allRules {
			for _, port := range r.Ports {
				ports[port.Name] = true
			}
		}
	}
	s.Pods = slices.DeleteFunc(slices.Clone(s.Pods), func(p Pod) bool { return len(p.Addresses) == 0 && p.Node != node })
	for i := range s.Pods {
		p := &s.Pods[i]
		spare := 0
		if p.Node == node {
			spare = spareLabels
		}
		p.Labels = keep(p.Labels, keys[aPod], spare)
		p.Ports = slices.DeleteFunc(slices.Clone(p.Ports), func(port NamedPort) bool { return !ports[port.Name] })
	}
	s.Nodes, s.Namespaces = slices.Clone(s.Nodes), slices.Clone(s.Namespaces)
	for i := range s.Nodes {
		s.Nodes[i].Labels = keep(s.Nodes[i].Labels, keys[aNode], 0)
	}
	for i := range s.Namespaces {
		s.Namespaces[i].Labels = keep(s.Namespaces[i].Labels, keys[aNamespace], 0)
	}
}

// keep returns the labels with some keys, and others up to a total of spare: the same map if none is dropped.
func keep(labels map[string]string, keys map[string]bool, spare int) map[string]string {
	var others []string
	for key := range labels {
		if !keys[key] {
			others = append(others, key)
		}
	}
	spare = max(0, spare-(len(labels)-len(others)))
	if len(others) <= spare {
		return labels
	}
	slices.Sort(others)
	labels = maps.Clone(labels)
	for _, key := range others[spare:] {
		delete(labels, key)
	}
	return labels
}

// Share replaces labels by equal maps in shared, which saves hundreds of bytes each. They must not be edited any more.
func (s *Snapshot) Share(shared map[Digest]map[string]string) {
	share := func(of *map[string]string) {
		if len(*of) == 0 {
			return
		}
		f := newForm("labels")
		f.labels(*of)
		id := f.digest()
		if shared[id] == nil {
			shared[id] = *of
		}
		*of = shared[id]
	}
	for i := range s.Nodes {
		share(&s.Nodes[i].Labels)
	}
	for i := range s.Namespaces {
		share(&s.Namespaces[i].Labels)
	}
	for i := range s.Pods {
		share(&s.Pods[i].Labels)
	}
	for i := range s.Policies {
		for _, of := range s.Policies[i].selectors {
			share(&of.Labels)
		}
	}
}
