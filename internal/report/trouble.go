// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"strings"

	"mustang/internal/result"
)

// trouble is what kept rows from having a figure.
type trouble struct {
	Status string // "skipped" or "failed"
	Rows   string // the rows' IDs, with the workload where not all of an ID's have it
	Reason string
	rows   []result.Row // of one suite
}

// troubles lists a suite's rows without a figure, those of one reason together:
// failed ones first, since they ask for a look.
func (v *view) troubles(su *suite) []trouble {
	var out []trouble
	for _, status := range []string{result.StatusFailed, result.StatusSkipped} {
		byReason := map[string]int{}
		for _, row := range v.file.Rows {
			if row.Status != status || row.Suite != su.name {
				continue
			}
			reason := clean(row.Reason)
			i, seen := byReason[reason]
			if !seen {
				i = len(out)
				byReason[reason] = i
				out = append(out, trouble{Status: status, Reason: reason})
			}
			out[i].rows = append(out[i].rows, row)
		}
	}
	for i := range out {
		out[i].Rows = v.describe(out[i].rows)
		for _, row := range out[i].rows {
			e := entry{Row: row}
			if found := strings.Join(e.findings(), "; "); found != "" && len(out[i].rows) > 1 {
				out[i].Reason += fmt.Sprintf(" [%s %s: %s]", clean(row.ID), workloadLabel(row), found)
			} else if found != "" {
				out[i].Reason += " [" + found + "]"
			}
		}
	}
	return out
}

// beginning is the part of an ID that a link mode's rows have in common.
func beginning(id string) string {
	first, _, _ := strings.Cut(id, "/")
	return first
}

// workloadLabel is a row's workload, with the number of flows if there are several.
func workloadLabel(row result.Row) string {
	if row.Flows > 1 {
		return fmt.Sprintf("%s-%d", row.Workload, row.Flows)
	}
	return row.Workload
}

// describe names rows by what all rows of a link mode begin with, by ID where
// only some of them are meant, and by workload where the ID has others.
func (v *view) describe(rows []result.Row) string {
	total, here := map[string]int{}, map[string]int{}
	for _, row := range v.file.Rows {
		if row.Suite == rows[0].Suite {
			total[row.ID]++
			total[beginning(row.ID)+"/"]++
		}
	}
	for _, row := range rows {
		here[row.ID]++
		here[beginning(row.ID)+"/"]++
	}
	var names []string
	for _, row := range rows {
		mode := beginning(row.ID) + "/"
		switch {
		case here[mode] == 0:
		case here[mode] == total[mode] && total[mode] > total[row.ID]:
			names = append(names, "all of "+clean(beginning(row.ID)))
			here[mode] = 0
		case here[row.ID] == 0:
		case here[row.ID] == total[row.ID]:
			names = append(names, clean(row.ID))
			here[row.ID] = 0
		default:
			names = append(names, clean(row.ID)+" ("+workloadLabel(row)+")")
		}
	}
	return strings.Join(names, ", ")
}
