// SPDX-License-Identifier: Apache-2.0

package policy

import "fmt"

// MostWork bounds what one change of a compiler may cost: a rule that meets an identity counts 1, and a port of it, or a row for ports, portWork
// more; to ask podWork pods counts 1 too. Identities are the pods, nodes and ranges of addresses that rules tell apart. At the limit a change
// takes some seconds, and fifty megabytes.
const (
	MostWork = 1 << 22
	portWork = 8
	podWork  = 16
)

// WorkError tells that rules meet too many identities and ports.
type WorkError struct {
	// Most is the largest policy of the namespace whose pods' rules meet most.
	Most Origin
}

func (e *WorkError) Error() string {
	return fmt.Sprintf("%s: its ports, and the pods and ranges that its rules tell apart, are too many for a node, with those of other policies of its pods", e.Most)
}

// spend notes work for a rule set, and reports whether there may be more.
func (c *Compiler) spend(set *ruleSet, n int) bool {
	c.work += n
	set.work += n
	return !c.exhausted()
}

func (c *Compiler) exhausted() bool { return c.limit > 0 && c.work > c.limit }

// begin allows work for a change. 0 is without a limit.
func (c *Compiler) begin(limit int) {
	c.work, c.limit = 0, limit
	for _, set := range c.sets {
		set.work = 0
	}
}

// checkWork returns a *WorkError if a change has been too much work, and is not finished therefore.
func (c *Compiler) checkWork() error {
	if !c.exhausted() {
		return nil
	}
	spent, largest := map[string]int{}, map[string]*entry{}
	most := ""
	for _, set := range c.sets {
		of := set.heaviest()
		if of == nil {
			continue
		}
		at := of.Namespace // none: of all
		if had := largest[at]; had == nil || of.Bulk() > had.Bulk() {
			largest[at] = of
		}
		if spent[at] += set.work; largest[most] == nil || spent[at] > spent[most] {
			most = at
		}
	}
	if largest[most] == nil {
		return &WorkError{}
	}
	return &WorkError{largest[most].origin()}
}

// heaviest returns the largest NetworkPolicy of a rule set, or the largest policy if there is none.
func (s *ruleSet) heaviest() (of *entry) {
	for _, q := range s.by {
		switch {
		case of == nil, q.of.Tier == Namespaced && of.Tier != Namespaced:
			of = q.of
		case (q.of.Tier == Namespaced) == (of.Tier == Namespaced) && q.of.Bulk() > of.Bulk():
			of = q.of
		}
	}
	return of
}
