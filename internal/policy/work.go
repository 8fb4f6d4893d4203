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
	// TooMany are the namespaces whose policies cost most, as many as have to go for the rest not to be too much.
	TooMany []string
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

// tooMuch returns whose policies are to blame for too much work.
func (s *Snapshot) tooMuch() *WorkError {
	most, namespaces := s.blame(func(c *Compiler) int { return c.work + c.told.work() }, 2+rowWork, mostWork)
	return &WorkError{most, namespaces}
}

// Fullest returns the namespaces whose policies have the most of some rows on the node, which a function counts: those of its policies by
// themselves, and of verdicts also those that rules of others have for its ranges. They are as many as have to go so that no more rows than room are left, one at least.
func (s *Snapshot) Fullest(rows func(Rows) int, verdicts bool, room int) []string {
	foreign := 0
	if verdicts {
		foreign = 1
	}
	_, namespaces := s.blame(func(c *Compiler) int { return rows(c.Rows()) }, foreign, room)
	return namespaces
}

// bill is what the policies of a namespace cost on the node by themselves, how many ranges, and pods and nodes, they tell apart, and how many of their rule
// sets have blocks, and select pods and nodes: each of these meets each range, pod or node that others tell apart.
type bill struct {
	own           int
	brings, meets [2]int
}

// A namespace with so many ranges, pods and nodes that others meet, or with so many rule sets that meet those of others, pays half where both meet: either is
// much for a node.
const (
	manyBrought = 1 << 13
	manyMeeting = 1 << 8
)

// besides returns what a namespace pays for the meetings of what it tells apart with the rule sets of another one, and of its rule sets with what that
// one tells apart. Each meeting costs foreign; the more a side has, the more of it.
func (b bill) besides(o bill, foreign int) (n float64) {
	for kind := range b.brings {
		n += pay(b.brings[kind], manyBrought, o.meets[kind], manyMeeting) + pay(b.meets[kind], manyMeeting, o.brings[kind], manyBrought)
	}
	return float64(foreign) * n
}

// pay returns how many of the meetings of two numbers the first one pays, each by its part of what is much.
func pay(n, much, others, muchOfOthers int) float64 {
	if n == 0 || others == 0 {
		return 0
	}
	mine, theirs := float64(n)/float64(much), float64(others)/float64(muchOfOthers)
	return float64(n) * float64(others) * mine / (mine + theirs)
}

// bill compiles policies alone. The error is that this is too much work.
func (s *Snapshot) bill(policies []Policy, cost func(*Compiler) int) (b bill, err error) {
	own := *s
	own.Policies, own.Previous = policies, nil
	c := NewCompiler(Rows{})
	_, err = c.Change(own)
	b.own, b.brings[1] = cost(c), len(c.contents)
	for _, i := range c.identities {
		if i.content == nil {
			b.brings[0]++
		}
	}
	for _, set := range c.sets {
		if slices.ContainsFunc(set.clauses, func(q *clause) bool { return len(q.blocks) > 0 }) {
			b.meets[0]++
		}
		if slices.ContainsFunc(set.clauses, func(q *clause) bool { return len(q.peers) > 0 }) {
			b.meets[1]++
		}
	}
	return b, err
}

// blame returns the namespaces whose policies cost most on the node, one at least, and as many as have to go for the cost of the rest not to exceed a limit;
// and the largest policy of the first. Policies cost something by themselves, and foreign where rule sets of others meet what they tell apart. No
// ClusterNetworkPolicy is to blame while NetworkPolicies have rules, unless those of the cluster are too much work by themselves.
func (s *Snapshot) blame(cost func(*Compiler) int, foreign, limit int) (most Origin, gone []string) {
	of := map[string][]Policy{} // by namespace; "": of the cluster
	for i, here := range s.Here() {
		if p := s.Policies[i]; here && p.Bulk() > 0 {
			of[p.Namespace] = append(of[p.Namespace], p)
		}
	}
	bills := make(map[string]bill, len(of))
	for namespace, policies := range of {
		if len(of) == 1 {
			return largest(policies), []string{namespace}
		}
		b, err := s.bill(policies, cost)
		if err != nil && namespace == "" {
			return largest(policies), []string{namespace}
		}
		if err != nil {
			b.own = max(b.own, limit)
		}
		bills[namespace] = b
	}
	if foreign > 0 {
		for namespace, n := range s.splits(bills) {
			if b, known := bills[namespace]; known {
				b.brings[1] = max(b.brings[1], n)
				bills[namespace] = b
			}
		}
	}
	names := slices.Sorted(maps.Keys(bills))
	costs, all := map[string]float64{}, 0.0
	for _, one := range names {
		costs[one] = float64(bills[one].own)
		for _, other := range names {
			if one != other {
				costs[one] += bills[one].besides(bills[other], foreign)
			}
		}
		all += costs[one]
	}
	for len(gone) == 0 || all > float64(limit) {
		next := ""
		for _, one := range names {
			if one != "" && (next == "" || costs[one] > costs[next]) {
				next = one
			}
		}
		if next == "" {
			break
		}
		gone, all = append(gone, next), all-costs[next]
		names = slices.DeleteFunc(names, func(one string) bool { return one == next })
		for _, other := range names {
			less := bills[other].besides(bills[next], foreign)
			costs[other], all = costs[other]-less, all-less
		}
	}
	if len(gone) > 0 {
		most = largest(of[gone[0]])
	}
	return most, gone
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
