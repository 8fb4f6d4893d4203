// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"time"
)

// prove builds the labs of rows and sends a little traffic over each path, so that no
// row starts cold, and a wrong path fails at once.
func (r *run) prove(ctx context.Context, rows []*measuredRow) error {
	if r.options.sliced(rows[0].spec.suite) {
		begun := time.Now()
		if err := r.testbed.build(ctx, labsOf(rows)); err != nil {
			return err
		}
		r.built = time.Since(begun)
	}
	for _, row := range rows {
		if row.done() || row.spec.workload.OfTables() { // whose samples have their own proof
			continue
		}
		s, err := r.take(ctx, row.spec, true)
		switch {
		case err == nil:
			row.proof = s.evidence
			row.remark(s.measurement)
		case ctx.Err() != nil:
			return err
		case errors.Is(err, errors.ErrUnsupported): // by this kernel
			row.skip(err)
		default:
			if err := r.fail(row, err); err != nil {
				return err
			}
		}
	}
	for _, row := range rows {
		row.addNote(r.testbed.notes[row.spec.path.Lab])
	}
	if err := r.testbed.offloads(r.head.Offloads); err != nil || r.options.counting() {
		return err
	}
	return r.write()
}
