// SPDX-License-Identifier: Apache-2.0

package blame

import (
	"cmp"
	"maps"
	"slices"

	"mustang/internal/policy"
)

// rules are the policies of a snapshot that select pods of its node, by namespace; "" is the cluster.
type rules struct {
	*policy.Snapshot
	names    []string
	policies [][]policy.Policy
}

// loses reports whether a namespace has something to lose: rules, or policies that one may stand for.
func (r *rules) loses(i int) bool {
	return r.names[i] != "" && (len(r.policies[i]) > 1 || r.policies[i][0].Bulk() > 0)
}

// cluster returns the ClusterNetworkPolicies.
func (r *rules) cluster() []policy.Policy {
	if len(r.names) == 0 || r.names[0] != "" {
		return nil
	}
	return r.policies[0]
}

func rulesOf(s *policy.Snapshot) *rules {
	of := map[string][]policy.Policy{}
	for i, here := range s.Here() {
		if p := s.Policies[i]; here && (p.Tier == policy.Namespaced || p.Bulk() > 0) {
			of[p.Namespace] = append(of[p.Namespace], p)
		}
	}
	r := &rules{Snapshot: s, names: slices.Sorted(maps.Keys(of))}
	for _, name := range r.names {
		r.policies = append(r.policies, of[name])
	}
	return r
}

// largest returns the largest policy of the first of some namespaces.
func (r *rules) largest(of []string) (most policy.Origin) {
	if len(of) == 0 {
		return most
	}
	bulk := -1
	for _, p := range r.policies[slices.Index(r.names, of[0])] {
		if n := p.Bulk(); n > bulk {
			bulk, most = n, policy.Origin{Tier: p.Tier, Namespace: p.Namespace, Name: p.Name}
		}
	}
	return most
}

// asking returns the namespaces whose rules ask for the most labels, as many as have to go for the rest not to be too much work by this alone: it would
// be too much work to compare them. ClusterNetworkPolicies are to blame if theirs are too many by themselves.
func (r *rules) asking() (gone []string) {
	left := slices.Clone(r.policies)
	if r.Asking(slices.Concat(left...)) <= policy.MostWork { // what several ask for costs once
		return nil
	}
	costs := map[string]int{}
	for i, name := range r.names {
		costs[name] = r.Asking(r.policies[i])
	}
	if costs[""] > policy.MostWork {
		return []string{""}
	}
	delete(costs, "")
	for len(costs) > 0 {
		most := slices.MaxFunc(slices.Collect(maps.Keys(costs)), func(a, b string) int { return cmp.Or(cmp.Compare(costs[a], costs[b]), cmp.Compare(b, a)) })
		gone = append(gone, most)
		delete(costs, most)
		if left[slices.Index(r.names, most)] = nil; r.Asking(slices.Concat(left...)) <= policy.MostWork {
			break
		}
	}
	return gone
}
