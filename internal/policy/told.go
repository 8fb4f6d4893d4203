// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"slices"
)

// label is a label of pods, or of their namespaces, or of nodes. One without a key is that of all pods, or of all nodes.
type label struct {
	of          kind // aNode, or 0
	ofNamespace bool
	key, value  string
}

// labelled is what has labels, by each of them.
type labelled[T any] map[label][]T

func (x labelled[T]) add(of T, by []label) {
	for _, l := range by {
		x[l] = append(x[l], of)
	}
}

// rarest returns those with the rarest label that a selector of pods asks for.
func (x labelled[T]) rarest(s PodSelector) []T {
	rarest := x[label{}]
	for _, of := range []struct {
		namespace bool
		labels    map[string]string
	}{{true, s.Namespaces.Labels}, {false, s.Pods.Labels}} {
		for key, value := range of.labels {
			if have := x[label{ofNamespace: of.namespace, key: key, value: value}]; len(have) < len(rarest) {
				rarest = have
			}
		}
	}
	return rarest
}

// labelsOf returns the labels of a pod, or of its namespace.
func labelsOf(ofNamespace bool, labels map[string]string) []label {
	by := make([]label, 1, 1+len(labels))
	for key, value := range labels {
		by = append(by, label{ofNamespace: ofNamespace, key: key, value: value})
	}
	return by
}

// told notes by what rules tell peers apart: nothing else makes an identity more.
type told struct {
	values map[label]askers // that rules ask for
	keys   map[label]askers // of which rules ask whether they are there; they have no value
	ports  map[string]bool
	among  map[Digest]*among
	pairs  int // of a value or a key, and who asks for it
	terms  int // of the selectors of namespaces in these pairs, each may be asked about each namespace
	known  map[question]bool
	// namespaces is how many there are.
	namespaces int
}

// among are the namespaces of which rules select pods. A rule says nothing of pods of others.
type among struct{ namespaces Selector }

// askers are those who ask for a label, by the namespaces of their pods. Of labels of namespaces and nodes there is
// one, nil.
type askers map[*among]bool

// question is whether rules ask for a label of the pods of a namespace, or whether it is there.
type question struct {
	namespace string
	label
	there bool
}

func newTold() told {
	return told{
		values: map[label]askers{}, keys: map[label]askers{}, ports: map[string]bool{},
		among: map[Digest]*among{}, known: map[question]bool{},
	}
}

// work is what it costs to keep them, and to find out who asks for the labels of the pods of each namespace.
func (t *told) work() int { return toldWork*t.pairs + t.terms*t.namespaces/podWork }

// count notes the rules of a policy, in the directions in which it has a say.
func (t *told) count(p *Policy) {
	for d, r := range p.allRules {
		if !p.Concerns(d) {
			continue
		}
		for _, peer := range r.Peers {
			switch {
			case peer.Pods != nil:
				t.countPods(peer.Pods)
			case peer.Nodes != nil:
				t.selector(label{of: aNode}, *peer.Nodes, nil)
			}
		}
		for _, port := range r.Ports {
			if d == Egress && port.Name != "" { // on ingress it is that of the pod itself
				t.ports[port.Name] = true
			}
		}
	}
}

func (t *told) countPods(s *PodSelector) {
	t.selector(label{ofNamespace: true}, s.Namespaces, nil)
	if s.Pods.terms() == 0 {
		return
	}
	f := newForm("among")
	f.selector(s.Namespaces)
	id := f.digest()
	if t.among[id] == nil {
		t.among[id] = &among{s.Namespaces}
	}
	t.selector(label{}, s.Pods, t.among[id])
}

func (t *told) selector(l label, s Selector, in *among) {
	for l.key, l.value = range s.Labels {
		t.ask(t.values, l, in)
	}
	for _, r := range s.Requirements {
		if l.key, l.value = r.Key, ""; len(r.Values) == 0 {
			t.ask(t.keys, l, in)
		}
		for _, l.value = range r.Values {
			t.ask(t.values, l, in)
		}
	}
}

// ask notes one label that a rule asks for.
func (t *told) ask(m map[label]askers, l label, in *among) {
	if m[l] == nil {
		m[l] = askers{}
	}
	if m[l][in] {
		return
	}
	m[l][in] = true
	if t.pairs++; in != nil {
		t.terms += 1 + in.namespaces.terms()
	}
}

// asks reports whether rules ask for a label of a namespace, of a node, or of a pod in a namespace with some labels: for its value, or whether it is there.
func (t *told) asks(l label, there bool, namespace map[string]string) bool {
	m := t.values
	if there {
		m, l.value = t.keys, ""
	}
	by := m[l]
	if len(by) == 0 || by[nil] {
		return len(by) > 0
	}
	q := question{namespace[NamespaceLabel], l, there}
	is, ok := t.known[q]
	if !ok {
		for in := range by {
			if is = in.namespaces.Matches(namespace); is {
				break
			}
		}
		t.known[q] = is
	}
	return is
}

// labels adds to a form what rules tell of labels of a namespace, or of a pod or node, and returns those whose values they ask for besides others.
func (t *told) labels(f *form, l label, of *content, by []label) []label {
	type known struct {
		label
		asked bool // for its value
	}
	var few [8]known
	all, labels := few[:0], of.labels
	if l.ofNamespace {
		labels = of.namespace
	}
	for l.key, l.value = range labels {
		if asked := t.asks(l, false, of.namespace); asked || t.asks(l, true, of.namespace) {
			all = append(all, known{l, asked})
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
