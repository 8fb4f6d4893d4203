// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
)

// byKind divides rows into those that carry load in turns and those that measure tables of
// services.
func byKind(rows []*measuredRow) (carried, tables []*measuredRow) {
	for _, row := range rows {
		if row.spec.workload.OfServices() {
			tables = append(tables, row)
		} else {
			carried = append(carried, row)
		}
	}
	return carried, tables
}

// tableRounds is the greatest number of rounds of tables of services, which take seconds, and
// quickTableRounds that of a quick run.
const tableRounds, quickTableRounds = 10, 3

// tables measures tables of services in rounds.
func (r *run) tables(ctx context.Context, rows []*measuredRow) error {
	if pending(rows) == 0 {
		return nil
	}
	if err := errors.Join(r.testbed.hangUp(), r.testbed.build(ctx, labsOf(rows))); err != nil { // agents listen where tables do
		return err
	}
	rounds := min(r.options.rounds(), tableRounds)
	if r.options.Quick {
		rounds = min(rounds, quickTableRounds)
	}
	return r.rounds(ctx, rows, rounds)
}
