// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"mustang/internal/bench/engine"
	"mustang/internal/bench/evidence"
	"mustang/internal/bench/stats"
	"mustang/internal/bench/suites"
	"mustang/internal/load"
)

// besideEngines measures paths with several engines, which take turns in random order, and in the next round in the
// reverse order (ABBA). Each turn has new processes and connections, each round new labs.
func (r *run) besideEngines(ctx context.Context, rows []*measuredRow) error {
	o := r.options
	r.describeEngines(ctx, rows)
	if err := r.testbed.hangUp(true); err != nil { // the agents of the proofs
		return err
	}
	begun := time.Now()
	pace := pace{started: begun, each: o.Duration + engineOverhead, total: pending(rows) * o.Rounds}
	for round := 0; ; round++ {
		start := time.Now()
		groups := byPath(rows)
		for _, i := range order(o.Seed, round, len(groups)) {
			turns := order(o.Seed+1, round/2, len(groups[i]))
			if round%2 == 1 {
				slices.Reverse(turns)
			}
			for _, turn := range turns {
				row, left := groups[i][turn], o.Time-time.Since(begun)
				if o.Rounds > 0 {
					left = pace.left()
				}
				o.Progress.Row(row.spec.name(), left)
				if err := r.engineSample(ctx, row, round); err != nil {
					return err
				}
				pace.done++
			}
		}
		if err := errors.Join(r.testbed.renew(), r.write()); err != nil {
			return err
		}
		enough := round+1 >= minInterval && o.Time-time.Since(begun) < time.Since(start)
		if o.Rounds > 0 {
			enough = round+1 >= o.Rounds
		}
		if enough || pending(rows) == 0 {
			return nil
		}
	}
}

const engineOverhead = 300 * time.Millisecond // the time of a turn beyond its measurement

func (r *run) describeEngines(ctx context.Context, rows []*measuredRow) {
	for _, row := range rows {
		if e := row.spec.path.Engine; e != nil && !row.done() && r.head.Versions[e.Name] == "" {
			r.head.Versions[e.Name] = e.Version(ctx)
		}
	}
	note := fmt.Sprintf("A sample of an engine is a run of %v, and one of the native engine as many slices of %v.",
		r.options.Duration, cmp.Or(r.options.Slice, kernelSlice))
	if !slices.Contains(r.head.Notes, note) {
		r.head.Notes = append(r.head.Notes, note)
	}
}

func byPath(rows []*measuredRow) [][]*measuredRow {
	type key struct {
		path     suites.Path
		workload suites.Workload
	}
	return groupBy(unfinished(rows), func(row *measuredRow) key {
		k := key{row.spec.path, row.spec.workload}
		k.path.ID, k.path.Engine = "", nil
		return k
	})
}

const mostTurns = 5 // how often a turn is repeated if its connection was not seen

// untilSeen takes a turn, and again if its connection was not seen.
func untilSeen(turn func() error) (err error) {
	for range mostTurns {
		if err = turn(); !errors.Is(err, engine.ErrUnseen) {
			return err
		}
	}
	return err
}

func (r *run) engineSample(ctx context.Context, row *measuredRow, round int) error {
	err := untilSeen(func() error {
		err := r.engineTurn(ctx, row, round)
		return errors.Join(err, r.testbed.hangUp(true)) // whose server has the port that a program needs
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return r.fail(row, fmt.Errorf("round %d: %w", round+1, err))
	}
	return nil
}

func (r *run) engineTurn(ctx context.Context, row *measuredRow, round int) error {
	p := row.spec.path
	l, err := r.testbed.lab(ctx, p.Lab)
	if err != nil {
		return err
	}
	var turns []load.SliceResult
	var m load.Measurement
	recorder := evidence.Recorder{Lab: l}
	seen, err := recorder.Record(func() (evidence.Flow, error) {
		var err error
		if p.Engine == nil {
			turns, m, err = r.nativeTurn(ctx, row)
		} else {
			w := row.spec.workload
			m, err = p.Engine.Run(ctx, engine.Traffic{
				Lab: l, Path: p.Path, Workload: w.Name, Flows: w.Flows, Rate: w.Rate,
				Seconds: int(r.options.Duration / time.Second), CPUs: r.testbed.cpus,
			})
			turns = []load.SliceResult{{Count: m.Count, Seconds: m.Seconds, Sent: m.Sent, Received: m.Received}}
		}
		return evidence.Flow{Path: p.Path, Measurement: m, MayLoseAll: row.spec.workload.Rate > proofRate}, err
	})
	if wrong := (*evidence.Error)(nil); err != nil && !errors.As(err, &wrong) {
		return err
	}
	row.setVariant(l)
	row.addEpoch(m, seen, false)
	if err != nil {
		return err
	}
	at := stats.Position{Lab: round, Process: round, Connection: round}
	if keeps(p.Lab) {
		at.Lab = 0
	}
	row.addTurns(at, round, turns...)
	return nil
}

// nativeTurn carries load for the time of a sample, in the slices of a run without further engines.
func (r *run) nativeTurn(ctx context.Context, row *measuredRow) (turns []load.SliceResult, m load.Measurement,
	err error) {
	o, p := r.options, row.spec.path
	s, err := r.testbed.prepare(ctx, p, o.spec(p, row.spec.workload))
	if err != nil {
		return nil, m, err
	}
	if err := r.testbed.connect(ctx, []*connection{s})[0]; err != nil {
		return nil, m, err
	}
	slice := cmp.Or(o.Slice, kernelSlice)
	for left := o.Duration; left > 0; {
		var batch []load.Slice
		for ; left > 0 && len(batch) < load.MaxSlices; left -= slice {
			batch = append(batch, load.Slice{Conn: s.connection.ID, Duration: min(slice, left)})
		}
		done, err := s.client.Slices(ctx, batch)
		if err != nil {
			return nil, m, err
		}
		turns = append(turns, done...)
	}
	m, err = s.client.Shut(ctx, s.connection.ID)
	return turns, m, err
}
