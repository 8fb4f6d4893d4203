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
type labelled[T comparable] map[label]map[T]struct{}

func (x labelled[T]) add(of T, by []label) {
	for _, l := range by {
		if x[l] == nil {
			x[l] = map[T]struct{}{}
		}
		x[l][of] = struct{}{}
	}
}

func (x labelled[T]) remove(of T, by []label) {
	for _, l := range by {
		if delete(x[l], of); len(x[l]) == 0 {
			delete(x, l)
		}
	}
}

// rarest returns those with the rarest label that a selector of pods asks for.
func (x labelled[T]) rarest(s PodSelector) map[T]struct{} {
	rarest := x[label{}]
	for ofNamespace, labels := range map[bool]map[string]string{true: s.Namespaces.Labels, false: s.Pods.Labels} {
		for key, value := range labels {
			if have := x[label{ofNamespace: ofNamespace, key: key, value: value}]; len(have) < len(rarest) {
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

// told counts by what rules tell peers apart: nothing else makes an identity more.
type told struct {
	values map[label]askers // that rules ask for
	keys   map[label]askers // of which rules ask whether they are there; they have no value
	ports  map[string]int
	among  map[Digest]*among
	pairs  int               // of a value or a key, and who asks for it
	terms  int               // of the selectors of namespaces in these pairs, each may be asked about each namespace
	known  map[question]bool // until rules or labels of namespaces change
	// namespaces is how many there are.
	namespaces int
}

// among are the namespaces of which rules select pods. A rule says nothing of pods of others.
type among struct {
	namespaces Selector
	rules      int
}

// askers counts the rules that ask for a label, by the namespaces of their pods. Of labels of namespaces and nodes there is one, nil.
type askers map[*among]int

// question is whether rules ask for a label of the pods of a namespace, or whether it is there.
type question struct {
	namespace string
	label
	there bool
}

func newTold() told {
	return told{values: map[label]askers{}, keys: map[label]askers{}, ports: map[string]int{}, among: map[Digest]*among{}, known: map[question]bool{}}
}

// work is what it costs to keep them, and to find out who asks for the labels of the pods of each namespace.
func (t *told) work() int { return toldWork*t.pairs + t.terms*t.namespaces/podWork }

// count counts the rules of a policy, in the directions in which it has a say.
func (t *told) count(p *Policy, by int) {
	for _, d := range []Direction{Egress, Ingress} {
		rules, ok := p.rules(d)
		if !ok {
			continue
		}
		for i := range rules {
			for _, peer := range rules[i].Peers {
				switch {
				case peer.Pods != nil:
					t.countPods(peer.Pods, by)
				case peer.Nodes != nil:
					t.selector(label{of: aNode}, *peer.Nodes, nil, by)
				}
			}
			for _, port := range rules[i].Ports {
				if d == Egress && port.Name != "" { // on ingress it is that of the pod itself
					count(t.ports, port.Name, by)
				}
			}
		}
	}
}

func (t *told) countPods(s *PodSelector, by int) {
	t.selector(label{ofNamespace: true}, s.Namespaces, nil, by)
	if s.Pods.terms() == 0 {
		return
	}
	f := newForm("among")
	f.selector(s.Namespaces)
	id := f.digest()
	in := t.among[id]
	if in == nil {
		in = &among{namespaces: s.Namespaces}
		t.among[id] = in
	}
	t.selector(label{}, s.Pods, in, by)
	if in.rules += by; in.rules == 0 {
		delete(t.among, id)
	}
}

func (t *told) selector(l label, s Selector, in *among, by int) {
	for l.key, l.value = range s.Labels {
		t.ask(t.values, l, in, by)
	}
	for _, r := range s.Requirements {
		if l.key, l.value = r.Key, ""; len(r.Values) == 0 {
			t.ask(t.keys, l, in, by)
		}
		for _, l.value = range r.Values {
			t.ask(t.values, l, in, by)
		}
	}
}

// ask counts one label that a rule asks for.
func (t *told) ask(m map[label]askers, l label, in *among, by int) {
	if m[l] == nil {
		m[l] = askers{}
	}
	before := len(m[l])
	count(m[l], in, by)
	pairs := len(m[l]) - before
	if t.pairs += pairs; in != nil {
		t.terms += pairs * (1 + in.namespaces.terms())
	}
	if len(m[l]) == 0 {
		delete(m, l)
	}
}

func count[K comparable](m map[K]int, k K, by int) {
	if m[k] += by; m[k] == 0 {
		delete(m, k)
	}
}

// asks reports whether rules ask for a label of a namespace, of a node, or of a pod in a namespace with some labels: for its value, or whether it is there.
func (t *told) asks(l label, there bool, namespace map[string]string) bool {
	m := t.values
	if there {
		m, l.value = t.keys, ""
	}
	by := m[l]
	if len(by) == 0 || by[nil] > 0 {
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

// describe returns the content of a pod or node, which those share that rules do not tell apart.
func (c *Compiler) describe(of content) *content {
	f := newForm("content")
	f.number(uint64(of.kind))
	var by [8]label
	l, all := label{}, by[:1]
	if of.kind == aNode {
		l.of = aNode
		all[0].of = aNode
	}
	all = c.told.labels(f, label{ofNamespace: true}, &of, all)
	all = c.told.labels(f, l, &of, all)
	if len(of.ports) > 0 {
		of.ports = slices.DeleteFunc(sortedPorts(of.ports), func(p NamedPort) bool { return c.told.ports[p.Name] == 0 })
	}
	f.named(of.ports)
	f.flag(of.ownNode)
	f.flag(of.lacks)
	of.id = f.digest()
	if found := c.contents[of.id]; found != nil {
		found.namespace, found.labels = of.namespace, of.labels // those of the snapshot before go with it
		return found
	}
	of.identities, of.by = map[*identity]struct{}{}, slices.Clone(all)
	c.contents[of.id] = &of
	c.labelled.add(&of, of.by)
	return &of
}

// selected returns the contents of the pods that a rule's selector selects, and how many it has asked.
func (c *Compiler) selected(s *PodSelector, t Tier) (out []*content, asked int) {
	rarest := c.labelled.rarest(*s)
	for i := range rarest {
		if s.selects(i.namespace, i.labels, t, i.lacks) {
			out = append(out, i)
		}
	}
	return out, len(rarest)
}
