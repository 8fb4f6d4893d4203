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

// interleave measures rows of a suite in instances. Each instance builds the labs, starts
// the agents and opens the connections anew, since each of them is a draw of chance: the
// placement of code and memory, the buckets of hash tables. In an instance, rows of one
// workload take turns of a millisecond or a few.
func (r *run) interleave(ctx context.Context, rows []*measuredRow, started time.Time) error {
	b, suite, o := newBudget(r.options, started, r.built, len(byWorkload(rows))), rows[0].row.Suite, r.options
	widest := math.Inf(1)
	for open := true; open; {
		if err := r.instance(ctx, rows, b); err != nil {
			return err
		}
		if o.Until > 0 {
			widest = widestOf(r.file().Run.Comparisons, suite)
		}
		open = pending(rows) > 0 && !b.over(widest) && !r.full(rows)
		if open && b.quarter() {
			if widths := r.look(rows, b.done); b.done >= lookInstances {
				b.weights = weigh(widths)
			}
		}
	}
	r.noteDisturbances(suite)
	if note := unrepeated(r.file().Run.Comparisons, suite); note != "" {
		r.note("%s", note)
	}
	if o.Until > 0 && widest > o.Until {
		is := fmt.Sprintf("±%.2g %%", widest*100)
		if math.IsInf(widest, 1) {
			is = "unknown"
		}
		r.note("Suite %s: after %v the widest interval of a ratio is %s, not ±%.2g %%.", suite, o.Time, is, o.Until*100)
	}
	return nil
}

// widestOf returns the half-width of the widest interval among the comparisons of a suite, as a share; +Inf if one has
// no interval, or there are none. Comparisons that only order rows do not count.
func widestOf(all []result.Comparison, suite string) float64 {
	widest := 0.0
	for _, c := range all {
		if c.Suite == suite && c.Asks != result.AsksRank {
			widest = max(widest, stats.Estimate{Value: c.Ratio, Interval: c.CI95}.HalfWidth())
		}
	}
	if widest == 0 { // the rows of each pair have failed
		return math.Inf(1)
	}
	return widest
}

// instance measures rows once with labs, agents and connections of their own.
func (r *run) instance(ctx context.Context, rows []*measuredRow, b *budget) error {
	groups := byWorkload(rows)
	var workloads []string
	for _, group := range groups {
		workloads = append(workloads, group[0].spec.workload.String())
	}
	b.begin(workloads...)
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
	var labs []lab.Options
	for _, row := range unfinished(rows) {
		labs = append(labs, row.spec.path.Lab)
	}
	return labs
}

// byWorkload groups the rows that take further turns by their workload.
func byWorkload(rows []*measuredRow) [][]*measuredRow {
	return groupBy(unfinished(rows), func(row *measuredRow) string { return row.spec.workload.String() })
}

// epoch is the time in which the connections of some rows, which have one workload, stay open.
type epoch struct {
	run         *run
	instance    int
	connections []*connection
	recorders   map[*lab.Lab]*evidence.Recorder
	failed      []*measuredRow
	// taken and repeated count rounds. queue has the numbers of the rounds to come, and next follows them.
	taken, repeated, next int
	queue                 []int
}

type connection struct {
	row         *measuredRow
	lab         *lab.Lab
	client      *load.Agent
	spec        load.Spec
	connection  load.Conn
	measurement load.Measurement // of its life
}

// epoch measures rows of one workload while their connections stay open, and in the first instance of a run that is not
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
	if err != nil {
		if ctx.Err() == nil {
			return err
		}
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutTimeout)
		defer cancel()
		ctx = late
	}
	return errors.Join(err, e.close(ctx))
}

// each calls do for the connections, several at once, and keeps those whose row does not fail. The error is that of
// ctx.
func (e *epoch) each(ctx context.Context, limit int, do func(*connection) error) error {
	all := slices.Clone(e.connections)
	errs := make([]error, len(all))
	together(len(all), limit, func(i int) { errs[i] = do(all[i]) })
	return e.failThose(ctx, all, errs)
}

func (e *epoch) failThose(ctx context.Context, all []*connection, errs []error) error {
	for i, c := range all {
		if errs[i] != nil {
			if err := e.fail(ctx, c.row, errs[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// open opens the connections of rows. TCP streams carry load until the windows of both ends have grown.
func (e *epoch) open(ctx context.Context, rows []*measuredRow) error {
	r := e.run
	for _, row := range rows {
		c, err := r.testbed.prepare(ctx, row.spec.path, r.options.spec(row.spec.path, row.spec.workload))
		if err != nil {
			if err := e.fail(ctx, row, err); err != nil {
				return err
			}
			continue
		}
		c.row = row
		e.connections = append(e.connections, c)
	}
	labs := groupBy(e.connections, func(c *connection) *lab.Lab { return c.lab })
	errs := make([]error, len(labs))
	for _, of := range labs {
		e.recorders[of[0].lab] = &evidence.Recorder{Lab: of[0].lab}
	}
	together(len(labs), builders, func(i int) { errs[i] = e.recorders[labs[i][0].lab].Start() })
	for i, of := range labs {
		if err := e.failThose(ctx, of, slices.Repeat(errs[i:i+1], len(of))); err != nil {
			return err
		}
	}
	all := slices.Clone(e.connections)
	if err := e.failThose(ctx, all, r.testbed.connect(ctx, all)); err != nil {
		return err
	}
	return e.each(ctx, 1, func(c *connection) error {
		c.row.setVariant(c.lab)
		r.options.setTurn(c.row)
		if c.row.spec.workload.Name != load.TCPStream {
			return nil
		}
		_, err := c.client.Slices(ctx, []load.Slice{{Conn: c.connection.ID, Lead: warmTime, Duration: c.row.slice}})
		return err
	})
}

// fail marks a row as failed, unless ctx has ended. Its agents go on, since other rows may
// have connections on them; the end of the epoch resets them.
func (e *epoch) fail(ctx context.Context, row *measuredRow, err error) error {
	if ctx.Err() != nil {
		return err
	}
	e.connections = slices.DeleteFunc(e.connections, func(c *connection) bool { return c.row == row })
	e.failed = append(e.failed, row)
	e.run.exclude(row, err)
	return nil
}

// close closes the connections, and checks the evidence of all rounds of each row.
func (e *epoch) close(ctx context.Context) error {
	err := e.each(ctx, atOnce, func(c *connection) (err error) {
		c.measurement, err = c.client.Shut(ctx, c.connection.ID)
		return err
	})
	if err != nil {
		return err
	}
	labs := groupBy(e.connections, func(c *connection) *lab.Lab { return c.lab })
	seen, errs := make([][]result.Evidence, len(labs)), make([]error, len(labs))
	together(len(labs), builders, func(at int) {
		var flows []evidence.Flow
		for _, c := range labs[at] {
			flows = append(flows, evidence.Flow{Path: c.row.spec.path.Path, Measurement: c.measurement,
				MayLoseAll: c.row.spec.workload.Rate > proofRate})
		}
		seen[at], errs[at] = e.recorders[labs[at][0].lab].Stop(flows...)
	})
	for at, of := range labs {
		if err := errs[at]; err != nil {
			return fmt.Errorf("evidence of %s: %w", of[0].row.spec.name(), err)
		}
		contradictions := make([]error, len(of))
		for i, c := range of {
			c.row.addEpoch(c.measurement, seen[at][i], len(of) > 1)
			contradictions[i] = evidence.Contradiction(seen[at][i])
		}
		if err := e.failThose(ctx, of, contradictions); err != nil {
			return err
		}
	}
	return nil
}

// shutTimeout limits the end of a connection after an error.
const shutTimeout = 2 * time.Second
