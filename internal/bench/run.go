// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"mustang/internal/podlink"
	"mustang/internal/result"
)

// ResultsName is the name of the result file in a run's directory.
const ResultsName = "results.json"

// ErrInterrupted says that the run was stopped before its end. What was measured
// until then is in the result.
var ErrInterrupted = errors.New("interrupted")

// overhead is what a sample takes beside its duration and warm-up, for the
// estimate of the time left.
const overhead = 25 * time.Millisecond

// Run runs a suite and returns what it measured; a row that could not be
// measured is in it with the reason. The result file is written after each
// sample. When ctx ends, Run returns what is done with [ErrInterrupted].
func Run(ctx context.Context, o Options) (file result.File, err error) {
	o, err = o.withDefaults()
	if err != nil {
		return file, err
	}
	cells, err := o.selected()
	if err != nil {
		return file, err
	}
	if err := os.MkdirAll(o.Out, 0o700); err != nil {
		return file, fmt.Errorf("output directory: %w", err)
	}
	s, err := newStand(o)
	if err != nil {
		return file, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	r := &run{options: o, stand: s, path: filepath.Join(o.Out, ResultsName)}
	for _, c := range cells {
		r.rows = append(r.rows, newTally(c, o.Suite.Name))
	}
	r.head, err = describeRun(o, s.cpus)
	if err != nil {
		return file, err
	}
	r.head.Offloads = map[string]string{}
	defer o.Progress.Finish()
	if err := r.measure(ctx); err != nil {
		return r.file(), err
	}
	return r.file(), r.write()
}

// run is the state of a run.
type run struct {
	options Options
	stand   *stand
	head    result.Run
	rows    []*tally
	path    string
}

// measure sets up what the rows need, and measures them in rounds.
func (r *run) measure(ctx context.Context) error {
	o := r.options
	o.Progress.Note(fmt.Sprintf("%s: %d rows, %d rounds of %v each, seed %d", o.Suite.Name, len(r.rows), o.Rounds, o.Duration, o.Seed))
	if err := r.prove(ctx); err != nil {
		return r.stopped(ctx, err)
	}
	o.Progress.Start(r.live()*o.Rounds, o.Duration+o.Warmup+overhead)
	for round := range o.Rounds {
		for _, i := range order(o.Seed, round, len(r.rows)) {
			row := r.rows[i]
			if row.over() {
				continue
			}
			o.Progress.Sample(label(row.row))
			if err := r.sample(ctx, row, round); err != nil {
				return r.stopped(ctx, err)
			}
			o.Progress.Done()
		}
		o.Progress.Round(round+1, o.Rounds)
	}
	r.head.Finished = time.Now().UTC()
	return nil
}

// prove builds the labs and sends a little traffic down each path, so that no
// row starts cold, and a path that is not what it claims fails at once.
func (r *run) prove(ctx context.Context) error {
	r.options.Progress.Note("building the networks and checking each path")
	brief := r.options
	brief.Duration, brief.Warmup = 10*time.Millisecond, 5*time.Millisecond
	for _, row := range r.rows {
		if mode, err := podlink.Lookup(row.cell.path.lab.Link); err == nil {
			if err := mode.Probe(); err != nil {
				row.skip(err)
				continue
			}
		}
		if _, err := r.stand.take(ctx, row.cell, brief); err != nil {
			if ctx.Err() != nil {
				return err
			}
			row.fail(err)
			r.options.Progress.Note(fmt.Sprintf("%s: failed: %v", label(row.row), err))
			if err := r.stand.drop(row.cell.path); err != nil {
				return err
			}
		}
	}
	if err := r.stand.offloads(r.head.Offloads); err != nil {
		return err
	}
	return r.write()
}

// sample measures a row once. A row that fails is out of the rounds that follow;
// the run goes on.
func (r *run) sample(ctx context.Context, row *tally, round int) error {
	s, err := r.stand.take(ctx, row.cell, r.options)
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		row.evidence(s.evidence)
		row.fail(fmt.Errorf("round %d: %w", round+1, err))
		r.options.Progress.Note(fmt.Sprintf("%s: failed: %v", label(row.row), err))
		if err := r.stand.drop(row.cell.path); err != nil {
			return err
		}
		return r.write()
	}
	row.add(s, round)
	r.head.Settings["tcp_congestion_control_used"] = s.measurement.ClientCongestion
	return r.write()
}

// stopped marks the run as interrupted if ctx ended, and writes what is done.
func (r *run) stopped(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return errors.Join(err, r.write())
	}
	r.head.Interrupted = true
	r.head.Finished = time.Now().UTC()
	return errors.Join(ErrInterrupted, r.write())
}

// live counts the rows that are still to be measured.
func (r *run) live() int {
	n := 0
	for _, row := range r.rows {
		if !row.over() {
			n++
		}
	}
	return n
}

// file returns the result as far as it is known. Rows that have no sample yet
// are left out.
func (r *run) file() result.File {
	f := result.File{Schema: result.Schema, Run: r.head, Rows: []result.Row{}}
	measured := map[string]*tally{}
	for _, row := range r.rows {
		if finished, ok := row.result(); ok {
			f.Rows = append(f.Rows, finished)
			measured[label(finished)] = row
		}
	}
	f.Run.Comparisons = compare(r.options, measured)
	return f
}

func (r *run) write() error { return result.Write(r.path, r.file()) }
