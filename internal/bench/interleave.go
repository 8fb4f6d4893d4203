// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"mustang/internal/bench/evidence"
	"mustang/internal/bench/stats"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/result"
)

// roundsPerConnection is the number of rounds of each row before its connection, its
// processes and its lab are replaced by new ones. It is small: labs are rebuilt in
// 0.1 s, and differ more from each other than rounds do.
const roundsPerConnection = 3

// minInstances is the least number of instances of a timed run, as its intervals rest on
// the differences between them.
const minInstances = 3

// minUntil is the least number of instances before a run ends because its intervals are
// narrow: a look at the first few would stop at those that are narrow by chance.
const minUntil = 10

// interleave measures rows of a suite in instances. Each instance builds the labs, starts
// the agents and opens the connections anew, since each of them is a draw of chance: the
// placement of code and memory, the buckets of hash tables. In an instance, rows of one
// workload take turns of a few milliseconds.
func (r *run) interleave(ctx context.Context, rows []*measuredRow) error {
	o := r.options
	begun := time.Now()
	for instance, done := 0, 0; ; instance++ {
		rounds := roundsPerConnection
		if o.Rounds > 0 {
			rounds = min(rounds, o.Rounds-done)
		}
		start := time.Now()
		if err := r.instance(ctx, rows, instance, rounds); err != nil {
			return err
		}
		done += rounds
		each := time.Since(start)
		switch left := o.Time - time.Since(begun); {
		case pending(rows) == 0, o.Rounds > 0 && done >= o.Rounds:
			return nil
		case o.Until > 0 && instance+1 >= minUntil && r.widest(rows) <= o.Until:
			return nil
		case o.Rounds == 0 && instance+1 >= minInstances && left < each:
			if widest := r.widest(rows); o.Until > 0 && widest > o.Until {
				r.head.Notes = append(r.head.Notes, fmt.Sprintf("Suite %s: after %v the widest interval of a ratio is ±%.2g %%, not ±%.2g %%.",
					rows[0].row.Suite, o.Time, widest*100, o.Until*100))
			}
			return nil
		case instance == 0:
			r.showProgress(rows, each, left)
		}
	}
}

// widest returns the half-width of the widest interval among the comparisons of a suite,
// as a share. Comparisons that only order rows do not count.
func (r *run) widest(rows []*measuredRow) float64 {
	widest := 0.0
	for _, c := range r.file().Run.Comparisons {
		if c.Suite == rows[0].row.Suite && !c.Ranking {
			widest = max(widest, halfWidth(c))
		}
	}
	return widest
}

// halfWidth returns how far the interval of a ratio extends from it, as a share; +Inf
// without an interval.
func halfWidth(c result.Comparison) float64 {
	if c.CI95 == nil {
		return math.Inf(1)
	}
	return stats.Estimate{Value: c.Ratio, Interval: c.CI95}.HalfWidth()
}

// showProgress starts the display of the time left, after the first instance has shown
// how long one takes.
func (r *run) showProgress(rows []*measuredRow, each, left time.Duration) {
	instances := max(int(left/each), minInstances-1)
	if r.options.Rounds > 0 {
		instances = (r.options.Rounds - 1) / roundsPerConnection
	}
	samples := instances * roundsPerConnection * pending(rows)
	if samples > 0 {
		r.options.Progress.Start(samples, time.Duration(instances)*each/time.Duration(samples))
	}
}

// instance measures rows once with labs, agents and connections of their own.
func (r *run) instance(ctx context.Context, rows []*measuredRow, instance, rounds int) error {
	for _, group := range byWorkload(rows) {
		if err := r.epoch(ctx, group, instance, rounds); err != nil {
			return err
		}
		if err := r.write(); err != nil {
			return err
		}
	}
	return r.testbed.renew()
}

// byWorkload groups the rows that take further samples by their workload.
func byWorkload(rows []*measuredRow) [][]*measuredRow {
	index := map[string]int{}
	var groups [][]*measuredRow
	for _, row := range rows {
		if row.done() {
			continue
		}
		name := row.spec.workload.String()
		i, ok := index[name]
		if !ok {
			i, index[name] = len(groups), len(groups)
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], row)
	}
	return groups
}

// epoch measures rows of one workload while their connections stand open.
func (r *run) epoch(ctx context.Context, rows []*measuredRow, instance, rounds int) (err error) {
	e := epoch{run: r, recorders: map[*lab.Lab]*evidence.Recorder{}}
	defer func() { err = errors.Join(err, e.end()) }()
	for _, row := range rows {
		if err := e.open(ctx, row); err != nil {
			return err
		}
	}
	for round := range rounds {
		if err := e.round(ctx, instance, round); err != nil {
			if ctx.Err() != nil { // the samples so far count, if their evidence fits
				late, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutTimeout)
				defer cancel()
				err = errors.Join(err, e.close(late))
			}
			return err
		}
	}
	return e.close(ctx)
}

// epoch is the time in which the connections of some rows stand open.
type epoch struct {
	run       *run
	standing  []*standing
	recorders map[*lab.Lab]*evidence.Recorder
	failed    []*measuredRow
}

// standing is a row with an open connection.
type standing struct {
	row        *measuredRow
	lab        *lab.Lab
	client     *load.Agent
	connection load.Conn
}

// open opens the connection of a row. If that fails, the row has failed.
func (e *epoch) open(ctx context.Context, row *measuredRow) error {
	s, err := e.run.testbed.open(ctx, row.spec.path, e.run.options.spec(row.spec.path, row.spec.workload), e.recorders)
	if err != nil {
		return e.fail(ctx, row, err)
	}
	s.row = row
	e.standing = append(e.standing, s)
	return nil
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

// close closes the connections, and checks the evidence of all rounds of each row.
func (e *epoch) close(ctx context.Context) error {
	type finished struct {
		*standing
		measurement load.Measurement
	}
	byLab := map[*lab.Lab][]finished{}
	for len(e.standing) > 0 {
		s := e.standing[0]
		e.standing = e.standing[1:]
		m, err := s.client.Shut(ctx, s.connection.ID)
		if err != nil {
			if err := e.fail(ctx, s.row, err); err != nil {
				return err
			}
			continue
		}
		byLab[s.lab] = append(byLab[s.lab], finished{s, m})
	}
	for l, done := range byLab {
		var flows []evidence.Flow
		for _, f := range done {
			w := f.row.spec.workload
			flows = append(flows, evidence.Flow{Path: f.row.spec.path.Path, Measurement: f.measurement, MayLoseAll: w.Rate > proofRate})
		}
		seen, err := e.recorders[l].Stop(flows...)
		if err != nil {
			return fmt.Errorf("evidence of %s: %w", done[0].row.spec.name(), err)
		}
		for i, f := range done {
			f.row.addEpoch(l, f.measurement, seen[i], len(done) > 1)
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
	for _, s := range e.standing {
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
