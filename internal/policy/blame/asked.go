// SPDX-License-Identifier: Apache-2.0

package blame

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"hash/maphash"
	"net/netip"
	"slices"

	"mustang/internal/policy"
	"mustang/internal/policy/ranges"
)

// term is what rules ask of a pod or a node.
type term struct {
	what       kind
	key, value string
}

// kind is a kind of term.
type kind uint8

const (
	podLabel       kind = iota // its value
	podKey                     // whether it is there
	namespaceLabel             // the same of the pod's namespace
	namespaceKey
	nodeLabel
	nodeKey
	portName
	portNumber // of a port with a name
	block      // that an address is in
)

// ask is who asks, and, for labels of pods, of pods in which namespaces.
type ask struct{ space, who int32 }

// asked is what the rules of some namespaces, which have numbers, ask of pods and nodes.
type asked struct {
	asks   map[term][]ask
	spaces []policy.Selector // of namespaces
	space  map[string]int32  // their places
	blocks *ranges.Set[int32]

	namespaces map[string]map[string]string // their labels
	within     map[string][]bool            // by namespace: which of spaces select it
	traits     []trait
	index      map[string]int32
	known      map[question]int32
	seed       maphash.Seed
}

// trait is a term for which the rules of some namespaces ask.
type trait struct {
	weight uint64 // of the term: sums of the weights of others differ
	askers []int32
}

func (t *trait) asks(who int32) bool { return slices.Contains(t.askers, who) }

func (t *trait) asksAlone(who int32) bool { return len(t.askers) == 1 && t.askers[0] == who }

// question is who asks for a term of the pods of a namespace.
type question struct {
	namespace string
	term
}

// none is no trait: nobody asks.
const none = -1

// newAsked returns what the rules of namespaces ask, in the directions in which their policies have a say.
func newAsked(s *policy.Snapshot, namespaces [][]policy.Policy) *asked {
	a := &asked{
		asks: map[term][]ask{}, space: map[string]int32{}, blocks: ranges.New[int32](), namespaces: s.NamespaceLabels(), within: map[string][]bool{},
		index: map[string]int32{}, known: map[question]int32{}, seed: maphash.MakeSeed(),
	}
	cidrs := map[term]*policy.Block{}
	for who, policies := range namespaces {
		for i := range policies {
			a.policy(int32(who), &policies[i], cidrs)
		}
	}
	for t, asks := range a.asks { // rules may ask for one thing in turns with others
		slices.SortFunc(asks, func(a, b ask) int { return cmp.Or(cmp.Compare(a.who, b.who), cmp.Compare(a.space, b.space)) })
		a.asks[t] = slices.Compact(asks)
	}
	for t, b := range cidrs {
		a.blocks.Add(a.trait("", t), b.CIDR, b.Except)
	}
	return a
}

func (a *asked) policy(who int32, p *policy.Policy, blocks map[term]*policy.Block) {
	directions := map[policy.Direction][]policy.Rule{policy.Egress: p.Egress, policy.Ingress: p.Ingress}
	for d, rules := range directions {
		if !p.Concerns(d) {
			continue
		}
		for i := range rules {
			for _, peer := range rules[i].Peers {
				switch {
				case peer.Block != nil:
					t := term{block, blockText(peer.Block), ""}
					blocks[t] = peer.Block
					a.add(t, ask{who: who})
				case peer.Nodes != nil:
					a.selector([2]kind{nodeLabel, nodeKey}, *peer.Nodes, ask{who: who})
				case peer.Pods != nil:
					a.selector([2]kind{namespaceLabel, namespaceKey}, peer.Pods.Namespaces, ask{who: who})
					if len(peer.Pods.Pods.Labels)+len(peer.Pods.Pods.Requirements) > 0 {
						a.selector([2]kind{podLabel, podKey}, peer.Pods.Pods, ask{a.spaceOf(peer.Pods.Namespaces), who})
					}
				}
			}
			for _, port := range rules[i].Ports {
				if d == policy.Egress && port.Name != "" { // on ingress it is that of the pod itself
					a.add(term{portName, port.Name, ""}, ask{who: who})
				}
			}
		}
	}
}

// selector notes the labels for whose values a selector asks, and those of which it asks whether they are there.
func (a *asked) selector(kinds [2]kind, s policy.Selector, by ask) {
	for key, value := range s.Labels {
		a.add(term{kinds[0], key, value}, by)
	}
	for _, r := range s.Requirements {
		if len(r.Values) == 0 {
			a.add(term{kinds[1], r.Key, ""}, by)
		}
		for _, value := range r.Values {
			a.add(term{kinds[0], r.Key, value}, by)
		}
	}
}

func (a *asked) add(t term, by ask) {
	had := a.asks[t]
	if len(had) == 0 || had[len(had)-1] != by {
		a.asks[t] = append(had, by)
	}
}

// spaceOf returns the place of a selector of namespaces.
func (a *asked) spaceOf(s policy.Selector) int32 {
	text, _ := json.Marshal(s) // strings alone
	at, ok := a.space[string(text)]
	if !ok {
		at = int32(len(a.spaces))
		a.space[string(text)], a.spaces = at, append(a.spaces, s)
	}
	return at
}

// blockText tells blocks apart.
func blockText(b *policy.Block) string {
	text := b.CIDR.AppendTo(nil)
	for _, e := range slices.SortedFunc(slices.Values(b.Except), netip.Prefix.Compare) {
		text = e.AppendTo(append(text, ' '))
	}
	return string(text)
}

// trait returns that of a term of pods of a namespace, or of others.
func (a *asked) trait(namespace string, t term) int32 {
	if t.what != podLabel && t.what != podKey {
		namespace = ""
	}
	if len(a.asks[t]) == 0 {
		return none
	}
	q := question{namespace, t}
	known, ok := a.known[q]
	if !ok {
		known = a.traitOf(t, a.askers(namespace, t))
		a.known[q] = known
	}
	return known
}

// traitOf returns the trait for which some ask.
func (a *asked) traitOf(t term, askers []int32) int32 {
	if len(askers) == 0 {
		return none
	}
	weight := maphash.Comparable(a.seed, t)
	key := binary.LittleEndian.AppendUint64(nil, weight)
	for _, who := range askers {
		key = binary.LittleEndian.AppendUint32(key, uint32(who))
	}
	at, ok := a.index[string(key)]
	if !ok {
		at = int32(len(a.traits))
		a.index[string(key)], a.traits = at, append(a.traits, trait{weight, askers})
	}
	return at
}

// askers returns who asks for a term of pods of a namespace, in their order.
func (a *asked) askers(namespace string, t term) (who []int32) {
	var in []bool
	if t.what == podLabel || t.what == podKey {
		in = a.spacesOf(namespace)
	}
	for _, by := range a.asks[t] {
		if known := len(who) > 0 && who[len(who)-1] == by.who; !known && (in == nil || in[by.space]) {
			who = append(who, by.who)
		}
	}
	return who
}

// spacesOf reports which selectors of namespaces select one.
func (a *asked) spacesOf(namespace string) []bool {
	in, ok := a.within[namespace]
	if !ok {
		in = make([]bool, len(a.spaces))
		for i, s := range a.spaces {
			in[i] = s.Matches(a.namespaces[namespace])
		}
		a.within[namespace] = in
	}
	return in
}
