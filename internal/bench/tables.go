// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"mustang/internal/result"
)

// byKind divides rows into those that carry load in turns and those that measure tables of
// services or network policies.
func byKind(rows []*measuredRow) (carried, tables []*measuredRow) {
	for _, row := range rows {
		if row.spec.workload.OfTables() {
			tables = append(tables, row)
		} else {
			carried = append(carried, row)
		}
	}
	return carried, tables
}

// Rounds of tables of services: firstPacketRounds of first packets, whose samples take a tenth of a second and whose tails need
// many, tableRounds at most of the others, which take seconds, and quickTableRounds in a quick run.
const firstPacketRounds, tableRounds, quickTableRounds = 30, 10, 3

// tables measures tables of services and network policies in rounds.
func (r *run) tables(ctx context.Context, rows []*measuredRow) error {
	if pending(rows) == 0 {
		return nil
	}
	if err := errors.Join(r.testbed.hangUp(), r.testbed.build(ctx, labsOf(rows))); err != nil { // agents listen where tables do
		return err
	}
	rounds := cmp.Or(r.options.Rounds, firstPacketRounds)
	if r.options.Quick {
		rounds = min(rounds, quickTableRounds)
	}
	var first, others []*measuredRow
	for _, row := range rows {
		if strings.HasPrefix(row.spec.workload.Name, result.WorkloadFirstPacket) {
			first = append(first, row)
		} else {
			others = append(others, row)
		}
	}
	if pending(first) > 0 {
		if err := r.rounds(ctx, first, rounds); err != nil {
			return err
		}
	}
	if pending(others) == 0 {
		return nil
	}
	return r.rounds(ctx, others, min(rounds, tableRounds))
}
