// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"mustang/internal/result"
)

// manyNames is how many names a sentence does without where it can.
const manyNames = 4

// costs says for each way of cluster IP what it costs against the pod IP.
func (s *set) costs() string {
	var vias []string
	byVia := map[string][]*entry{}
	for _, e := range s.entries {
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
	if !s.anyKnown(byVia) {
		return "What a cluster IP costs can't be told: too few rounds."
	}
	var parts []string
	for _, via := range vias {
		parts = append(parts, "by "+viaTitle(via)+" "+s.costOf(byVia[via]))
	}
	return s.reading.costs + strings.Join(parts, "; ") + "."
}

// anyKnown says that at least one of the costs rests on enough rounds.
func (s *set) anyKnown(byVia map[string][]*entry) bool {
	for _, entries := range byVia {
		for _, e := range entries {
			if s.spread.judge(*e.cost) != tooFew {
				return true
			}
		}
	}
	return false
}

// costOf says what one way of cluster IP costs over the connections that have it.
func (s *set) costOf(entries []*entry) string {
	var lost, same, won, few []*entry
	for _, e := range entries {
		switch v := s.spread.judge(*e.cost); {
		case v == tooFew:
			few = append(few, e)
		case v == tied:
			same = append(same, e)
		case s.reading.worse(v):
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
		parts = append(parts, s.costRange(lost, len(entries), "%s (%s)", "%s (%s) to %s (%s)"))
	}
	if len(same) > 0 {
		parts = append(parts, fmt.Sprintf("nothing that could be found (%s)", which(same, len(entries))))
	}
	if len(won) > 0 {
		better := s.reading.higher
		if s.reading.counted {
			better = s.reading.lower
		}
		parts = append(parts, "less than nothing: "+s.costRange(won, len(entries), "%s "+better+" (%s)", "%s (%s) to %s (%s) "+better))
	}
	if len(few) > 0 {
		parts = append(parts, fmt.Sprintf("not known, too few rounds (%s)", which(few, len(entries))))
	}
	return strings.Join(parts, ", ")
}

// which names the connections of entries, unless they are all of many.
func which(entries []*entry, total int) string {
	if names := connections(entries); len(entries) < total || len(names) < manyNames {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("all %d", total)
}

// costRange says the least and the greatest difference of entries, which are in
// that order and all in one direction, out of a total.
func (s *set) costRange(entries []*entry, total int, one, several string) string {
	share := func(e *entry) string { return percent(math.Abs(e.cost.Ratio - 1)) }
	first, last := entries[0], entries[len(entries)-1]
	if share(first) == share(last) {
		return fmt.Sprintf(one, share(first), which(entries, total))
	}
	return fmt.Sprintf(several, share(first), first.connection, share(last), last.connection)
}
