// SPDX-License-Identifier: Apache-2.0

package format

import (
	"fmt"
	"strings"

	"mustang/internal/result"
)

// prefix is the first part of an ID, which the rows of a connection share, with its
// slash.
func prefix(id string) string {
	first, _, _ := strings.Cut(id, "/")
	return first + "/"
}

// WorkloadLabel is a row's workload, with the number of flows if there are several, and with
// its setup.
func WorkloadLabel(row result.Row) string {
	label := row.Workload
	if row.Flows > 1 {
		label += fmt.Sprintf("-%d", row.Flows)
	}
	if setup := row.Setup.String(); setup != "" {
		label += " (" + setup + ")"
	}
	return label
}

// CountIDs counts rows by ID and by the prefix of the ID.
func CountIDs(rows []result.Row) map[string]int {
	n := map[string]int{}
	for _, row := range rows {
		n[row.ID]++
		n[prefix(row.ID)]++
	}
	return n
}

// NameRows names rows by the prefix that all rows of a connection share, by ID where
// only some of them are meant, and with the workload where the ID has others.
func NameRows(rows []result.Row, total map[string]int) string {
	here := CountIDs(rows)
	var names []string
	for _, row := range rows {
		shared := prefix(row.ID)
		switch {
		case here[shared] == 0:
		case here[shared] == total[shared] && total[shared] > total[row.ID]:
			names = append(names, "all of "+Clean(strings.TrimSuffix(shared, "/")))
			here[shared] = 0
		case here[row.ID] == 0:
		case here[row.ID] == total[row.ID]:
			names = append(names, Clean(row.ID))
			here[row.ID] = 0
		default:
			names = append(names, Clean(row.ID)+" ("+WorkloadLabel(row)+")")
		}
	}
	return strings.Join(names, ", ")
}
