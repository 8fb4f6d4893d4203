// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"mustang/internal/bench/evidence"
	"mustang/internal/bench/stats"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/result"
)

// interleave measures rows of a suite in instances. Each instance builds the labs, starts the agents and opens the
// connections anew. Each is a random draw: the placement of code and memory, the buckets of hash tables. In an
// instance, rows of one workload take turns of a millisecond or a few.
func (r *run) interleave(ctx context.Context, rows []*measuredRow, started time.Time) error {
	b, suite, o := newBudget(r.options, started, r.built, len(byWorkload(rows))), rows[0].row.Suite, r.options
	widest := math.Inf(1)
	for open := true; open; {
		if err := r.instance(ctx, rows, b); err != nil {
			return err
		}
		if o.Until > 0 {
			widest = r.widest(suite)
		}
		open = pending(rows) > 0 && !b.over(widest) && !r.full(rows)
		if open && b.quarter() {
			r.soFar(rows, b.done)
			open = b.done < lookInstances || r.look(rows, b)
		}
	}
	if note := r.compared.unrepeated(suite); note != "" {
		r.head.Notes = append(r.head.Notes, note)
	}
	if o.Until > 0 && widest > o.Until {
		is := fmt.Sprintf("±%.2g %%", widest*100)
		if math.IsInf(widest, 1) {
			is = "unknown"
		}
		r.head.Notes = append(r.head.Notes,
			fmt.Sprintf("Suite %s: after %v the widest interval of a ratio is %s, not ±%.2g %%.", suite, o.Time, is,
				o.Until*100))
	}
	return nil
}

// widest returns the half-width of the widest interval among the comparisons of a suite, as a share. It is +Inf
// without comparisons, or if one lacks an interval. Comparisons that only order rows do not count.
func (r *run) widest(suite string) float64 {
	widest := 0.0
	for _, c := range r.file().Run.Comparisons {
		switch {
		case c.Suite != suite || c.Asks == result.AsksRank:
		case c.CI95 == nil:
			return math.Inf(1)
		default:
			widest = max(widest, stats.Estimate{Value: c.Ratio, Interval: c.CI95}.HalfWidth())
		}
	}
	if widest == 0 { // the rows of each pair have failed
		return math.Inf(1)
	}
	return widest
}

func (r *run) instance(ctx context.Context, rows []*measuredRow, b *budget) error {
	groups := byWorkload(rows)
	b.begin(convert(groups, func(group []*measuredRow) string { return group[0].spec.workload.String() })...)
	if err := r.testbed.build(ctx, labsOf(rows)); err != nil {
		return err
	}
	if r.options.Cluster == nil {
		if err := r.disturbed.watch(); err != nil {
			return err
		}
	}
	for _, group := range groups {
		if err := r.epoch(ctx, group, b); err != nil {
			return err
		}
	}
	err := errors.Join(r.testbed.renew(), r.write())
	b.end()
	return err
}

func labsOf(rows []*measuredRow) []lab.Options {
	return convert(active(rows), func(row *measuredRow) lab.Options { return row.spec.path.Lab })
}

func active(rows []*measuredRow) []*measuredRow {
	return slices.DeleteFunc(unfinished(rows), func(row *measuredRow) bool { return row.answered })
}

func byWorkload(rows []*measuredRow) [][]*measuredRow {
	return groupBy(active(rows), func(row *measuredRow) string { return row.spec.workload.String() })
}

// epoch measures rows of one workload while their connections stand open: in the first instance of a run that is not
// quick the time of programs too. After an interrupt the samples so far count, if their evidence fits.
func (r *run) epoch(ctx context.Context, rows []*measuredRow, b *budget) (err error) {
	e := epoch{run: r, instance: b.done, recorders: map[*lab.Lab]*evidence.Recorder{}}
	defer func() {
		for _, row := range e.failed {
			err = errors.Join(err, r.testbed.reset(row.spec.path))
		}
	}()
	if err := e.open(ctx, rows); err != nil {
		return err
	}
	err = e.rounds(ctx, b.epoch(rows[0].spec.workload.String()))
	if err == nil && b.done == 0 && !r.options.Quick {
		err = e.programTimes(ctx)
	}
	if err != nil && ctx.Err() == nil {
		return err
	}
	if err != nil {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutTimeout)
		defer cancel()
		ctx = late
	}
	return errors.Join(err, e.close(ctx))
}

// open opens the connections of rows. TCP streams carry load until the windows of both ends have grown.
func (e *epoch) open(ctx context.Context, rows []*measuredRow) error {
	var all, recorded []*connection
	var labs []*lab.Lab
	for _, row := range rows {
		s, err := e.run.testbed.prepare(ctx, row.spec.path, e.run.options.spec(row.spec.path, row.spec.workload))
		if err != nil {
			if err := e.fail(ctx, row, err); err != nil {
				return err
			}
			continue
		}
		s.row = row
		all = append(all, s)
		if e.recorders[s.lab] == nil {
			e.recorders[s.lab] = &evidence.Recorder{Lab: s.lab}
			labs = append(labs, s.lab)
		}
	}
	errs := make([]error, len(labs))
	together(len(labs), builders, func(i int) { errs[i] = e.recorders[labs[i]].Start() })
	for _, s := range all {
		if err := errs[slices.Index(labs, s.lab)]; err == nil {
			recorded = append(recorded, s)
		} else if err := e.fail(ctx, s.row, err); err != nil {
			return err
		}
	}
	for i, err := range e.run.testbed.connect(ctx, recorded) {
		s := recorded[i]
		if err == nil {
			s.row.setVariant(s.lab)
			e.run.options.setTurn(s.row)
		}
		if err == nil && s.row.spec.workload.Name == load.TCPStream {
			_, err = s.client.Slices(ctx, []load.Slice{{Conn: s.connection.ID, Lead: warmTime, Duration: s.row.slice}})
		}
		if err == nil {
			e.connections = append(e.connections, s)
		} else if err := e.fail(ctx, s.row, err); err != nil {
			return err
		}
	}
	return nil
}

func (e *epoch) close(ctx context.Context) error {
	type finished struct {
		*connection
		measurement load.Measurement
		err         error
	}
	all := make([]finished, len(e.connections))
	together(len(all), atOnce, func(i int) {
		s := e.connections[i]
		m, err := s.client.Shut(ctx, s.connection.ID)
		all[i] = finished{s, m, err}
	})
	var shut []finished
	for _, f := range all {
		if f.err == nil {
			shut = append(shut, f)
		} else if err := e.fail(ctx, f.row, f.err); err != nil {
			return err
		}
	}
	labs := groupBy(shut, func(f finished) *lab.Lab { return f.lab })
	seen, errs := make([][]result.Evidence, len(labs)), make([]error, len(labs))
	together(len(labs), builders, func(at int) {
		var flows []evidence.Flow
		for _, f := range labs[at] {
			w := f.row.spec.workload
			flows = append(flows, evidence.Flow{Path: f.row.spec.path.Path, Measurement: f.measurement,
				MayLoseAll: w.Rate > proofRate})
		}
		seen[at], errs[at] = e.recorders[labs[at][0].lab].Stop(flows...)
	})
	for at, done := range labs {
		if err := errs[at]; err != nil {
			return fmt.Errorf("evidence of %s: %w", done[0].row.spec.name(), err)
		}
		for i, f := range done {
			f.row.addEpoch(f.measurement, seen[at][i], len(done) > 1)
			if err := evidence.Contradiction(seen[at][i]); err != nil {
				if err := e.fail(ctx, f.row, err); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

const shutTimeout = 2 * time.Second // limits the end of a connection after an error
