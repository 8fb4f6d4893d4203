// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"slices"
	"strings"

	"mustang/internal/result"
)

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
		parts = append(parts, "by "+viaName(via)+" "+s.costOf(byVia[via]))
	}
	return "A cluster IP costs, against the pod IP of the same connection: " + strings.Join(parts, "; ") + "."
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
	by := map[verdict][]*entry{}
	for _, e := range entries {
		v := s.spread.judge(*e.cost)
		by[v] = append(by[v], e)
	}
	for _, group := range by {
		slices.SortStableFunc(group, func(a, b *entry) int {
			if a.cost.Ratio > b.cost.Ratio {
				return -1
			}
			return 1
		})
	}
	var parts []string
	if lost := by[slower]; len(lost) > 0 {
		part := fmt.Sprintf("%s (%s)", percent(1-lost[0].cost.Ratio), lost[0].connection)
		if last := lost[len(lost)-1]; len(lost) > 1 {
			part += fmt.Sprintf(" to %s (%s)", percent(1-last.cost.Ratio), last.connection)
		}
		parts = append(parts, part)
	}
	if same := by[tied]; len(same) > 0 {
		parts = append(parts, fmt.Sprintf("nothing that could be found (%s)", strings.Join(connections(same), ", ")))
	}
	if won := by[faster]; len(won) > 0 {
		part := fmt.Sprintf("less than nothing: %s faster (%s)", percent(won[0].cost.Ratio-1), won[0].connection)
		if last := won[len(won)-1]; len(won) > 1 {
			part = fmt.Sprintf("less than nothing: %s (%s) to %s (%s) faster", percent(last.cost.Ratio-1), last.connection,
				percent(won[0].cost.Ratio-1), won[0].connection)
		}
		parts = append(parts, part)
	}
	if few := by[tooFew]; len(few) > 0 {
		parts = append(parts, fmt.Sprintf("not known, too few rounds (%s)", strings.Join(connections(few), ", ")))
	}
	return strings.Join(parts, ", ")
}
