// SPDX-License-Identifier: Apache-2.0

// Package bench measures the rows of suites side by side. In each round every row runs once, in random order. Rows
// are compared by their ratios within rounds: a slow phase of the machine affects both. Package evidence proves with
// each sample that traffic took the path that its row claims; package suites holds the suites.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"mustang/internal/bench/evidence"
	"mustang/internal/bench/host"
	"mustang/internal/bench/suites"
	"mustang/internal/distro"
	"mustang/internal/load/clock"
	"mustang/internal/result"
)

// ErrInterrupted means that the run was stopped before its end. The result holds the samples until then.
var ErrInterrupted = errors.New("interrupted")

// Run runs suites and returns the result. Rows that could not be measured have the reason. The result file is written
// after each sample or instance, or where instructions are counted after each lab. If ctx ends, Run returns the result
// so far and [ErrInterrupted].
func Run(ctx context.Context, o Options) (file result.File, err error) {
	o, err = o.withDefaults()
	if err != nil {
		return file, err
	}
	specs, err := o.selected()
	if err != nil {
		return file, err
	}
	if o.counting() {
		if err := clock.CheckCounting(); err != nil {
			return file, fmt.Errorf("count %s: %w", o.Count, err)
		}
	}
	t, err := newTestbed(o)
	if err != nil {
		return file, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	if o.Peer != nil {
		if t.peer, err = connectPeer(ctx, *o.Peer, t.agentOptions(false)); err != nil {
			return file, err
		}
	}
	r := &run{options: o, testbed: t, compared: comparisons{}, rows: convert(specs, newRow)}
	if o.Cluster == nil { // else the load is elsewhere
		r.quota = host.FindQuota()
	}
	if r.head, err = describeRun(o, t.cpus); err != nil {
		return file, err
	}
	r.head.Started = o.Out.Started
	defer o.Progress.Finish()
	if err := r.measure(ctx); err != nil {
		return r.file(), err
	}
	return r.file(), r.write()
}

func describeRun(o Options, cpus host.CPUPair) (result.Run, error) {
	machine, err := host.Describe()
	warmup := o.Duration / 3
	if o.counting() || o.Peer == nil {
		warmup = 0
		if !o.anyEngine() {
			o.Duration = 0
		}
	}
	slice := cmp.Or(o.Slice, kernelSlice)
	if !o.anySliced() {
		slice, o.Time, o.Rounds = 0, 0, o.rounds()
	}
	if o.Rounds > 0 {
		o.Time = 0
	}
	head := result.Run{
		Suite:           o.suiteName(),
		Machine:         machine.Machine,
		Clock:           cmp.Or(o.Count, result.ClockTime),
		Kernel:          machine.Kernel,
		Versions:        machine.Versions,
		Settings:        machine.Settings,
		Offloads:        map[string]string{},
		Pinning:         map[string]int{"client": cpus.Client, "server": cpus.Server},
		Seed:            o.Seed,
		Rounds:          o.Rounds,
		TimeSeconds:     o.Time.Seconds(),
		SliceSeconds:    slice.Seconds(),
		DurationSeconds: o.Duration.Seconds(),
		WarmupSeconds:   warmup.Seconds(),
		Started:         time.Now().UTC(),
		Quick:           o.Quick,
	}
	if cpus == host.AnyCPU {
		head.Pinning = map[string]int{}
	}
	if o.Peer != nil {
		head.Notes = o.Peer.notes()
	}
	if o.Cluster != nil {
		o.Cluster.Describe(&head)
	}
	return head, err
}

type run struct {
	options   Options
	testbed   *testbed
	head      result.Run
	rows      []*measuredRow
	compared  comparisons
	built     time.Duration // how long the labs of the present suite took to build
	turned    int           // the number of rounds of slices so far
	disturbed disturbances  // counts the effects of other programs on the present suite
	quota     host.Quota
}

func (r *run) measure(ctx context.Context) error {
	o := r.options
	byID := groupBy(r.rows, func(row *measuredRow) [2]string { return [2]string{row.row.Suite, row.row.ID} })
	o.Progress.Note(o.announce(len(byID)))
	r.skip(byID)
	if err := r.skipped(); err != nil {
		return err
	}
	groups := groupRows(r.rows, o.counting())
	for i, rows := range groups {
		text := "building the networks and checking each path"
		switch {
		case o.counting():
			text = fmt.Sprintf("network %d of %d: %s", i+1, len(groups), describeGroup(rows))
		case len(groups) > 1:
			text = fmt.Sprintf("suite %d of %d, %s: %s", i+1, len(groups), rows[0].row.Suite, text)
		}
		o.Progress.Suite(o.expected(groups[i+1:]))
		o.Progress.Note(text)
		err := r.group(ctx, rows)
		r.noteDisturbances(rows[0].row.Suite)
		switch {
		case ctx.Err() != nil && err != nil:
			r.head.Interrupted, r.head.Finished = true, time.Now().UTC()
			return errors.Join(ErrInterrupted, r.write())
		case err != nil:
			return err // what was finished is written
		}
		if len(groups) > 1 {
			if err := errors.Join(r.write(), r.testbed.release()); err != nil {
				return err
			}
		}
	}
	r.head.Finished = time.Now().UTC()
	return r.skipped()
}

// skipped returns an error with the reasons if this machine can measure none of the rows.
func (r *run) skipped() error {
	var reasons []string
	for _, row := range r.rows {
		if row.row.Status != result.StatusSkipped {
			return nil
		}
		if !slices.Contains(reasons, row.row.Reason) {
			reasons = append(reasons, row.row.Reason)
		}
	}
	return fmt.Errorf("no row can be measured: %s", strings.Join(reasons, "; "))
}

func (r *run) group(ctx context.Context, rows []*measuredRow) error {
	started := time.Now()
	if err := r.prove(ctx, rows); err != nil || pending(rows) == 0 {
		return err
	}
	if r.options.sliced(rows[0].spec.suite) {
		tables, carried := divide(rows, suites.Workload.OfTables)
		if pending(carried) > 0 {
			if err := r.trace(ctx, carried); err != nil {
				return err
			}
			if err := r.interleave(ctx, carried, started); err != nil {
				return err
			}
		}
		return r.tables(ctx, tables)
	}
	if rows[0].spec.suite.BesideEngines() {
		return r.besideEngines(ctx, rows)
	}
	if err := r.testbed.setPriorities(); err != nil {
		return err
	}
	return r.rounds(ctx, rows, r.options.rounds())
}

func (o Options) announce(rows int) string {
	text := fmt.Sprintf("%s: %s", o.suiteName(), count(rows, "row"))
	switch rounds := o.rounds(); {
	case o.counting():
		return fmt.Sprintf("%s, %s of %d packets or %d transactions each, counting instructions",
			text, count(rounds, "round"), countedPackets, countedTransactions)
	case o.anySliced() && o.Rounds > 0:
		text += fmt.Sprintf(", %s of two turns", count(rounds, "round"))
	case o.anySliced() && o.Until > 0:
		text += fmt.Sprintf(", at most about %v a suite", o.Time)
	case o.anySliced():
		text += fmt.Sprintf(", %v a suite", o.Time)
	case o.Peer != nil:
		text += fmt.Sprintf(", %s of %v each", count(rounds, "round"), o.Duration)
	default:
		text += ", " + count(rounds, "round")
	}
	return fmt.Sprintf("%s, seed %d", text, o.Seed)
}

// skip marks the rows that this machine cannot measure, before any lab is built, with a note for each missing program.
func (r *run) skip(byID [][]*measuredRow) {
	var missing []*measuredRow
	for _, rows := range byID {
		reason := r.options.unsupported(rows[0].spec.path)
		if reason == nil {
			continue
		}
		for _, row := range rows {
			row.skip(reason)
		}
		if absent := (*distro.MissingError)(nil); errors.As(reason, &absent) {
			missing = append(missing, rows[0])
		}
	}
	for _, rows := range groupBy(missing, func(row *measuredRow) string { return row.row.Reason }) {
		r.options.Progress.Note(fmt.Sprintf("%s skipped: %s", count(len(rows), "row"), rows[0].row.Reason))
	}
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// take measures a row once; a proof is as short as its path allows.
func (r *run) take(ctx context.Context, s rowSpec, proof bool) (sample, error) {
	switch {
	case s.path.Engine != nil: // whose path the native row proves
		return sample{}, nil
	case s.workload.OfTables():
		return r.testbed.takeTables(ctx, s)
	case s.path.Plugin != nil && proof:
		return r.testbed.takeCalls(ctx, s, 0)
	case s.path.Plugin != nil:
		return r.testbed.takeCalls(ctx, s, r.options.calls(s.workload))
	case proof && r.options.sliced(s.suite):
		return r.testbed.prove(ctx, s.path, r.options.proofSpec(s.path, s.workload))
	case proof:
		return r.testbed.take(ctx, s.path, r.options.proofSpec(s.path, s.workload))
	}
	return r.testbed.take(ctx, s.path, r.options.spec(s.path, s.workload))
}

func (r *run) fail(row *measuredRow, reason error) error {
	r.exclude(row, reason)
	return r.testbed.reset(row.spec.path)
}

func (r *run) exclude(row *measuredRow, reason error) {
	row.fail(reason)
	r.options.Progress.Note(fmt.Sprintf("%s: failed: %s", row.spec.name(), row.row.Reason))
}

func (r *run) rounds(ctx context.Context, rows []*measuredRow, rounds int) error {
	o := r.options
	pace := pace{started: time.Now(), each: o.sampleTime(rows[0].spec.path), total: pending(rows) * rounds}
	for round := range rounds {
		if !o.counting() {
			if err := r.disturbed.watch(); err != nil {
				return err
			}
		}
		for _, i := range order(o.Seed, round, len(rows)) {
			row := rows[i]
			if row.done() {
				continue
			}
			if !o.counting() {
				o.Progress.Row(row.spec.name(), pace.left())
			}
			if err := r.sample(ctx, row, round); err != nil {
				return err
			}
			pace.done++
		}
	}
	return nil
}

func (r *run) sample(ctx context.Context, row *measuredRow, round int) error {
	s, err := r.take(ctx, row.spec, false)
	if err == nil {
		s.figure, err = r.options.figure(s.measurement)
	}
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		evidence.Merge(&row.row.Evidence, s.evidence)
		if err := r.fail(row, fmt.Errorf("round %d: %w", round+1, err)); err != nil {
			return err
		}
		return r.write()
	}
	row.add(s, round)
	if used := s.measurement.ClientCongestion; used != "" {
		r.head.Settings["tcp_congestion_control_used"] = used
	}
	if r.options.counting() {
		return nil // an emulated machine writes a file slower than it measures a row
	}
	return r.write()
}

// file returns the result so far, without rows that lack both samples and a reason.
func (r *run) file() result.File {
	f := result.File{Schema: result.Schema, Run: r.head, Rows: []result.Row{}}
	measured := map[result.Key]*measuredRow{}
	for _, row := range r.rows {
		if finished, ok := row.result(); ok {
			f.Rows = append(f.Rows, finished)
			measured[finished.Key()] = row
		}
	}
	for i := range f.Rows {
		if row := measured[f.Rows[i].Key()]; row.answered && !row.done() {
			if base := (comparedRows{row.spec.suite, row.spec.workload, measured}).base(); base != nil {
				row.rescale(&f.Rows[i], base)
			}
		}
	}
	for _, suite := range r.options.Suites {
		f.Suites = append(f.Suites, suite.Describe(f.Rows, r.options.counting()))
	}
	f.Run.Comparisons = r.compared.update(r.options, measured)
	return f
}

func (r *run) write() error {
	if r.skipped() != nil {
		return nil
	}
	return r.options.Out.Write(r.file())
}
