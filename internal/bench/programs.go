// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// emptyRuns is the number of runs of the empty program.
const emptyRuns = 50_000

// programRuns is how often a program ran, and how long in all.
type programRuns struct {
	count uint64
	time  time.Duration
}

// nanos returns the mean time of a run; 0 if there was none.
func (r programRuns) nanos() float64 {
	return float64(r.time.Nanoseconds()) / float64(max(r.count, 1))
}

// programStats are the kernel's statistics of BPF programs (bpf_stats), while they are on. Each run takes some 20 ns longer.
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

// nanos returns the mean time of the runs between two readings in nanoseconds, less that of an empty program: the
// statistics count their own reading of the clock. It is not below 0.
func (s *programStats) nanos(before, after programRuns) float64 {
	return max(programRuns{after.count - before.count, after.time - before.time}.nanos()-s.empty, 0)
}

// readRuns returns the runs of pinned programs by their name, as the kernel keeps it. Those of one name are added up.
func readRuns(pins []string) (map[string]programRuns, error) {
	out := map[string]programRuns{}
	for _, pin := range pins {
		name, r, err := pinnedRuns(pin)
		if err != nil {
			return nil, fmt.Errorf("statistics of program %s: %w", filepath.Base(pin), err)
		}
		out[name] = programRuns{out[name].count + r.count, out[name].time + r.time}
	}
	return out, nil
}

// pinnedRuns returns the name and the runs of a pinned program.
func pinnedRuns(pin string) (name string, r programRuns, err error) {
	p, err := ebpf.LoadPinnedProgram(pin, nil)
	if err != nil {
		return "", r, err
	}
	defer func() { _ = p.Close() }()
	info, err := p.Info()
	if err != nil {
		return "", r, err
	}
	r, err = runsOf(p)
	return info.Name, r, err
}

// runsOf returns the runs of a program.
func runsOf(p *ebpf.Program) (programRuns, error) {
	stats, err := p.Stats()
	if err != nil {
		return programRuns{}, err
	}
	return programRuns{stats.RunCount, stats.Runtime}, nil
}

// runEmpty returns the nanoseconds of a run of a tc program that does nothing.
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
	r, err := runsOf(p)
	if err == nil && r.count == 0 {
		err = errors.New("its runs were not counted")
	}
	return r.nanos(), err
}
