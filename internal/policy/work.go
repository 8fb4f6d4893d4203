// SPDX-License-Identifier: Apache-2.0

package policy

import "slices"

// What compiling costs beside [MostWork].
const (
	rowWork  = 8
	portWork = 8
	podWork  = 16
	toldWork = 4
)

var mostWork = MostWork // tests take less

// WorkError tells that rules meet too many identities and ports.
type WorkError struct {
	// Of is what is too much. Where pods join those of a snapshot in force, it has the policies of these pods alone.
	Of Snapshot
}

func (e *WorkError) Error() string {
	return "the rules' ports, and the pods and ranges that they tell apart, are too many for a node"
}

// Cost is what a snapshot costs.
type Cost struct {
	// Work is that of [MostWork], and Asked what of it is for labels that rules ask for.
	Work, Asked int
	// Ranges are the identities of addresses that no pod or node has.
	Ranges int
	// Of the rule sets, RangeSets have blocks, and HostSets select pods and nodes: each of these meets each range, pod or node that others tell apart.
	RangeSets, HostSets int
}

// Cost returns what the snapshot of the first change costs.
func (c *Compiler) Cost() Cost {
	cost := Cost{Work: c.work + c.told.work(), Asked: c.told.work()}
	for _, i := range c.identities {
		if i.content == nil {
			cost.Ranges++
		}
	}
	for _, set := range c.sets {
		if slices.ContainsFunc(set.clauses, func(q *clause) bool { return len(q.blocks) > 0 }) {
			cost.RangeSets++
		}
		if slices.ContainsFunc(set.clauses, func(q *clause) bool { return len(q.peers) > 0 }) {
			cost.HostSets++
		}
	}
	return cost
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
