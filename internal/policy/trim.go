// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"slices"
)

// named are the keys of labels and the names of ports that policies name.
type named struct {
	pods                     map[string]map[naming]bool
	namespaces, nodes, ports map[string]bool
}

// naming is who names a label: the namespace whose pods policies mean, "" for all, and the namespace of the policies,
// "" for those of the cluster, anyone for any.
type naming struct{ of, by string }

const anyone = "*"

// names reports whether somebody's policies name a label of pods of a namespace.
func (n *named) names(key, namespace, by string) bool {
	all := n.pods[key]
	return all[naming{"", by}] || all[naming{namespace, by}]
}

// Trim drops what no policy of the snapshot names, nor one of Previous: labels by their keys, named ports, and pods
// that have no address and are not of a node. The pods of that node keep other labels too, up to [MostLabels]. A pod
// keeps the labels that policies of the tiers Admin and Baseline and NetworkPolicies of its namespace name, MostLabels
// of those that only others name, and as many named ports. Trim returns the pods that lack labels or ports which
// policies name. What it changes are copies.
func (s *Snapshot) Trim(node string) (cut []Pod) {
	n := s.named()
	s.Pods = slices.DeleteFunc(slices.Clone(s.Pods), func(p Pod) bool { return len(p.Addresses) == 0 && p.Node != node })
	for i := range s.Pods {
		p := &s.Pods[i]
		if lacks := n.trim(p, p.Node == node); n.trimPorts(p) || lacks {
			cut = append(cut, *p)
		}
	}
	s.Nodes = slices.Clone(s.Nodes)
	for i := range s.Nodes {
		s.Nodes[i].Labels = keep(s.Nodes[i].Labels, n.nodes)
	}
	s.Namespaces = slices.Clone(s.Namespaces)
	for i := range s.Namespaces {
		s.Namespaces[i].Labels = keep(s.Namespaces[i].Labels, n.namespaces)
	}
	return cut
}

// named returns what the policies name.
func (s *Snapshot) named() *named {
	n := &named{map[string]map[naming]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}}
	all := s.Policies
	if s.Previous != nil {
		all = slices.Concat(all, s.Previous.Policies)
	}
	for i := range all {
		n.add(&all[i])
	}
	return n
}

// add notes what a policy names.
func (n *named) add(p *Policy) {
	pods := func(s *PodSelector) {
		s.Namespaces.keysTo(n.namespaces)
		of := s.Namespaces.Labels[NamespaceLabel] // as policies of pods of their own namespace, or "" for all
		keys := map[string]bool{}
		s.Pods.keysTo(keys)
		for key := range keys {
			if n.pods[key] == nil {
				n.pods[key] = map[naming]bool{}
			}
			n.pods[key][naming{of, p.Namespace}], n.pods[key][naming{of, anyone}] = true, true
		}
	}
	pods(&p.Subject)
	for peer := range p.peers {
		switch {
		case peer.Pods != nil:
			pods(peer.Pods)
		case peer.Nodes != nil:
			peer.Nodes.keysTo(n.nodes)
		}
	}
	for _, r := range p.allRules {
		for _, port := range r.Ports {
			n.ports[port.Name] = true
		}
	}
}

// trim trims the labels of a pod, and reports whether it lacks some that policies name.
func (n *named) trim(p *Pod, spare bool) (lacks bool) {
	kept, others, rest := make(map[string]bool, len(p.Labels)), 0, []string(nil)
	for _, key := range slices.Sorted(maps.Keys(p.Labels)) {
		switch {
		case !n.names(key, p.Namespace, anyone):
			rest = append(rest, key)
		case n.names(key, p.Namespace, "") || n.names(key, p.Namespace, p.Namespace):
			kept[key] = true
		case others < MostLabels:
			kept[key] = true
			others++
		default:
			lacks = true
		}
	}
	for _, key := range rest { // its own policies may ask for the others later
		if spare && len(kept) < MostLabels {
			kept[key] = true
		}
	}
	if len(kept) < len(p.Labels) {
		p.Labels = keep(p.Labels, kept)
	}
	p.Lacks = p.Lacks || lacks
	return lacks
}

// trimPorts drops ports that no policy names, and reports whether the pod lacks some that policies name.
func (n *named) trimPorts(p *Pod) (lacks bool) {
	drops := func(port NamedPort) bool { return !n.ports[port.Name] }
	if slices.ContainsFunc(p.Ports, drops) {
		p.Ports = slices.DeleteFunc(slices.Clone(p.Ports), drops)
	}
	if len(p.Ports) == 0 {
		p.Ports = nil
	}
	if lacks = len(p.Ports) > MostLabels; lacks {
		p.Ports = p.Ports[:MostLabels]
	}
	return lacks
}

// keep returns the labels with some keys.
func keep(labels map[string]string, keys map[string]bool) (out map[string]string) {
	for key, value := range labels {
		if keys[key] {
			if out == nil {
				out = map[string]string{}
			}
			out[key] = value
		}
	}
	return out
}
