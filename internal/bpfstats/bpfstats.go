// SPDX-License-Identifier: Apache-2.0

// Package bpfstats measures how often BPF programs run and how long a run takes, with the
// kernel's statistics of programs (bpf_stats). While they are on, each run takes some
// 20 ns longer.
package bpfstats

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

// Runs is how often a program ran, and how long in all.
type Runs struct {
	Count uint64
	Time  time.Duration
}

// Since returns the difference to an earlier reading.
func (r Runs) Since(earlier Runs) Runs { return Runs{r.Count - earlier.Count, r.Time - earlier.Time} }

// Stats is statistics that are on.
type Stats struct {
	enabled io.Closer
	empty   float64 // nanoseconds of a run
}

// Enable switches the statistics on until Close, for all programs of the machine, and
// measures an empty program.
func Enable() (_ *Stats, err error) {
	s := &Stats{}
	if s.enabled, err = ebpf.EnableStats(unix.BPF_STATS_RUN_TIME); err != nil {
		return nil, fmt.Errorf("enable statistics of BPF programs: %w", err)
	}
	if s.empty, err = runEmpty(); err != nil {
		return nil, errors.Join(fmt.Errorf("measure an empty BPF program: %w", err), s.Close())
	}
	return s, nil
}

// Close switches the statistics off, unless others have them on.
func (s *Stats) Close() error { return s.enabled.Close() }

// Nanos returns the mean time of a run in nanoseconds, less that of an empty program: the
// statistics count their own reading of the clock. It is not below 0.
func (s *Stats) Nanos(r Runs) float64 { return max(r.nanos()-s.empty, 0) }

// nanos returns the mean time of a run; 0 if there was none.
func (r Runs) nanos() float64 {
	if r.Count == 0 {
		return 0
	}
	return float64(r.Time.Nanoseconds()) / float64(r.Count)
}

// Read returns the runs of pinned programs by their name, as the kernel keeps it. Those of
// one name are added up.
func Read(pins []string) (map[string]Runs, error) {
	out := map[string]Runs{}
	for _, pin := range pins {
		if err := add(out, pin); err != nil {
			return nil, fmt.Errorf("statistics of program %s: %w", filepath.Base(pin), err)
		}
	}
	return out, nil
}

// add adds the runs of a pinned program.
func add(to map[string]Runs, pin string) error {
	p, err := ebpf.LoadPinnedProgram(pin, nil)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	info, err := p.Info()
	if err != nil {
		return err
	}
	r, err := runs(p)
	sum := to[info.Name]
	to[info.Name] = Runs{sum.Count + r.Count, sum.Time + r.Time}
	return err
}

// runs returns the runs of a program.
func runs(p *ebpf.Program) (Runs, error) {
	stats, err := p.Stats()
	if err != nil {
		return Runs{}, err
	}
	return Runs{stats.RunCount, stats.Runtime}, nil
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
	r, err := runs(p)
	if err == nil && r.Count == 0 {
		err = errors.New("its runs were not counted")
	}
	return r.nanos(), err
}
