// SPDX-License-Identifier: Apache-2.0

package policy

import "slices"

// changeInPlace gives the pods of one rule set another one by a write of one row, if that is all the difference: one rule of many has
// come, gone or changed, and one identity is treated otherwise. Such a set keeps its number and its other rows. What else there is to
// change needs a new set, since each pod is to be switched over by one write. Until the next change the number has no digest, so that a
// process that is killed meanwhile makes nothing of the set. It returns the digest that the set had.
func (c *Compiler) changeInPlace(changed map[*pod]bool) (had Digest) {
	was, next, selecting := c.onlySet(changed)
	if was == nil {
		return had
	}
	c.compose(next, selecting)
	identity, verdict := c.onlyRow(was, next)
	if identity == nil {
		if next.own != nil {
			c.unnumber(next.own)
		}
		return had
	}
	if was.own != nil {
		c.unnumber(was.own)
	}
	had = was.id
	delete(c.sets, had)
	c.numbers.release(had)
	c.total -= was.work
	next.number, next.pods = was.number, was.pods
	*was = *next
	c.sets[was.id], c.renamed = was, was
	c.setVerdict(VerdictKey{was.number, identity.number}, &verdict)
	return had
}

// onlySet returns the one rule set that all pods have which change, and the one that they are to have, with its policies. It is nil if
// there are more, or if a pod has the set that stays.
func (c *Compiler) onlySet(changed map[*pod]bool) (was, next *ruleSet, selecting []*prepared) {
	pods := 0
	for p := range changed {
		if c.pods[p.addresses[0].Unmap()] != p {
			continue
		}
		for d, had := range p.sets[enforced] {
			want, by := c.describeSet(p, enforced, Direction(d))
			switch {
			case had == nil && want == nil, had != nil && want != nil && had.id == want.id:
				continue
			case had == nil, want == nil, was != nil && (was != had || next.id != want.id):
				return nil, nil, nil
			}
			was, next, selecting = had, want, by
			pods++
		}
	}
	if was == nil || pods != was.pods || c.sets[next.id] != nil {
		return nil, nil, nil
	}
	return was, next, selecting
}

// onlyRow returns the one identity that two rule sets treat differently, and its row in the second. It is nil if there are more, or if it
// had or would have no row.
func (c *Compiler) onlyRow(was, next *ruleSet) (only *identity, verdict Verdict) {
	rest := c.verdicts.rows[VerdictKey{was.number, 0}]
	if c.decide(next, nil, next.ports) != rest {
		return nil, Verdict{}
	}
	before := c.match(was, nil)
	for _, i := range before {
		i.met, i.meets = i.meets, nil
	}
	all := c.match(next, nil)
	for _, i := range before {
		if i.meets == nil {
			all = append(all, i)
		}
	}
	differ := 0
	for _, i := range all {
		if differ <= 1 && !alike(was, next, i) {
			row, there := c.verdicts.rows[VerdictKey{was.number, i.number}]
			if v := c.decide(next, i.meets.list(), next.portsFor(i)); !there || v == rest {
				differ += 2
			} else if v != row {
				differ++
				only, verdict = i, v
			}
		}
	}
	for _, i := range all {
		i.met, i.meets = nil, nil
	}
	if differ != 1 {
		return nil, Verdict{}
	}
	return only, verdict
}

// alike reports whether rules of two sets that match an identity say the same. Those for anyone are compared with them, since they may
// come between.
func alike(was, next *ruleSet, i *identity) bool {
	return len(was.always)+len(next.always) == 0 && was.deny == next.deny && was.isolated == next.isolated &&
		slices.EqualFunc(i.met.list(), i.meets.list(), func(a, b int32) bool {
			p, q := was.clauses[a], next.clauses[b]
			return p.rule == q.rule && p.action == q.action && p.tier == q.tier && !p.named && !q.named &&
				(p.ports == nil) == (q.ports == nil) && slices.Equal(p.ports, q.ports)
		})
}
