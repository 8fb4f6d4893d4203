// SPDX-License-Identifier: Apache-2.0

package policy

// What compiling costs beside [MostWork].
const (
	rowWork  = 8
	portWork = 8
	podWork  = 16
	toldWork = 4
)

const workUnits = "units of compile work"

var mostWork = MostWork // tests take less

// spend notes work for a rule set, and reports whether there may be more.
func (c *Compiler) spend(set *ruleSet, n int) bool {
	c.work += n
	c.total += n
	set.work += n
	return !c.exhausted()
}

// use spends work that is that of the rule set's own rules, whatever others tell apart.
func (c *Compiler) use(set *ruleSet, n int) bool {
	c.meter.use(set, n)
	return c.spend(set, n)
}

func (c *Compiler) exhausted() bool {
	return c.limit > 0 && c.work+c.told.work() > c.limit || c.meter.spent()
}

// begin allows work for a change. 0 is without a limit.
func (c *Compiler) begin(limit int) { c.work, c.limit = 0, limit }

// Check returns a *LimitError if the snapshot of the last change is too much work to compile from nothing. It compiles, if what sets have cost
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

// largest returns the policy with the most peers and ports of some entries, the first by name of several.
func largest(entries func(yield func(*entry) bool)) (most Origin) {
	size := -1
	for e := range entries {
		n := e.count()
		if o := e.origin(); n > size || n == size && o.String() < most.String() {
			size, most = n, o
		}
	}
	return most
}

// count counts the peers and ports of a policy's rules, and the ranges of its blocks.
func (p *Policy) count() (n int) {
	for _, rules := range [][]Rule{p.Ingress, p.Egress} {
		for i := range rules {
			n += 1 + len(rules[i].Ports)
			for _, peer := range rules[i].Peers {
				if n++; peer.Block != nil {
					n += len(peer.Block.Except)
				}
			}
		}
	}
	return n
}

// active calls yield for each policy that selects pods of this node: some of those, if they are not nil.
func (c *Compiler) active(pods map[*pod]bool) func(yield func(*entry) bool) {
	return func(yield func(*entry) bool) {
		for _, e := range c.entries {
			selects := pods == nil
			for p := range e.pods {
				selects = selects || pods[p]
			}
			if selects && e.active() && e.in[enforced] && !yield(e) {
				return
			}
		}
	}
}
