// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"slices"
)

// spareLabels is how many labels a pod of the node keeps that no policy names, for later policies.
const spareLabels = 64

// Trim drops labels, by key, and named ports that no policy of the snapshot or of Previous names, and pods of other
// nodes without an address. The pods of node keep up to spareLabels other labels. Trim changes copies.
func (s *Snapshot) Trim(node string) {
	pods, namespaces, nodes, ports := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	all := s.Policies
	if s.Previous != nil {
		all = slices.Concat(all, s.Previous.Policies)
	}
	for i := range all {
		all[i].Subject.keysTo(namespaces, pods)
		for peer := range all[i].peers {
			switch {
			case peer.Pods != nil:
				peer.Pods.keysTo(namespaces, pods)
			case peer.Nodes != nil:
				peer.Nodes.keysTo(nodes)
			}
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
		labels := keep(p.Labels, pods)
		if len(labels) < len(p.Labels) && p.Node == node {
			for _, key := range slices.Sorted(maps.Keys(p.Labels)) {
				if labels == nil {
					labels = map[string]string{}
				}
				if pods[key] || len(labels) < spareLabels {
					labels[key] = p.Labels[key]
				}
			}
		}
		p.Labels = labels
		p.Ports = slices.DeleteFunc(slices.Clone(p.Ports), func(port NamedPort) bool { return !ports[port.Name] })
	}
	s.Nodes, s.Namespaces = slices.Clone(s.Nodes), slices.Clone(s.Namespaces)
	for i := range s.Nodes {
		s.Nodes[i].Labels = keep(s.Nodes[i].Labels, nodes)
	}
	for i := range s.Namespaces {
		s.Namespaces[i].Labels = keep(s.Namespaces[i].Labels, namespaces)
	}
}

// keysTo notes the keys of labels that the selector names.
func (s *PodSelector) keysTo(namespaces, pods map[string]bool) {
	s.Namespaces.keysTo(namespaces)
	s.Pods.keysTo(pods)
}

// keep returns the labels with some keys: the same map if all have one of these.
func keep(labels map[string]string, keys map[string]bool) (out map[string]string) {
	dropped := 0
	for key := range labels {
		if !keys[key] {
			dropped++
		}
	}
	if dropped == 0 {
		return labels
	}
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
