// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"maps"
	"slices"
)

// named are the keys of labels and the names of ports that policies name.
type named struct {
	pods              map[string]*namedLabel
	namespaces, nodes map[string]bool
	ports             map[string]namedPort
}

// namedPort is who names a port: policies of the cluster, and rules of egress, for which it is the port of another pod.
type namedPort struct{ ofCluster, egress bool }

// namedLabel is a key of labels of pods that policies name.
type namedLabel struct {
	tier   Tier // Namespaced if no policy of the cluster names it
	absent bool // some ask that it is not there, or has not some values
	// by are the namespaces whose policies name it, by the namespace of the pods, "" for those of all.
	by map[string]map[string]bool
}

// who reports whether NetworkPolicies of a namespace name a label of its pods, and whether those of others do.
func (l *namedLabel) who(namespace string) (own, others bool) {
	for _, of := range []string{"", namespace} {
		by := l.by[of]
		n := len(by)
		if by[""] {
			n--
		}
		if by[namespace] {
			n, own = n-1, true
		}
		others = others || n > 0
	}
	return own, others
}

// names reports whether policies name a label of pods of a namespace.
func (n *named) names(key, namespace string) bool {
	l := n.pods[key]
	return l != nil && (l.by[""] != nil || l.by[namespace] != nil)
}

// Trim drops what no policy of the snapshot names, nor one of Previous: labels by their keys, named ports, and pods that have no address and are not of a
// node. The pods of that node keep other labels too. A pod keeps [MostLabels] of the labels that policies of the tiers Admin and Baseline name, as many that
// NetworkPolicies of its namespace name, and as many that those of others name. A name of a port that rules of egress in NetworkPolicies name stands for [MostPortNumbers] numbers
// in a namespace, those of most pods. Trim returns the pods that lack labels or ports which policies name. What it
// changes are copies.
func (s *Snapshot) Trim(node string) (cut []Pod) {
	n := s.named()
	s.Pods = slices.DeleteFunc(slices.Clone(s.Pods), func(p Pod) bool { return len(p.Addresses) == 0 && p.Node != node })
	rare := n.rarePorts(s.Pods)
	for i := range s.Pods {
		if p := &s.Pods[i]; n.trim(p, p.Node == node, rare) {
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
	n := &named{map[string]*namedLabel{}, map[string]bool{}, map[string]bool{}, map[string]namedPort{}}
	if s.Previous != nil {
		for i := range s.Previous.Policies {
			n.add(&s.Previous.Policies[i])
		}
	}
	for i := range s.Policies {
		n.add(&s.Policies[i])
	}
	return n
}

// add notes what a policy names.
func (n *named) add(p *Policy) {
	keys := func(s Selector, add func(string)) {
		for k := range s.Labels {
			add(k)
		}
		for _, r := range s.Requirements {
			add(r.Key)
		}
	}
	pods := func(s PodSelector) {
		keys(s.Namespaces, func(k string) { n.namespaces[k] = true })
		of := s.Namespaces.Labels[NamespaceLabel] // as policies of pods of their own namespace, or "" for all
		keys(s.Pods, func(k string) {
			l := n.pods[k]
			if l == nil {
				l = &namedLabel{tier: Namespaced, by: map[string]map[string]bool{}}
				n.pods[k] = l
			}
			if p.Tier != Namespaced {
				l.tier = p.Tier
			}
			if l.by[of] == nil {
				l.by[of] = map[string]bool{}
			}
			l.by[of][p.Namespace] = true
		})
		for _, r := range s.Pods.Requirements {
			if r.excludes() {
				n.pods[r.Key].absent = true
			}
		}
	}
	pods(p.Subject)
	for peer := range p.peers {
		switch {
		case peer.Pods != nil:
			pods(*peer.Pods)
		case peer.Nodes != nil:
			keys(*peer.Nodes, func(k string) { n.nodes[k] = true })
		}
	}
	for d, r := range p.allRules {
		for _, port := range r.Ports {
			if port.Name != "" {
				had := n.ports[port.Name]
				n.ports[port.Name] = namedPort{had.ofCluster || p.Tier != Namespaced, had.egress || d == Egress}
			}
		}
	}
}

// trim trims a pod, and reports whether it has more than there is room for that policies ask for.
func (n *named) trim(p *Pod, others bool, rare map[portName]map[portNumber]bool) (cut bool) {
	cut = n.trimPorts(p, rare)
	asked, kept := n.asked(p)
	if len(p.Labels) > len(asked) && others && len(kept) < MostLabels { // its own policies may ask for the others later
		rest := slices.Sorted(maps.Keys(p.Labels))
		for _, k := range rest {
			if len(kept) < MostLabels {
				kept[k] = true
			}
		}
	}
	if len(kept) < len(p.Labels) {
		p.Labels = keep(p.Labels, kept)
	}
	lacks := slices.ContainsFunc(asked, func(k string) bool { return !kept[k] })
	p.Lacks = p.Lacks || lacks
	return cut || lacks
}

// asked returns which labels of a pod policies ask for, and those of them that it keeps: as many of each that policies of the cluster ask for, those
// of its own namespace, and those of others. Nobody takes the room of another so. Labels that have to be absent come first: without them rules would allow more.
func (n *named) asked(p *Pod) (asked []string, kept map[string]bool) {
	kept = map[string]bool{}
	var by [3][]string
	for k := range p.Labels {
		l := n.pods[k]
		if !n.names(k, p.Namespace) {
			continue
		}
		asked = append(asked, k)
		if l.tier != Namespaced {
			by[0] = append(by[0], k)
		}
		own, others := l.who(p.Namespace)
		if own {
			by[1] = append(by[1], k)
		}
		if others {
			by[2] = append(by[2], k)
		}
	}
	absent := func(k string) int {
		if n.pods[k].absent {
			return 0
		}
		return 1
	}
	for _, keys := range by {
		slices.SortFunc(keys, func(a, b string) int { return cmp.Or(cmp.Compare(absent(a), absent(b)), cmp.Compare(a, b)) })
		for _, k := range keys[:min(len(keys), MostLabels)] {
			kept[k] = true
		}
	}
	return asked, kept
}

// keep returns the labels with some keys.
func keep(labels map[string]string, keys map[string]bool) map[string]string {
	var out map[string]string
	for k, v := range labels {
		if keys[k] {
			if out == nil {
				out = map[string]string{}
			}
			out[k] = v
		}
	}
	return out
}
