// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/policy"
	"mustang/internal/policy/blame"
)

// search is who has lost something so far, in a search for what there is room for.
type search struct {
	namespace string // whose NetworkPolicies lose their rules by halves, before another's do
	halves    int
	forgotten int // namespaces
	all       bool
}

// loss is what is lost: the rules of some NetworkPolicies, the labels of the pods of some namespaces, and all NetworkPolicies of some namespaces, whose pods
// are isolated then.
type loss struct {
	rules          []int
	labels, policy []string
	all            bool // all NetworkPolicies are one
}

func (l loss) isEmpty() bool { return !l.all && len(l.rules)+len(l.labels)+len(l.policy) == 0 }

// isOfRoom reports whether an error tells that there is no room for policies.
func isOfRoom(err error) bool {
	var none *objects.FullError
	var over *policy.OverlapError
	var work *blame.WorkError
	return errors.As(err, &none) || errors.As(err, &over) || errors.As(err, &work)
}

// toLose returns what is to be lost by an error. The longer it takes, the more: services wait meanwhile.
func (b *search) toLose(here policy.Snapshot, err error) loss {
	var none *objects.FullError
	var over *policy.OverlapError
	var work *blame.WorkError
	namespaces := []string{b.namespace}
	isFull := errors.As(err, &none)
	switch {
	case !isOfRoom(err):
		return loss{}
	case isFull && none.Map == policies.Documents:
		return largest(here, int(none.Size)*policies.DocumentPiece, max(1, b.forgotten))
	case b.namespace != "" && len(ofNamespaces(here, namespaces)) > 0:
	case errors.As(err, &over):
		namespaces = blame.Overlaps(here)
	case errors.As(err, &work):
		namespaces = work.TooMany
	default:
		namespaces = fullest(here, none)
	}
	strip := ofNamespaces(here, namespaces)
	for _, namespace := range namespaces {
		if len(strip) == 0 { // the datapath knows other pods of the node than the cluster, which may be gone there
			strip = withRules(here.Policies, namespace)
		}
	}
	if len(namespaces) == 1 {
		if namespaces[0] != b.namespace {
			b.namespace, b.halves = namespaces[0], 0
		}
		if b.halves++; b.halves <= mostHalves {
			strip = heaviest(here.Policies, strip)
		}
	}
	l := loss{rules: strip}
	if len(strip) > 0 || over != nil {
		return l
	}
	if l.policy = several(here, namespaces); len(l.policy) > 0 {
		return l
	}
	if isFull && (len(namespaces) > 0 || len(ofCluster(here.Policies)) == 0) {
		l.rules = heaviest(here.Policies, largestOf(here.Policies))
	}
	if l.isEmpty() && !b.all { // what is left is what ClusterNetworkPolicies cost each rule set
		b.all, l.all = true, true
	}
	return l
}

// several returns those of some namespaces of which several NetworkPolicies select pods of the node: one can stand for them, which isolates all pods.
func several(s policy.Snapshot, namespaces []string) (out []string) {
	of := map[string]int{}
	for i, here := range s.Here() {
		if p := &s.Policies[i]; here && p.Tier == policy.Namespaced {
			of[p.Namespace]++
		}
	}
	for _, namespace := range namespaces {
		if of[namespace] > 1 {
			out = append(out, namespace)
		}
	}
	return out
}

// mostHalves is how often the NetworkPolicies of one namespace lose their rules by halves.
const mostHalves = 2

// fullest returns the namespaces whose NetworkPolicies have the most rows of a map on the node.
func fullest(s policy.Snapshot, full *objects.FullError) []string {
	return blame.Fullest(s, func(rows policy.Rows, hosts int) int {
		switch full.Map {
		case policies.Ports:
			return len(rows.Ports)
		case "verdicts":
			return len(rows.Verdicts)
		case "identities":
			return len(rows.Addresses) - hosts
		}
		return len(rows.Numbers)
	}, full.Map == "verdicts", policies.Room(full))
}

// ofNamespaces returns the NetworkPolicies of namespaces that have rules and select pods of the node.
func ofNamespaces(s policy.Snapshot, namespaces []string) (out []int) {
	for i, here := range s.Here() {
		if p := &s.Policies[i]; here && p.Tier == policy.Namespaced && p.Bulk() > 0 && slices.Contains(namespaces, p.Namespace) {
			out = append(out, i)
		}
	}
	return out
}

// largest returns what takes most of the documents, which have so many bytes: NetworkPolicies, whichever nodes their pods are on, or the labels of pods, of
// so many namespaces at most. If all policies, and all labels, take less than a sixteenth, nobody is to blame: the pods of the cluster are many.
func largest(s policy.Snapshot, size, most int) loss {
	text := map[string][]policy.Policy{}
	for i := range s.Policies {
		if p := &s.Policies[i]; p.Tier == policy.Namespaced {
			text[p.Namespace] = append(text[p.Namespace], *p)
		}
	}
	of, labels := stored(text), stored(s.Labelled())
	policies, labelled := sum(of), sum(labels)
	switch {
	case policies >= size/16 && policies >= labelled:
		return halfOf(s.Policies, of, policies)
	case labelled < size/16:
		return loss{}
	}
	unknown, named := bySize(labels), s.Named(labels)
	if by := bySize(named); len(by) > 0 && (len(unknown) == 0 || named[by[0]] >= labels[unknown[0]]) { // whoever names them has them kept, of others too
		if rules := withRules(s.Policies, by[0]); len(rules) > 0 {
			return loss{rules: rules}
		}
	}
	return loss{labels: unknown[:min(len(unknown), most)]}
}

// stored returns how many bytes it takes to store what namespaces have: texts that repeat themselves take few.
func stored[T any](of map[string][]T) map[string]int {
	sizes := make(map[string]int, len(of))
	for namespace, all := range of {
		sizes[namespace], _ = policies.Stored(all) // which can be encoded
	}
	return sizes
}

// withRules returns the NetworkPolicies of a namespace that have rules.
func withRules(all []policy.Policy, namespace string) (rules []int) {
	for i := range all {
		if p := &all[i]; p.Tier == policy.Namespaced && p.Namespace == namespace && p.Bulk() > 0 {
			rules = append(rules, i)
		}
	}
	return rules
}

// halfOf returns what the namespaces lose whose policies are half of all in size, the largest first: rules, half of them if it is one namespace alone, and
// where none has rules any more, the policies themselves.
func halfOf(all []policy.Policy, sizes map[string]int, sum int) (l loss) {
	rules, policies := map[string][]int{}, map[string]int{}
	for i := range all {
		if p := &all[i]; p.Tier == policy.Namespaced {
			if policies[p.Namespace]++; p.Bulk() > 0 {
				rules[p.Namespace] = append(rules[p.Namespace], i)
			}
		}
	}
	had, n := 0, 0
	names := bySize(sizes)
	for _, namespace := range names {
		if 2*had >= sum || 4*sizes[namespace] < sizes[names[0]] {
			break // the others have little each
		}
		had, n = had+sizes[namespace], n+1
		if len(rules[namespace]) > 0 {
			l.rules = append(l.rules, rules[namespace]...)
		} else if policies[namespace] > 1 {
			l.policy = append(l.policy, namespace)
		}
	}
	if n == 1 {
		l.rules = heaviest(all, l.rules)
	}
	return l
}

// bySize returns names, those with the largest sizes first.
func bySize(sizes map[string]int) []string {
	return slices.SortedFunc(maps.Keys(sizes), func(a, b string) int { return cmp.Or(cmp.Compare(sizes[b], sizes[a]), cmp.Compare(a, b)) })
}

func sum(sizes map[string]int) (n int) {
	for _, size := range sizes {
		n += size
	}
	return n
}

// largestOf returns the NetworkPolicies with rules of the namespace whose rules are largest.
func largestOf(all []policy.Policy) []int {
	sizes, with := map[string]int{}, map[string][]int{}
	for i := range all {
		if p := &all[i]; p.Tier == policy.Namespaced && p.Bulk() > 0 {
			sizes[p.Namespace] += p.Bulk()
			with[p.Namespace] = append(with[p.Namespace], i)
		}
	}
	if len(sizes) == 0 {
		return nil
	}
	return with[bySize(sizes)[0]]
}

// heaviest returns, of some policies, the largest ones: those that have half of all.
func heaviest(all []policy.Policy, of []int) []int {
	sum := 0
	for _, i := range of {
		sum += all[i].Bulk()
	}
	slices.SortStableFunc(of, func(a, b int) int { return cmp.Compare(all[b].Bulk(), all[a].Bulk()) })
	n := 0
	for had := 0; 2*had < sum; n++ {
		had += all[of[n]].Bulk()
	}
	return of[:n]
}
