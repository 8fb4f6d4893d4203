// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"regexp"
	"strings"

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
			reason := labName.ReplaceAllString(clean(row.Reason), "")
			if byReason[reason] == nil {
				reasons = append(reasons, reason)
			}
			byReason[reason] = append(byReason[reason], row)
		}
		for _, reason := range reasons {
			rows := byReason[reason]
			f := Failure{Status: status, Rows: nameRows(rows, total), Reason: reason}
			for _, row := range rows {
				found := strings.Join(cleanAll(row.Evidence.Findings), "; ")
				switch {
				case found == "":
				case len(rows) > 1:
					f.Reason += fmt.Sprintf(" [%s %s: %s]", clean(row.ID), workloadLabel(row), found)
				default:
					f.Reason += " [" + found + "]"
				}
			}
			out = append(out, f)
		}
	}
	return out
}
