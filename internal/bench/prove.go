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
		r.hold(ctx, row.spec)
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
	r.release(ctx)
	for _, row := range rows {
		row.addNote(r.testbed.notes[row.spec.path.Lab])
	}
	if err := r.testbed.offloads(r.head.Offloads); err != nil || r.options.counting() {
		return err
	}
	return r.write()
}

// hold keeps a connection of the shared agents open: without one, each proof would end
// with a collection of their garbage. A connection that fails does so in its row's proof.
func (r *run) hold(ctx context.Context, s rowSpec) {
	if r.held != nil || !r.options.sliced(s.suite) || !r.testbed.shares(s.path) {
		return
	}
	held, err := r.testbed.open(ctx, s.path, r.options.proofSpec(s.path, s.workload))
	if err == nil {
		r.held = held
	}
}

// release closes that connection. If a failed proof has ended its agents, it is gone.
func (r *run) release(ctx context.Context) {
	if r.held != nil {
		_, _ = r.held.client.Shut(ctx, r.held.connection.ID)
		r.held = nil
	}
}
