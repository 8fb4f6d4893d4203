// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"mustang/internal/bench/evidence"
	"mustang/internal/bench/stats"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/result"
)

// interleave measures rows of a suite in instances. Each instance builds the labs, starts
// the agents and opens the connections anew, since each of them is a draw of chance: the
// placement of code and memory, the buckets of hash tables. In an instance, rows of one
// workload take turns of a millisecond or a few.
func (r *run) interleave(ctx context.Context, rows []*measuredRow, started time.Time) error {
	b := newBudget(r.options, started, r.built, len(byWorkload(rows)))
	for instance := 0; ; instance++ {
		if err := r.instance(ctx, rows, instance, b); err != nil {
			return err
		}
		widest := math.Inf(1)
		if r.options.Until > 0 {
			widest = r.widest(rows)
		}
		if pending(rows) > 0 && !b.over(widest) && !r.full(rows) {
			if !b.quarter() {
				continue
			}
			r.soFar(rows, b.done)
			if b.done < lookInstances || r.look(rows, b) {
				continue
			}
		}
		r.noteDisturbances(rows[0].row.Suite)
		if note := r.compared.unrepeated(rows[0].row.Suite); note != "" {
			r.head.Notes = append(r.head.Notes, note)
		}
		if o := r.options; o.Until > 0 && widest > o.Until {
			is := fmt.Sprintf("±%.2g %%", widest*100)
			if math.IsInf(widest, 1) {
				is = "unknown"
			}
			r.head.Notes = append(r.head.Notes, fmt.Sprintf("Suite %s: after %v the widest interval of a ratio is %s, not ±%.2g %%.",
				rows[0].row.Suite, o.Time, is, o.Until*100))
		}
		return nil
	}
}

// widest returns the half-width of the widest interval among the comparisons of a suite,
// as a share; +Inf if there are none. Comparisons that only order rows do not count.
func (r *run) widest(rows []*measuredRow) float64 {
	widths := []float64{}
	for _, c := range r.file().Run.Comparisons {
		if c.Suite == rows[0].row.Suite && c.Asks != result.AsksRank {
			widths = append(widths, halfWidth(c))
		}
	}
	if len(widths) == 0 { // the rows of each pair have failed
		return math.Inf(1)
	}
	return slices.Max(widths)
}

// halfWidth returns how far the interval of a ratio extends from it, as a share; +Inf
// without an interval.
func halfWidth(c result.Comparison) float64 {
	if c.CI95 == nil {
		return math.Inf(1)
	}
	return stats.Estimate{Value: c.Ratio, Interval: c.CI95}.HalfWidth()
}

// instance measures rows once with labs, agents and connections of their own.
func (r *run) instance(ctx context.Context, rows []*measuredRow, instance int, b *budget) error {
	b.begin()
	if err := r.testbed.build(ctx, labsOf(rows)); err != nil {
		return err
	}
	if r.options.Cluster == nil {
		if err := r.disturbed.watch(); err != nil {
			return err
		}
	}
	if instance > 0 { // the labs of the first one stand already
		b.building.add(time.Since(b.begun))
	}
	groups := byWorkload(rows)
	for i, group := range groups {
		var others []string
		for _, other := range groups[i+1:] {
			others = append(others, other[0].spec.workload.String())
		}
		part := share{b, group[0].spec.workload.String(), others}
		if err := r.epoch(ctx, group, instance, part); err != nil {
			return err
		}
	}
	last := time.Now()
	err := errors.Join(r.testbed.renew(), r.write())
	b.end(last)
	return err
}

func labsOf(rows []*measuredRow) []lab.Options {
	var labs []lab.Options
	for _, row := range rows {
		if !row.done() && !row.answered {
			labs = append(labs, row.spec.path.Lab)
		}
	}
	return labs
}

// byWorkload groups the rows that take further turns by their workload.
func byWorkload(rows []*measuredRow) [][]*measuredRow {
	rows = slices.DeleteFunc(unfinished(rows), func(row *measuredRow) bool { return row.answered })
	return groupBy(rows, func(row *measuredRow) string { return row.spec.workload.String() })
}

// epoch measures rows of one workload while their connections stand open.
func (r *run) epoch(ctx context.Context, rows []*measuredRow, instance int, b share) (err error) {
	e := epoch{run: r, recorders: map[*lab.Lab]*evidence.Recorder{}}
	defer func() { err = errors.Join(err, e.end()) }()
	begun := time.Now()
	if err := e.open(ctx, rows); err != nil {
		return err
	}
	for _, s := range e.connections {
		r.options.setTurn(s.row)
	}
	if err := e.warmUp(ctx); err != nil {
		return err
	}
	b.opening.add(time.Since(begun))
	if err := e.carry(ctx, instance, b.epoch()); err != nil {
		if ctx.Err() != nil { // the samples so far count, if their evidence fits
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutTimeout)
			defer cancel()
			err = errors.Join(err, e.close(late))
		}
		return err
	}
	begun = time.Now()
	defer func() { b.shutting.add(time.Since(begun)) }()
	return e.close(ctx)
}

// carry takes the rounds of an instance, and in the first one of a run that is not quick
// the time of programs.
func (e *epoch) carry(ctx context.Context, instance int, p *epochBudget) error {
	if err := e.rounds(ctx, instance, p); err != nil || instance > 0 || e.run.options.Quick {
		return err
	}
	return e.programTimes(ctx)
}

// epoch is the time in which the connections of some rows stand open.
type epoch struct {
	run         *run
	connections []*connection
	recorders   map[*lab.Lab]*evidence.Recorder
	failed      []*measuredRow
	// taken and repeated are counts of rounds, next is the number of the first one to come,
	// and again those of the ones to repeat.
	taken, repeated, next int
	again                 []int
}

type connection struct {
	row        *measuredRow
	lab        *lab.Lab
	client     *load.Agent
	spec       load.Spec // of its load
	connection load.Conn
}

func (e *epoch) open(ctx context.Context, rows []*measuredRow) error {
	var prepared []*connection
	for _, row := range rows {
		s, err := e.run.testbed.prepare(ctx, row.spec.path, e.run.options.spec(row.spec.path, row.spec.workload))
		if err == nil {
			s.row = row
			prepared = append(prepared, s)
		} else if err := e.fail(ctx, row, err); err != nil {
			return err
		}
	}
	prepared, err := e.record(ctx, prepared)
	if err != nil {
		return err
	}
	errs := e.run.testbed.connect(ctx, prepared)
	for i, s := range prepared {
		if errs[i] == nil {
			s.row.setVariant(s.lab)
			e.connections = append(e.connections, s)
		}
	}
	for i, s := range prepared {
		if errs[i] == nil {
			continue
		}
		if err := e.fail(ctx, s.row, errs[i]); err != nil {
			return err
		}
	}
	return nil
}

// record starts the recorders of the labs of rows, several at once, and returns the rows whose recorder runs. The others have failed.
func (e *epoch) record(ctx context.Context, all []*connection) (recorded []*connection, err error) {
	for _, s := range all {
		e.recorders[s.lab] = &evidence.Recorder{Lab: s.lab}
	}
	labs := slices.Collect(maps.Keys(e.recorders))
	errs := make([]error, len(labs))
	together(len(labs), builders, func(i int) { errs[i] = e.recorders[labs[i]].Start() })
	for _, s := range all {
		if err := errs[slices.Index(labs, s.lab)]; err == nil {
			recorded = append(recorded, s)
		} else if err := e.fail(ctx, s.row, err); err != nil {
			return nil, err
		}
	}
	return recorded, nil
}

// fail marks a row as failed, unless ctx has ended. Its agents go on, since other rows may
// have connections on them; the end of the epoch resets them.
func (e *epoch) fail(ctx context.Context, row *measuredRow, err error) error {
	if ctx.Err() != nil {
		return err
	}
	e.failed = append(e.failed, row)
	e.run.exclude(row, err)
	return nil
}

// drop fails the row of a connection, which takes no further turns.
func (e *epoch) drop(ctx context.Context, s *connection, err error) error {
	e.connections = slices.DeleteFunc(e.connections, func(o *connection) bool { return o == s })
	return e.fail(ctx, s.row, err)
}

// finished is a row whose connection is shut.
type finished struct {
	*connection
	measurement load.Measurement
	err         error
}

func (e *epoch) shut(ctx context.Context) []finished {
	all := make([]finished, len(e.connections))
	together(len(all), atOnce, func(i int) {
		s := e.connections[i]
		m, err := s.client.Shut(ctx, s.connection.ID)
		all[i] = finished{s, m, err}
	})
	e.connections = nil
	if ctx.Err() != nil {
		for _, f := range all {
			if f.err != nil {
				e.connections = append(e.connections, f.connection)
			}
		}
	}
	return all
}

// close closes the connections, and checks the evidence of all rounds of each row.
func (e *epoch) close(ctx context.Context) error {
	byLab := map[*lab.Lab][]finished{}
	for _, f := range e.shut(ctx) {
		if f.err == nil {
			byLab[f.lab] = append(byLab[f.lab], f)
		} else if err := e.fail(ctx, f.row, f.err); err != nil {
			return err
		}
	}
	labs := slices.Collect(maps.Keys(byLab))
	seenOf, errs := make([][]result.Evidence, len(labs)), make([]error, len(labs))
	together(len(labs), builders, func(at int) {
		var flows []evidence.Flow
		for _, f := range byLab[labs[at]] {
			w := f.row.spec.workload
			flows = append(flows, evidence.Flow{Path: f.row.spec.path.Path, Measurement: f.measurement, MayLoseAll: w.Rate > proofRate})
		}
		seenOf[at], errs[at] = e.recorders[labs[at]].Stop(flows...)
	})
	for at, l := range labs {
		done, seen := byLab[l], seenOf[at]
		if err := errs[at]; err != nil {
			return fmt.Errorf("evidence of %s: %w", done[0].row.spec.name(), err)
		}
		for i, f := range done {
			f.row.addEpoch(f.measurement, seen[i], len(done) > 1)
			if err := evidence.Contradiction(seen[i]); err != nil {
				if err := e.fail(ctx, f.row, err); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// end closes the connections that are still open after an error, and resets the agents of
// the rows that have failed.
func (e *epoch) end() error {
	var errs []error
	for _, s := range e.connections {
		ctx, cancel := context.WithTimeout(context.Background(), shutTimeout)
		if _, err := s.client.Shut(ctx, s.connection.ID); err != nil && s.client.Err() == nil {
			errs = append(errs, err)
		}
		cancel()
	}
	for _, row := range e.failed {
		errs = append(errs, e.run.testbed.reset(row.spec.path))
	}
	return errors.Join(errs...)
}

// shutTimeout limits the end of a connection after an error.
const shutTimeout = 2 * time.Second
