// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"mustang/internal/report/format"
	"mustang/internal/result"
)

// manyNames is the number of names that a sentence replaces with their count.
const manyNames = 4

// serviceCosts gives the cost of each kind of cluster IP against the pod IP.
func (t *workloadTable) serviceCosts() string {
	var vias []string
	byVia := map[string][]*entry{}
	for _, e := range t.entries {
		if e.Target != result.TargetClusterIP || e.repeat || e.cost == nil {
			continue
		}
		if byVia[e.Via] == nil {
			vias = append(vias, e.Via)
		}
		byVia[e.Via] = append(byVia[e.Via], e)
	}
	if len(vias) == 0 {
		return "No cluster IP was measured beside its pod IP."
	}
	if !t.anyKnown(byVia) {
		return "Too few rounds to give the cost of a cluster IP."
	}
	var parts []string
	for _, via := range vias {
		parts = append(parts, format.ViaTitle(via)+" "+t.costOf(byVia[via]))
	}
	return t.wording.costs + strings.Join(parts, "; ") + "."
}

// anyKnown reports whether one of the costs rests on enough rounds.
func (t *workloadTable) anyKnown(byVia map[string][]*entry) bool {
	for _, entries := range byVia {
		for _, e := range entries {
			if t.verdictOn(*e.cost) != tooFew {
				return true
			}
		}
	}
	return false
}

// costOf gives the cost of one kind of cluster IP over the connections that have it.
func (t *workloadTable) costOf(entries []*entry) string {
	var lost, same, won, few, apart []*entry
	for _, e := range entries {
		switch v := t.verdictOn(*e.cost); {
		case v == tooFew:
			few = append(few, e)
		case v == tied:
			same = append(same, e)
		case v == unclear:
			apart = append(apart, e)
		case t.wording.worse(v):
			lost = append(lost, e)
		default:
			won = append(won, e)
		}
	}
	for _, group := range [][]*entry{lost, won} {
		slices.SortStableFunc(group, func(a, b *entry) int {
			return cmp.Compare(math.Abs(a.cost.Ratio-1), math.Abs(b.cost.Ratio-1))
		})
	}
	var parts []string
	if len(lost) > 0 {
		parts = append(parts, t.costRange(lost, len(entries), "%s with %s", "%s with %s to %s with %s"))
	}
	if len(same) > 0 {
		parts = append(parts, fmt.Sprintf("no difference found (%s)", which(same, len(entries))))
	}
	if len(won) > 0 {
		better := t.wording.higher
		if t.wording.counted {
			better = t.wording.lower
		}
		parts = append(parts, t.costRange(won, len(entries), "%s "+better+" with %s", "%s with %s to %s with %s "+better))
	}
	if len(apart) > 0 {
		var lossy []string
		for _, e := range apart {
			lossy = append(lossy, e.named())
		}
		parts = append(parts, cannotTell+" ("+strings.Join(lossy, ", ")+")")
	}
	if len(few) > 0 {
		parts = append(parts, fmt.Sprintf("too few rounds (%s)", which(few, len(entries))))
	}
	return strings.Join(parts, ", ")
}

// which names the connections of entries, unless they are all of many.
func which(entries []*entry, total int) string {
	if all := names(entries); len(entries) < total || len(all) < manyNames {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("all %d", total)
}

// costRange gives the least and the greatest difference of entries, which are in
// that order and all in one direction, out of a total.
func (t *workloadTable) costRange(entries []*entry, total int, one, several string) string {
	share := func(e *entry) string { return t.of(*e.cost).size("", "") }
	first, last := entries[0], entries[len(entries)-1]
	if share(first) == share(last) {
		return fmt.Sprintf(one, share(first), which(entries, total))
	}
	return fmt.Sprintf(several, share(first), first.name, share(last), last.name)
}
