// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"mustang/internal/lab"
)

// groupRows divides rows into groups whose rounds are interleaved: the rows of a suite. Counted instructions need no
// interleaving: a group is then the rows of a lab, so that no other lab adds work.
func groupRows(rows []*measuredRow, counting bool) [][]*measuredRow {
	type key struct {
		suite string
		lab   lab.Options
	}
	return groupBy(rows, func(row *measuredRow) key {
		if counting {
			return key{row.spec.suite.Name, row.spec.path.Lab}
		}
		return key{suite: row.spec.suite.Name}
	})
}

// groupBy groups items by a key, in the order in which their keys appear.
func groupBy[T any, K comparable](all []T, key func(T) K) [][]T {
	index := map[K]int{}
	var groups [][]T
	for _, item := range all {
		k := key(item)
		i, ok := index[k]
		if !ok {
			i, index[k] = len(groups), len(groups)
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], item)
	}
	return groups
}

func unfinished(rows []*measuredRow) []*measuredRow {
	return slices.DeleteFunc(slices.Clone(rows), (*measuredRow).done)
}

// together calls do for each of n numbers, several at once: each waits for the kernel most of its time.
func together(n, limit int, do func(i int)) {
	var group errgroup.Group
	group.SetLimit(limit)
	for i := range n {
		group.Go(func() error {
			do(i)
			return nil
		})
	}
	_ = group.Wait()
}

func describeGroup(rows []*measuredRow) string {
	var ids []string
	for _, same := range groupBy(rows, func(row *measuredRow) string { return row.row.ID }) {
		ids = append(ids, same[0].row.ID)
	}
	if len(ids) <= 3 {
		return strings.Join(ids, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(ids[:2], ", "), len(ids)-2)
}

func pending(rows []*measuredRow) int { return len(unfinished(rows)) }

// order returns the order in which n rows run in a round. It is a permutation from the seed and the round's number
// (from 0): a run can be repeated, and no row always follows the same other.
func order(seed uint64, round, n int) []int {
	return rand.New(rand.NewPCG(seed, uint64(round))).Perm(n)
}
