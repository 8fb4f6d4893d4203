// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"mustang/internal/explain"
	"mustang/internal/result"
)

// traceShare is the part of a suite's time that tracing takes at most, as a fraction. A row takes
// half a second to a second, most of it to load programs into the kernel.
const traceShare = 20

// trace finds the steps of the rows' packets, before their turns, since tracing slows them down. A quick run skips it.
// Without --all or --only it traces only rows that may be the best. Rows that cannot be traced lack a trace.
func (r *run) trace(ctx context.Context, rows []*measuredRow) error {
	paths, o := tracedRows(rows), r.options
	if !o.All && len(o.Only) == 0 { // the contenders, whose difference matters
		paths = slices.DeleteFunc(paths, func(row *measuredRow) bool { return !contends(row.spec.suite, row.spec.path) })
	}
	if o.Quick || o.Cluster != nil || len(paths) == 0 {
		return nil
	}
	if err := r.testbed.hangUp(false); err != nil { // the tracer's agents take the ports
		return err
	}
	until := time.Now().Add(o.Time / traceShare)
	for _, row := range paths {
		if time.Now().After(until) {
			break
		}
		l, err := r.testbed.lab(ctx, row.spec.path.Lab)
		if err != nil {
			continue // its rows fail for it
		}
		found, err := explain.Trace(ctx, l, row.spec.path, explain.Options{Suite: row.row.Suite, CPUs: o.CPUs})
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errors.ErrUnsupported):
			o.Progress.Note(fmt.Sprintf("packets are not traced: %s", err))
			return nil
		case err == nil:
			r.head.Traces = append(r.head.Traces, found.Result())
		}
	}
	return nil
}

// tracedRows returns a row of each path that may be traced: pod IPs, then cluster IPs, then paths that connect no
// pods. Variants in size and CPUs take the same steps as others. Kept labs do not release their ports.
func tracedRows(rows []*measuredRow) []*measuredRow {
	seen := map[string]bool{}
	var ranks [3][]*measuredRow
	for _, row := range rows {
		p, rank := row.spec.path, 0
		if row.done() || seen[p.ID] || p.Repeats != "" || p.Lab.BigTCP || p.Lab.Sockmap || p.TwoCPUs ||
			keeps(p.Lab) || p.Plugin != nil || p.Engine != nil {
			continue
		}
		seen[p.ID] = true
		switch {
		case p.Baseline:
			rank = 2
		case p.Target == result.TargetClusterIP:
			rank = 1
		}
		ranks[rank] = append(ranks[rank], row)
	}
	return slices.Concat(ranks[:]...)
}
