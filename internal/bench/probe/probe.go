// SPDX-License-Identifier: Apache-2.0

// Package probe measures connections one by one: the first packet to a service among many, the time in which services
// or a policy take effect, and the kernel's memory for them. Each sample ends with connections whose evidence shows the path.
package probe

import (
	"context"
	"runtime"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"

	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/result"
)

// proofs is the number of connections at the end of a sample that show that services or a policy work.
const proofs = 20

// mostChanges bounds the changes of a sample, there and back: until their time is over, but two at least.
const mostChanges = 100

// Task is one sample to take.
type Task struct {
	// Lab is of topology pod-links, with services or a network policy.
	Lab *lab.Lab
	// Path is that of the row; with services, its addresses are those of other services then.
	Path evidence.Path
	// Workload is one of those that measure tables of services or of policies.
	Workload string
	// CPU is the one that the client's thread runs on.
	CPU int
}

// Sample is the measurement of a task with its evidence.
type Sample struct {
	Measurement load.Measurement
	Evidence    result.Evidence
}

// Run takes a sample. The lab has the services and the policy with which it was built then. If evidence contradicts the
// path, the error is an [*evidence.Error].
func (t Task) Run(ctx context.Context) (s Sample, err error) {
	watch, err := clock.OpenMachine()
	if err != nil {
		return s, err
	}
	defer watch.Close()
	s.Measurement = load.Measurement{Workload: t.Workload, Flows: 1, Histogram: hdrhistogram.New(1, int64(10*time.Minute), 3)}
	run := t.services
	if t.Workload == result.WorkloadPolicyApply || t.Workload == result.WorkloadPolicyChange {
		run = t.policies
	}
	s.Evidence, err = run(ctx, &s.Measurement, &span{watch: watch})
	return s, err
}

// span is the time of a sample.
type span struct {
	watch   *clock.Machine
	started time.Time
}

// begin begins the time, without garbage to collect in it.
func (s *span) begin() error {
	runtime.GC()
	err := s.watch.Begin()
	s.started = time.Now()
	return err
}

// end ends the time, and notes it.
func (s *span) end(m *load.Measurement) (err error) {
	m.Seconds = time.Since(s.started).Seconds()
	m.Machine, err = s.watch.End()
	return err
}

// changes sets the figures of changes whose times are in the histogram.
func changes(m *load.Measurement) {
	m.Units, m.Unit, m.CPUUnit = float64(m.Count), result.UnitMicroseconds, "change"
	m.Rate = float64(m.Histogram.ValueAtPercentile(50)) / 1e3
}

// prove returns the evidence of a flow.
func prove(r *evidence.Recorder, f evidence.Flow) (result.Evidence, error) {
	seen, err := r.Stop(f)
	if err != nil {
		return result.Evidence{}, err
	}
	return seen[0], evidence.Contradiction(seen[0])
}
