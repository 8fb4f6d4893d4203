// SPDX-License-Identifier: Apache-2.0

// Package explain times the steps of a row's packets. It builds the row's network, does request/response on it, and
// records events at tracepoints and functions of the kernel. The path of a row is the path of most of its transactions.
// A step lasts until the next one, minus the cost of recording it.
package explain

import (
	"context"
	"errors"
	"fmt"

	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load/clock"
)

// Efforts: for a single row, and for a row during a benchmark.
var (
	thorough = effort{rounds: 6, untraced: 5, counters: true}
	brief    = effort{rounds: 2, untraced: 1}
)

const briefCount = 200 // transactions that a brief run traces

// Trace explains a path in a lab that exists, where nothing else runs, in a fraction of a second:
// without [Counters], and by few transactions.
func Trace(ctx context.Context, l *lab.Lab, p suites.Path, o Options) (e Explanation, err error) {
	o.Row, o.Count = p.ID, briefCount
	r := newRun(o, 0, p, brief)
	r.lab = l
	found, err := explainRuns(ctx, []*run{r})
	if err == nil {
		e = found[0]
	}
	return e, err
}

// Run explains rows, whose networks exist side by side and whose transactions take turns. Errors of options come
// before anything is built. It leaves nothing behind.
func Run(ctx context.Context, rows ...Options) ([]Explanation, error) {
	var runs []*run
	for i, o := range rows {
		p, err := o.path()
		if err != nil {
			return nil, err
		}
		if err := p.Probe(); err != nil {
			return nil, fmt.Errorf("row %s: %w", o.Row, err)
		}
		runs = append(runs, newRun(o, i, p, thorough))
	}
	if rows[0].Instructions {
		if err := clock.CheckCounting(); err != nil {
			return nil, err
		}
	}
	return explainRuns(ctx, runs)
}

func explainRuns(ctx context.Context, runs []*run) (found []Explanation, err error) {
	defer func() {
		for _, r := range runs {
			err = errors.Join(err, r.close())
		}
	}()
	each := func(do func(*run) error) {
		for _, r := range runs {
			if err == nil {
				if err = do(r); err != nil {
					err = fmt.Errorf("row %s: %w", r.options.Row, err)
				}
			}
		}
	}
	each(func(r *run) error { return r.open(ctx) })
	for range runs[0].effort.rounds {
		for range runs[0].effort.untraced { // compared measurements lie close together
			each(func(r *run) error {
				m, err := r.transact(ctx, r.perRound())
				if err == nil {
					r.recording.untraced = append(r.recording.untraced, float64(m.Histogram.ValueAtPercentile(50)))
				}
				return err
			})
		}
		each(func(r *run) error {
			m, events, err := r.record(ctx, r.tracer.each)
			if err == nil {
				r.recording.traced = append(r.recording.traced, float64(m.Histogram.ValueAtPercentile(50)))
				r.recording.events = append(r.recording.events, events)
			}
			return err
		})
	}
	var paths []path
	each(func(r *run) error {
		p, err := r.finish(ctx)
		paths = append(paths, p)
		return err
	})
	if err != nil {
		return nil, err
	}
	costs := poolCosts(paths)
	each(func(r *run) error {
		e, err := r.explanation(paths[r.number], costs)
		found = append(found, e)
		return err
	})
	return found, err
}
