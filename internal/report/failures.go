// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"regexp"
	"strings"

	"mustang/internal/report/format"
	"mustang/internal/result"
)

// labName matches the name of a lab of bench before a reason: each row may have one of its own.
var labName = regexp.MustCompile(`\blab bench-[0-9]+-[0-9]+: `)

// failures lists the rows without a figure, those of one reason together: failed
// rows first, since they ask for a look.
func (st *suiteTables) failures() []Failure {
	total := countIDs(st.rows)
	var out []Failure
	for _, status := range []string{result.StatusFailed, result.StatusSkipped} {
		byReason := map[string][]result.Row{}
		var reasons []string
		for _, row := range st.rows {
			if row.Status != status {
				continue
			}
			reason := labName.ReplaceAllString(format.Clean(row.Reason), "")
			if byReason[reason] == nil {
				reasons = append(reasons, reason)
			}
			byReason[reason] = append(byReason[reason], row)
		}
		for _, reason := range reasons {
			rows := byReason[reason]
			f := Failure{Status: status, Rows: nameRows(rows, total), Reason: reason}
			for _, row := range rows {
				found := strings.Join(format.CleanAll(row.Evidence.Findings), "; ")
				switch {
				case found == "":
				case len(rows) > 1:
					f.Reason += fmt.Sprintf(" [%s %s: %s]", format.Clean(row.ID), workloadLabel(row), found)
				default:
					f.Reason += " [" + found + "]"
				}
			}
			out = append(out, f)
		}
	}
	return out
}

// prefix is the first part of an ID, which the rows of a connection share, with its
// slash.
func prefix(id string) string {
	first, _, _ := strings.Cut(id, "/")
	return first + "/"
}

// workloadLabel is a row's workload, with the number of flows if there are several, and with
// its setup.
func workloadLabel(row result.Row) string {
	label := row.Workload
	if row.Flows > 1 {
		label += fmt.Sprintf("-%d", row.Flows)
	}
	if setup := row.Setup.String(); setup != "" {
		label += " (" + setup + ")"
	}
	return label
}

// countIDs counts rows by ID and by the prefix of the ID.
func countIDs(rows []result.Row) map[string]int {
	n := map[string]int{}
	for _, row := range rows {
		n[row.ID]++
		n[prefix(row.ID)]++
	}
	return n
}

// nameRows names rows by the prefix that all rows of a connection share, by ID where
// only some of them are meant, and with the workload where the ID has others.
func nameRows(rows []result.Row, total map[string]int) string {
	here := countIDs(rows)
	var names []string
	for _, row := range rows {
		shared := prefix(row.ID)
		switch {
		case here[shared] == 0:
		case here[shared] == total[shared] && total[shared] > total[row.ID]:
			names = append(names, "all of "+format.Clean(strings.TrimSuffix(shared, "/")))
			here[shared] = 0
		case here[row.ID] == 0:
		case here[row.ID] == total[row.ID]:
			names = append(names, format.Clean(row.ID))
			here[row.ID] = 0
		default:
			names = append(names, format.Clean(row.ID)+" ("+workloadLabel(row)+")")
		}
	}
	return strings.Join(names, ", ")
}
