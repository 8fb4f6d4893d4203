// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/result"
)

// Each connection carries load in this many windows of this length while the time of BPF
// programs is measured.
const (
	statsWindows = 5
	statsWindow  = 3 * time.Millisecond
)

// splitCPU returns the parts of the machine's time for a number of units.
func splitCPU(m clock.MachineTime, units float64) *result.CPUSplit {
	us := func(seconds float64) float64 { return max(seconds, 0) * 1e6 / units }
	return &result.CPUSplit{UserUS: us(m.UserSeconds), SystemUS: us(m.SystemSeconds), SoftirqUS: us(m.SoftirqSeconds)}
}

// programTimes measures the time of BPF programs on the connections of labs that have
// them, one after the other, apart from the timed turns: the kernel's statistics slow the
// programs down.
func (e *epoch) programTimes(ctx context.Context) (err error) {
	with := slices.DeleteFunc(slices.Clone(e.connections), func(s *connection) bool { return s.lab == nil || s.lab.Datapath() == nil })
	if len(with) == 0 {
		return nil
	}
	stats, err := enableStats()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stats.Close()) }()
	for _, s := range with {
		if s.row.row.BPFNanos, err = e.timePrograms(ctx, stats, s); err != nil {
			if err := e.drop(ctx, s, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// timePrograms returns the time of the programs that run while a connection carries load.
// None of the load goes uncounted. The time of a run is the median of several windows: in
// some of them other work interrupts a program.
func (e *epoch) timePrograms(ctx context.Context, stats *programStats, s *connection) ([]result.ProgramTime, error) {
	pins, err := s.lab.Datapath().ProgramPins()
	if err != nil {
		return nil, err
	}
	before, err := readRuns(pins)
	if err != nil {
		return nil, err
	}
	units, runs, nanos := 0.0, map[string]uint64{}, map[string][]float64{}
	for range statsWindows {
		turn, err := s.client.Slices(ctx, []load.Slice{{Conn: s.connection.ID, Lead: -1, Duration: statsWindow}})
		if err != nil {
			return nil, err
		}
		after, err := readRuns(pins)
		if err != nil {
			return nil, err
		}
		for name, now := range after {
			if n := now.count - before[name].count; n > 0 {
				runs[name] += n
				nanos[name] = append(nanos[name], stats.nanos(before[name], now))
			}
		}
		units += float64(turn[0].Count)
		before = after
	}
	if s.row.row.CPUUnit == cpuMB {
		units /= 1e6
	}
	var times []result.ProgramTime
	for _, name := range slices.Sorted(maps.Keys(runs)) {
		if units > 0 {
			times = append(times, result.ProgramTime{Program: name, RunsPerUnit: float64(runs[name]) / units, NanosPerRun: median(nanos[name])})
		}
	}
	return times, nil
}
