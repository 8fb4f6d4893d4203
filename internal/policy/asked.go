// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"slices"
)

// kind is the kind of object that has a label.
type kind uint8

const (
	aPod kind = iota
	aNamespace
	aNode
)

// label is a label of pods, of their namespaces, or of nodes. Without a key it stands for all pods, or all nodes.
type label struct {
	of         kind
	in         string // the namespace whose pods a rule means, if it names one
	key, value string
}

// labelled are objects by each of their labels.
type labelled[T any] map[label][]T

func (x labelled[T]) add(of T, by []label) {
	for _, l := range by {
		x[l] = append(x[l], of)
	}
}

// rarest returns the elements with the rarest label that a selector of pods requires.
func (x labelled[T]) rarest(s *PodSelector) []T {
	rarest := x[label{}]
	s.labels(func(l label) {
		if have := x[l]; len(have) < len(rarest) {
			rarest = have
		}
	})
	return rarest
}

// asked are the labels and the names of ports that rules use: only these distinguish peers.
type asked struct {
	// values stores the namespaces of the rules that require a value. ClusterNetworkPolicies have namespace "".
	values map[label]map[string]bool
	keys   map[label]bool // that rules require to exist or not; without a value
	ports  map[string]bool
}

// work is the cost of storing them.
func (a *asked) work() int { return askedWork * (len(a.values) + len(a.keys)) }

// add notes the rules of a policy, in the directions that it applies to.
func (a *asked) add(p *Policy) {
	for d, r := range p.allRules {
		if !p.Concerns(d) {
			continue
		}
		for _, peer := range r.Peers {
			switch {
			case peer.Pods != nil:
				a.selector(p.Namespace, label{of: aNamespace}, peer.Pods.Namespaces)
				a.selector(p.Namespace, label{in: peer.Pods.Namespaces.Labels[NamespaceLabel]}, peer.Pods.Pods)
			case peer.Nodes != nil:
				a.selector(p.Namespace, label{of: aNode}, *peer.Nodes)
			}
		}
		for _, port := range r.Ports {
			if d == Egress && port.Name != "" { // on ingress it is that of the pod itself
				a.ports[port.Name] = true
			}
		}
	}
}

func (a *asked) selector(by string, l label, s Selector) {
	for l.key, l.value = range s.Labels {
		a.ask(by, l)
	}
	for _, r := range s.Requirements {
		if l.key, l.value = r.Key, ""; len(r.Values) == 0 {
			a.keys[l] = true
		}
		for _, l.value = range r.Values {
			a.ask(by, l)
		}
	}
}

func (a *asked) ask(by string, l label) {
	if a.values[l] == nil {
		a.values[l] = map[string]bool{}
	}
	a.values[l][by] = true
}

// labels adds to a form the labels of a kind in a namespace that rules use. It appends to by the labels whose values
// rules use, and returns it.
func (a *asked) labels(f *form, at label, labels map[string]string, by []label) []label {
	type known struct {
		label
		asked bool // for its value
	}
	var few [8]known
	all := few[:0]
	for key, value := range labels {
		wide, narrow := label{at.of, "", key, value}, label{at.of, at.in, key, value}
		asked := a.values[wide] != nil || a.values[narrow] != nil
		by := wide
		if wide.value, narrow.value = "", ""; asked || a.keys[wide] || a.keys[narrow] {
			all = append(all, known{by, asked})
		}
	}
	slices.SortFunc(all, func(a, b known) int { return cmp.Compare(a.key, b.key) })
	f.number(uint64(len(all)))
	for _, l := range all {
		f.text(l.key)
		if f.flag(l.asked); l.asked {
			f.text(l.value)
			by = append(by, l.label)
		}
	}
	return by
}
