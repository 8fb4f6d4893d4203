// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"slices"

	"mustang/internal/bench/suites"
)

// mostFilled is the share of a result file's limits after which a suite ends: the next
// instance must fit too, and whoever reads the file takes no larger one.
const mostFilled = 0.8

// mostRoundSamples is the most samples that a number of rounds may make: about as many fit in a
// result file.
const mostRoundSamples = 2_000_000

// checkRoom returns an error if the rounds of rows would not fit in a result file.
func (o Options) checkRoom(rows int) error {
	if n := rows * o.Rounds; n > mostRoundSamples {
		return fmt.Errorf("invalid rounds %d: %d rows would have %d samples, a result file holds %d", o.Rounds, rows, n, mostRoundSamples)
	}
	return nil
}

// full reports whether the result file has no room for a further instance of rows, and notes it.
// Each suite has its share of the file.
func (r *run) full(rows []*measuredRow) bool {
	suite := slices.IndexFunc(r.options.Suites, func(s suites.Suite) bool { return s.Name == rows[0].row.Suite })
	if r.options.Out == nil || r.options.Out.Filled()*float64(len(r.options.Suites)) < mostFilled*float64(suite+1) {
		return false
	}
	rounds := 0
	for _, row := range rows {
		rounds = max(rounds, len(row.row.Samples))
	}
	r.head.Notes = append(r.head.Notes, fmt.Sprintf("Suite %s ended after %s: the result file has no room for more.", rows[0].row.Suite, count(rounds, "round")))
	return true
}
