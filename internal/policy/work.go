// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// MostWork bounds what compiling all that is in force on a node may cost: for a rule set, an identity that it meets counts 1, a block with this
// identity or a rule that selects it 1 more, but for rules of ClusterNetworkPolicies, which each rule set has, and its row rowWork; each combination of rules that identities meet counts its rules, and portWork
// for a port or a row for ports; to ask podWork pods about a term of a selector counts 1 too, and each value of a label that rules name toldWork. Identities are the pods, nodes and ranges of addresses that rules tell apart.
// At the limit compiling takes some seconds, and two hundred megabytes. A change may cost as much, and what there was before besides: both meet.
const (
	MostWork = 1 << 22
	rowWork  = 8
	portWork = 8
	podWork  = 16
	toldWork = 4
)

var mostWork = MostWork // tests take less

// WorkError tells that rules meet too many identities and ports.
type WorkError struct {
	// Most is the largest policy of the namespace whose policies cost most: by themselves, and where rules of others meet their ranges.
	Most Origin
}

func (e *WorkError) Error() string {
	return fmt.Sprintf("%s: its ports, and the pods and ranges that its rules tell apart, are too many for a node, with those of other policies", e.Most)
}

// spend notes work for a rule set, and reports whether there may be more.
func (c *Compiler) spend(set *ruleSet, n int) bool {
	c.work += n
	c.total += n
	set.work += n
	return !c.exhausted()
}

func (c *Compiler) exhausted() bool { return c.limit > 0 && c.work+c.told.work() > c.limit }

// begin allows work for a change. 0 is without a limit.
func (c *Compiler) begin(limit int) { c.work, c.limit = 0, limit }

// Check returns a *WorkError if the snapshot of the last change is too much work to compile from nothing. It compiles, if what sets have cost
// since they are there is too much: of this, some may have gone.
func (c *Compiler) Check(s Snapshot) error {
	if c.total+c.told.work() <= mostWork {
		return nil
	}
	s.Previous = nil
	all := NewCompiler(Rows{})
	if _, err := all.Change(s); err != nil {
		return err
	}
	for id, set := range c.sets {
		set.work = 0
		if same := all.sets[id]; same != nil {
			set.work = same.work
		}
	}
	c.total = all.total
	return nil
}

// heaviest returns the policy that is to blame for too much work.
func (s *Snapshot) heaviest() Origin {
	return s.blame(func(c *Compiler) int { return c.work + c.told.work() }, 2+rowWork)
}

// Fullest returns the largest policy of the namespace whose policies have the most of some rows on the node, for which a function is 1: those
// of its policies by themselves, and of verdicts also those that rules of others have for its ranges.
func (s *Snapshot) Fullest(rows func(Rows) int, verdicts bool) Origin {
	foreign := 0
	if verdicts {
		foreign = 1
	}
	return s.blame(func(c *Compiler) int { return rows(c.Rows()) }, foreign)
}

// blame returns the largest policy of the namespace whose policies cost most on the node: by themselves, and foreign for each range that they bring
// and each rule set of blocks, and for each pod or node that they tell from others and each rule set that selects such. No ClusterNetworkPolicy is to blame while NetworkPolicies have rules, unless those of the cluster are too
// much work by themselves.
func (s *Snapshot) blame(cost func(*Compiler) int, foreign int) (most Origin) {
	of := map[string][]Policy{} // by namespace; "": of the cluster
	for i, here := range s.Here() {
		if p := s.Policies[i]; here && p.Bulk() > 0 {
			of[p.Namespace] = append(of[p.Namespace], p)
		}
	}
	namespaces := slices.Sorted(maps.Keys(of))
	if len(namespaces) == 1 {
		return largest(of[namespaces[0]])
	}
	costs, brings, meet := map[string]int{}, map[string]*[2]int{}, [2]int{} // of ranges, and of pods and nodes
	for _, namespace := range namespaces {
		own := *s
		own.Policies, own.Previous = of[namespace], nil
		c := NewCompiler(Rows{})
		if _, err := c.Change(own); err != nil {
			return largest(own.Policies)
		}
		costs[namespace], brings[namespace] = cost(c), &[2]int{0, len(c.contents)}
		for _, i := range c.identities {
			if i.content == nil {
				brings[namespace][0]++
			}
		}
		for _, set := range c.sets {
			if slices.ContainsFunc(set.clauses, func(q *clause) bool { return len(q.blocks) > 0 }) {
				meet[0]++
			}
			if slices.ContainsFunc(set.clauses, func(q *clause) bool { return len(q.peers) > 0 }) {
				meet[1]++
			}
		}
	}
	highest := -1
	for _, namespace := range namespaces {
		if n := costs[namespace] + foreign*(brings[namespace][0]*meet[0]+brings[namespace][1]*meet[1]); namespace != "" && n > highest {
			highest, most = n, largest(of[namespace])
		}
	}
	return most
}

// largest returns the largest policy.
func largest(all []Policy) Origin {
	most := slices.MaxFunc(all, func(a, b Policy) int { return cmp.Compare(a.Bulk(), b.Bulk()) })
	return most.origin()
}

// selecting returns the policies that select some pods.
func selecting(pods map[*pod]bool) (all []Policy) {
	seen := map[*entry]bool{}
	for p := range pods {
		for e := range p.entries {
			if !seen[e] {
				seen[e], all = true, append(all, e.Policy)
			}
		}
	}
	return all
}
