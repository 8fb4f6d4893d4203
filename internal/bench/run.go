// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"mustang/internal/result"
)

// ResultsName is the name of the result file in a run's directory.
const ResultsName = "results.json"

// ErrInterrupted says that the run was stopped before its end. What was measured
// until then is in the result.
var ErrInterrupted = errors.New("interrupted")

// proofDuration is the measured time of a sample that only proves its path, and
// proofRate what it offers at most of datagrams, in bits per second: any path
// carries that.
const (
	proofDuration = 10 * time.Millisecond
	proofRate     = 20e6
)

// overhead is what a sample takes beside its duration and warm-up, for the
// estimate of the time left.
const overhead = 25 * time.Millisecond

// Run runs a suite and returns what it measured; a row that could not be
// measured is in it with the reason. The result file is written after each
// sample, or after each network where instructions are counted. When ctx ends,
// Run returns what is done with [ErrInterrupted].
func Run(ctx context.Context, o Options) (file result.File, err error) {
	o, err = o.withDefaults()
	if err != nil {
		return file, err
	}
	cells, err := o.selected()
	if err != nil {
		return file, err
	}
	if o.counts() {
		if err := checkCounting(); err != nil {
			return file, fmt.Errorf("count %s: %w", o.Count, err)
		}
	}
	if err := os.MkdirAll(o.Out, 0o700); err != nil {
		return file, fmt.Errorf("output directory: %w", err)
	}
	s, err := newStand(o)
	if err != nil {
		return file, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if o.Peer != nil {
		if s.peer, err = s.connect(ctx, *o.Peer); err != nil {
			return file, err
		}
	}
	r := &run{options: o, stand: s, path: filepath.Join(o.Out, ResultsName), compared: comparisons{}}
	for _, c := range cells {
		r.rows = append(r.rows, newTally(c))
	}
	r.head, err = describeRun(o, s.cpus)
	if err != nil {
		return file, err
	}
	r.head.Offloads = map[string]string{}
	if o.Peer != nil {
		r.head.Notes = append(r.head.Notes, o.Peer.notes()...)
	}
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
	// unwritten is why the result could not be written; no other try is made then.
	unwritten error
	// compared are the comparisons, each as of when one of its rows last changed.
	compared comparisons
}

// measure sets up what the rows need, and measures them in rounds.
func (r *run) measure(ctx context.Context) error {
	o := r.options
	o.Progress.Note(o.announce(len(r.rows)))
	groups := r.groups()
	for i, rows := range groups {
		switch {
		case o.counts():
			o.Progress.Note(fmt.Sprintf("network %d of %d: %s", i+1, len(groups), describeGroup(rows)))
		case len(groups) > 1:
			o.Progress.Note(fmt.Sprintf("suite %d of %d, %s: building the networks and checking each path", i+1, len(groups), rows[0].row.Suite))
		default:
			o.Progress.Note("building the networks and checking each path")
		}
		if err := r.prove(ctx, rows); err != nil {
			return r.stopped(ctx, err)
		}
		if err := r.stand.settle(); err != nil {
			return err
		}
		if err := r.rounds(ctx, rows); err != nil {
			return r.stopped(ctx, err)
		}
		if len(groups) > 1 {
			if err := errors.Join(r.write(), r.stand.release(rows)); err != nil {
				return err
			}
		}
	}
	r.head.Finished = time.Now().UTC()
	return nil
}

// announce says what is going to be measured.
func (o Options) announce(rows int) string {
	text := fmt.Sprintf("%s: %d rows, %d rounds", o.name(), rows, o.Rounds)
	if o.counts() {
		return fmt.Sprintf("%s of %d packets or %d transactions each, counting instructions", text, countPackets, countTransactions)
	}
	if !o.timed() {
		return fmt.Sprintf("%s, seed %d", text, o.Seed)
	}
	return fmt.Sprintf("%s of %v each, seed %d", text, o.Duration, o.Seed)
}

// rounds measures rows in rounds.
func (r *run) rounds(ctx context.Context, rows []*tally) error {
	o := r.options
	if !o.counts() {
		o.Progress.Start(live(rows)*o.Rounds, o.each(rows))
	}
	for round := range o.Rounds {
		for _, i := range order(o.Seed, round, len(rows)) {
			row := rows[i]
			if row.over() {
				continue
			}
			o.Progress.Sample(label(row.row))
			if err := r.sample(ctx, row, round); err != nil {
				return err
			}
			o.Progress.Done()
		}
		if !o.counts() {
			o.Progress.Round(round+1, o.Rounds)
		}
	}
	return nil
}

// prove builds the labs of rows and sends a little traffic down each path, so
// that no row starts cold, and a path that is not what it claims fails at once.
func (r *run) prove(ctx context.Context, rows []*tally) error {
	for _, row := range rows {
		if err := r.options.missing(row.cell.path); err != nil {
			row.skip(err)
			continue
		}
		if _, err := r.stand.take(ctx, row.cell, r.options.proof(row.cell)); err != nil {
			if ctx.Err() != nil {
				return err
			}
			if errors.Is(err, errors.ErrUnsupported) { // by this kernel
				row.skip(err)
				continue
			}
			row.fail(err)
			r.options.Progress.Note(fmt.Sprintf("%s: failed: %s", label(row.row), row.row.Reason))
			if err := r.stand.drop(row.cell.path); err != nil {
				return err
			}
		}
	}
	for _, row := range rows {
		row.remark(r.stand.remarks[row.cell.path.lab])
	}
	if err := r.stand.offloads(r.head.Offloads); err != nil || r.options.counts() {
		return err
	}
	return r.write()
}

// sample measures a row once. A row that fails is out of the rounds that follow;
// the run goes on.
func (r *run) sample(ctx context.Context, row *tally, round int) error {
	s, err := r.stand.take(ctx, row.cell, r.options.spec(row.cell))
	if err == nil {
		s.figure, err = r.options.figure(s.measurement)
	}
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		row.evidence(s.evidence)
		row.fail(fmt.Errorf("round %d: %w", round+1, err))
		r.options.Progress.Note(fmt.Sprintf("%s: failed: %s", label(row.row), row.row.Reason))
		if err := r.stand.drop(row.cell.path); err != nil {
			return err
		}
		return r.write()
	}
	row.add(s, round)
	if used := s.measurement.ClientCongestion; used != "" {
		r.head.Settings["tcp_congestion_control_used"] = used
	}
	if r.options.counts() {
		return nil // a row takes a moment, and an emulated machine long to write a file
	}
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
func live(rows []*tally) int {
	n := 0
	for _, row := range rows {
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
	measured := map[result.Key]*tally{}
	for _, row := range r.rows {
		if finished, ok := row.result(); ok {
			f.Rows = append(f.Rows, finished)
			measured[finished.Key()] = row
		}
	}
	f.Run.Comparisons = r.compared.all(r.options, measured)
	return f
}

// write writes the result as far as it is known. After an error, which ends the
// run, it does nothing: the same would be said twice.
func (r *run) write() error {
	if r.unwritten != nil {
		return nil
	}
	r.unwritten = result.Write(r.path, r.file())
	return r.unwritten
}
