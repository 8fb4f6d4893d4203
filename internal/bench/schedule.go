// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"mustang/internal/lab"
)

// groupRows divides rows into groups whose rounds are interleaved: the rows of a suite,
// or where instructions are counted, which needs no interleaving, those of a lab, so
// that no other lab adds work.
func groupRows(rows []*measuredRow, counting bool) [][]*measuredRow {
	type key struct {
		suite string
		lab   lab.Options
	}
	index := map[key]int{}
	var groups [][]*measuredRow
	for _, row := range rows {
		k := key{suite: row.spec.suite.Name}
		if counting {
			k.lab = row.spec.path.Lab
		}
		i, ok := index[k]
		if !ok {
			i, index[k] = len(groups), len(groups)
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], row)
	}
	return groups
}

// describeGroup names the paths of a group, or the first ones.
func describeGroup(rows []*measuredRow) string {
	var ids []string
	for _, row := range rows {
		if id := row.row.ID; !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	if len(ids) <= 3 {
		return strings.Join(ids, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(ids[:2], ", "), len(ids)-2)
}

// countIDs counts the IDs of rows.
func countIDs(rows []*measuredRow) int {
	ids := map[string]bool{}
	for _, row := range rows {
		ids[row.row.Suite+" "+row.row.ID] = true
	}
	return len(ids)
}

// pending counts the rows that take further samples.
func pending(rows []*measuredRow) int {
	n := 0
	for _, row := range rows {
		if !row.done() {
			n++
		}
	}
	return n
}

// order returns the order in which n rows run in a round: a permutation that
// the seed and the round's number (from 0) determine, so that a run can be
// repeated, and no row always follows the same other.
func order(seed uint64, round, n int) []int {
	return rand.New(rand.NewPCG(seed, uint64(round))).Perm(n)
}
