// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"

	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/result"
)

// byKind divides rows into those that carry load in turns and those that measure tables of
// services or network policies.
func byKind(rows []*measuredRow) (carried, tables []*measuredRow) {
	for _, row := range rows {
		if row.spec.workload.OfTables() {
			tables = append(tables, row)
		} else {
			carried = append(carried, row)
		}
	}
	return carried, tables
}

// Rounds of tables of services: firstPacketRounds of first packets, whose samples take a tenth of a second and whose tails need
// many, tableRounds at most of the others, which take seconds, and quickTableRounds in a quick run.
const firstPacketRounds, tableRounds, quickTableRounds = 30, 10, 3

// tables measures tables of services and network policies in rounds.
func (r *run) tables(ctx context.Context, rows []*measuredRow) error {
	if pending(rows) == 0 {
		return nil
	}
	if err := errors.Join(r.testbed.hangUp(false), r.testbed.build(ctx, labsOf(rows))); err != nil { // agents listen where tables do
		return err
	}
	rounds := cmp.Or(r.options.Rounds, firstPacketRounds)
	if r.options.Quick {
		rounds = min(rounds, quickTableRounds)
	}
	var first, others []*measuredRow
	for _, row := range rows {
		if strings.HasPrefix(row.spec.workload.Name, result.WorkloadFirstPacket) {
			first = append(first, row)
		} else {
			others = append(others, row)
		}
	}
	if pending(first) > 0 {
		if err := r.rounds(ctx, first, rounds); err != nil {
			return err
		}
	}
	if pending(others) == 0 {
		return nil
	}
	return r.rounds(ctx, others, min(rounds, tableRounds))
}

// proofs is the number of connections at the end of a sample that show that services or a policy work.
const proofs = 20

// mostChanges bounds the changes of a sample, there and back: until their time is over, but two at least.
const mostChanges = 100

// changeTimeout limits the time until a change takes effect.
const changeTimeout = 2 * time.Minute

// tableSample is one sample of a table of services or of a network policy: connections are opened one by one.
type tableSample struct {
	load.Measurement
	lab *lab.Lab
	// path is that of the row; with services, its addresses are those of other services then.
	path evidence.Path
	cpu  int // that the client's thread runs on

	watch   *clock.Machine
	started time.Time
}

// takeTables measures a table of services, or changes of a network policy. The lab has the services and the policy
// with which it was built then.
func (t *testbed) takeTables(ctx context.Context, row rowSpec) (s sample, err error) {
	l, err := t.lab(ctx, row.path.Lab)
	if err != nil {
		return s, err
	}
	watch, err := clock.OpenMachine()
	if err != nil {
		return s, err
	}
	defer watch.Close()
	taken := &tableSample{lab: l, path: row.path.Path, cpu: t.cpus.Client, watch: watch}
	taken.Measurement = load.Measurement{
		Workload: row.workload.Name, Flows: 1, Histogram: hdrhistogram.New(1, int64(10*time.Minute), 3),
	}
	take := taken.services
	if row.workload.OfPolicies() {
		take = taken.policies
	}
	s.evidence, err = take(ctx)
	s.measurement = taken.Measurement
	return s, err
}

// begin begins the time of the sample, without garbage to collect in it.
func (t *tableSample) begin() error {
	runtime.GC()
	err := t.watch.Begin()
	t.started = time.Now()
	return err
}

func (t *tableSample) end() (err error) {
	t.Seconds = time.Since(t.started).Seconds()
	t.Machine, err = t.watch.End()
	return err
}

// setRate sets the figure of n things, which are the unit of CPU time.
func (t *tableSample) setRate(n int, cpuUnit, unit string, rate float64) {
	t.Count, t.Units, t.CPUUnit, t.Unit, t.Rate = uint64(n), float64(n), cpuUnit, unit, rate
}

// setTimes sets the figure of things whose times are in the histogram.
func (t *tableSample) setTimes(n int, cpuUnit string, percentile float64) {
	t.setRate(n, cpuUnit, result.UnitMicroseconds, float64(t.Histogram.ValueAtPercentile(percentile))/1e3)
}

// change makes a change, and records how long it took to take effect.
func (t *tableSample) change(
	ctx context.Context, c *connector, change func() error, look func() (at time.Time, found bool, err error),
) error {
	took, err := awaitEffect(ctx, c, change, look)
	if err != nil {
		return err
	}
	t.Count++
	return t.Histogram.RecordValue(int64(took))
}

// awaitEffect makes a change and looks for its effect all the while. It returns the time from the begin of the change
// to the one at which a look found the effect.
func awaitEffect(
	ctx context.Context, c *connector, change func() error, look func() (at time.Time, found bool, err error),
) (took time.Duration, err error) {
	var changed chan error
	begun := make(chan time.Time, 1)
	err = c.on(func() error {
		switch _, found, err := look(); {
		case err != nil:
			return err
		case found:
			return errors.New("the effect of a change was seen before it")
		}
		changed = make(chan error, 1)
		go func() { // on another CPU, which may take its time to begin
			begun <- time.Now()
			changed <- change()
		}()
		for deadline := time.Now().Add(changeTimeout); time.Now().Before(deadline) && ctx.Err() == nil; {
			at, found, err := look()
			if len(changed) == 1 {
				if err := <-changed; err != nil {
					changed = nil
					return err
				}
				changed <- nil
			}
			if err != nil {
				return err
			}
			if found {
				took = max(at.Sub(<-begun), 0)
				return nil
			}
		}
		return fmt.Errorf("a change had no effect within %v", changeTimeout)
	})
	if changed != nil {
		err = errors.Join(err, <-changed)
	}
	return took, err
}
