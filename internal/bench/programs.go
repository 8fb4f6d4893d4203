// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/result"
)

// programRuns is how often a program ran, and how long in all.
type programRuns struct {
	count uint64
	time  time.Duration
}

func (r programRuns) nanos() float64 { return float64(r.time.Nanoseconds()) / float64(max(r.count, 1)) }

// programStats are the kernel's statistics of BPF programs (bpf_stats), while they are on. A run takes 20 ns longer.
type programStats struct {
	io.Closer         // switches them off, unless others have them on
	empty     float64 // nanoseconds of a run that does nothing
}

// enableStats switches the statistics on for all programs of the machine, and measures an empty program.
func enableStats() (_ *programStats, err error) {
	s := &programStats{}
	if s.Closer, err = ebpf.EnableStats(unix.BPF_STATS_RUN_TIME); err != nil {
		return nil, fmt.Errorf("enable statistics of BPF programs: %w", err)
	}
	if s.empty, err = runEmpty(); err != nil {
		return nil, errors.Join(fmt.Errorf("measure an empty BPF program: %w", err), s.Close())
	}
	return s, nil
}

// nanos returns the mean time of the runs between two readings in nanoseconds, minus the time of an empty program.
// The statistics count their own reading of the clock. The result is at least 0.
func (s *programStats) nanos(before, after programRuns) float64 {
	return max(programRuns{after.count - before.count, after.time - before.time}.nanos()-s.empty, 0)
}

// readRuns returns the runs of pinned programs by the name in the kernel. It adds up programs with the same name.
func readRuns(pins []string) (map[string]programRuns, error) {
	out := map[string]programRuns{}
	for _, pin := range pins {
		p, err := ebpf.LoadPinnedProgram(pin, nil)
		if err != nil {
			return nil, fmt.Errorf("statistics of program %s: %w", filepath.Base(pin), err)
		}
		info, err1 := p.Info()
		stats, err2 := p.Stats()
		if err := errors.Join(err1, err2, p.Close()); err != nil {
			return nil, fmt.Errorf("statistics of program %s: %w", filepath.Base(pin), err)
		}
		out[info.Name] = programRuns{out[info.Name].count + stats.RunCount, out[info.Name].time + stats.Runtime}
	}
	return out, nil
}

const emptyRuns = 50_000

func runEmpty() (float64, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "empty", Type: ebpf.SchedCLS, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		return 0, err
	}
	defer func() { _ = p.Close() }()
	if _, err := p.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: emptyRuns}); err != nil {
		return 0, err
	}
	stats, err := p.Stats()
	if err != nil {
		return 0, err
	}
	if stats.RunCount == 0 {
		return 0, errors.New("its runs were not counted")
	}
	return programRuns{stats.RunCount, stats.Runtime}.nanos(), nil
}

// Each connection carries load in this many windows of this length while the time of BPF programs is measured.
const (
	statsWindows = 5
	statsWindow  = 3 * time.Millisecond
)

func splitCPU(m clock.MachineTime, units float64) *result.CPUSplit {
	us := func(seconds float64) float64 { return max(seconds, 0) * 1e6 / units }
	return &result.CPUSplit{UserUS: us(m.UserSeconds), SystemUS: us(m.SystemSeconds), SoftirqUS: us(m.SoftirqSeconds)}
}

// programTimes measures the time of BPF programs on the connections of labs that have them, one after the other. It
// runs apart from the timed turns: the kernel's statistics slow the programs down.
func (e *epoch) programTimes(ctx context.Context) (err error) {
	with := slices.DeleteFunc(slices.Clone(e.connections), func(s *connection) bool {
		return s.lab == nil || s.lab.Datapath() == nil
	})
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
			if err := e.fail(ctx, s.row, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// timePrograms returns the time of the programs that run while a connection carries load. None of the load goes
// uncounted. The time of a run is the median of several windows: in some of them other work interrupts a program.
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
			times = append(times, result.ProgramTime{Program: name, RunsPerUnit: float64(runs[name]) / units,
				NanosPerRun: median(nanos[name])})
		}
	}
	return times, nil
}
