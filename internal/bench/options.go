// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	glob "path"
	"path/filepath"
	"slices"
	"time"

	"mustang/internal/lab"
	"mustang/internal/result"
)

// Options say how to run a suite.
type Options struct {
	// Suites are what to run, one after the other.
	Suites []Suite
	// Rounds is how often each row is measured; 0 means 10.
	Rounds int
	// Duration is the measured time of one sample; 0 means 300 ms.
	Duration time.Duration
	// Warmup is the time before it that is not counted; 0 means a third of
	// Duration.
	Warmup time.Duration
	// WireRate and WireDelay are those of the wire between two hosts, in bits per
	// second and for each direction; 0 is what the kernel can do.
	WireRate  uint64
	WireDelay time.Duration
	// Peer, when not nil, is the other machine, in the place of a second host here.
	Peer *PeerOptions
	// Only selects rows whose ID, or "ID workload", matches one of these patterns
	// (path.Match, where * stops at a slash) or begins with one; empty selects all.
	Only []string
	// Seed orders the rows and the bootstrap; 0 means a random one, and always the
	// same where instructions are counted.
	Seed uint64
	// Count, when it is [result.ClockInstructions], counts the instructions of each
	// packet and transaction in the place of measuring time. It takes an emulated
	// machine with one CPU whose clock counts them, see [ErrNotCounting].
	Count string
	// Quick makes the run take less than a minute; it sets Rounds and Duration
	// where they are 0.
	Quick bool
	// CPUs is where clients and servers run.
	CPUs CPUPair
	// Out is the directory that results.json is written to. It is made if it is
	// not there.
	Out string
	// Store is where the labs are recorded.
	Store lab.Store
	// Exe is the program to start as traffic agent; empty means this one.
	Exe string
	// Progress is told of what goes on.
	Progress Reporter
}

// Reporter is told how a run goes on.
type Reporter interface {
	// Note prints a line.
	Note(text string)
	// Start says how many samples there will be, and how long one takes. It is not
	// called where no time passes by the machine's clock.
	Start(samples int, each time.Duration)
	// Sample says that a sample of a row is begun.
	Sample(row string)
	// Done says that it is measured.
	Done()
	// Round says that a round is complete.
	Round(round, rounds int)
	// Finish ends the display.
	Finish()
}

// withDefaults fills in what was left out and returns an error that names the
// first option that makes no sense.
func (o Options) withDefaults() (Options, error) {
	rounds, duration := 10, 300*time.Millisecond
	if o.Quick {
		rounds, duration = 6, 60*time.Millisecond
	}
	if o.counts() {
		rounds, duration = 6, 0 // they differ by less than a thousandth
	}
	switch {
	case o.Count != "" && !o.counts():
		return o, fmt.Errorf("count %q: there is only %q", o.Count, result.ClockInstructions)
	case o.counts() && o.Duration > 0:
		return o, fmt.Errorf("duration %v: where instructions are counted, a sample is a number of packets", o.Duration)
	case o.counts() && o.Peer != nil:
		return o, errors.New("peer: instructions of two machines can't be counted")
	case o.Rounds < 0:
		return o, fmt.Errorf("rounds %d: want 1 or more", o.Rounds)
	case o.Duration < 0 || (o.Duration > 0 && o.Duration < 10*time.Millisecond):
		return o, fmt.Errorf("duration %v: want 10ms or more", o.Duration)
	case o.Seed > 1<<53-1:
		return o, fmt.Errorf("seed %d: want less than 2^53", o.Seed)
	}
	if o.Rounds == 0 {
		o.Rounds = rounds
	}
	if o.Duration == 0 {
		o.Duration = duration
	}
	if o.Warmup == 0 {
		o.Warmup = o.Duration / 3
	}
	if o.Seed == 0 && o.counts() {
		o.Seed = 1 // a run is the same each time
	}
	for o.Seed == 0 {
		o.Seed = rand.Uint64N(1 << 32) // short enough to be typed
	}
	if _, err := o.CPUs.resolve(); err != nil {
		return o, err
	}
	if o.Peer != nil {
		if err := o.Peer.check(); err != nil {
			return o, err
		}
	}
	cells, err := o.selected()
	if err != nil {
		return o, err
	}
	return o, o.checkWire(cells)
}

// checkWire returns an error if no wire can be as asked for, or none is measured.
func (o Options) checkWire(cells []cell) error {
	if o.WireRate == 0 && o.WireDelay == 0 {
		return nil
	}
	if !slices.ContainsFunc(cells, func(c cell) bool { return c.path.crossesWire() }) {
		return fmt.Errorf("wire rate and wire delay: none of these rows of %s crosses a wire", o.name())
	}
	return lab.CheckWire(o.WireRate, o.WireDelay)
}

// Validate returns an error that names the first option that makes no sense. It
// touches nothing.
func (o Options) Validate() error {
	_, err := o.withDefaults()
	return err
}

// cell is a row that is measured: a path under a workload.
type cell struct {
	suite    string
	path     path
	workload workload
}

// name is that of the suite, or of all.
func (o Options) name() string {
	if len(o.Suites) == 1 {
		return o.Suites[0].Name
	}
	return All
}

// selected returns the cells that Only selects, in the suites' order.
func (o Options) selected() ([]cell, error) {
	used := make([]bool, len(o.Only))
	var cells []cell
	for _, c := range o.cells() {
		keep := len(o.Only) == 0
		for i, pattern := range o.Only {
			ok, err := matches(pattern, c.path.id, c.path.id+" "+c.workload.String(), c.path.id+" "+c.workload.name)
			if err != nil {
				return nil, fmt.Errorf("only %q: %w", pattern, err)
			}
			keep, used[i] = keep || ok, used[i] || ok
		}
		if keep {
			cells = append(cells, c)
		}
	}
	for i, pattern := range o.Only {
		if !used[i] {
			return nil, fmt.Errorf("only %q: no row of %s (see --list)", pattern, o.name())
		}
	}
	return cells, nil
}

// cells returns all rows of all suites.
func (o Options) cells() []cell {
	var cells []cell
	for _, suite := range o.Suites {
		for _, w := range o.workloads(suite) {
			for _, p := range suite.paths {
				if p.plugin != nil {
					p.lab.Disk = o.disk()
				}
				if p.crossesWire() {
					p.lab.WireRate, p.lab.WireDelay = o.WireRate, o.WireDelay
				}
				if o.Peer != nil {
					p = o.Peer.way(p)
				}
				cells = append(cells, cell{suite.Name, p, w})
			}
		}
	}
	return cells
}

// disk is the output directory as an absolute path.
func (o Options) disk() string {
	path, err := filepath.Abs(o.Out)
	if err != nil { // there is no working directory
		return ""
	}
	return path
}

// matches reports whether one of the names is, begins with (up to a slash or a
// space) or matches the pattern.
func matches(pattern string, names ...string) (bool, error) {
	for _, name := range names {
		ok, err := glob.Match(pattern, name)
		if err != nil || ok {
			return ok, err
		}
		if len(name) > len(pattern) && name[:len(pattern)] == pattern && (name[len(pattern)] == '/' || name[len(pattern)] == ' ') {
			return true, nil
		}
	}
	return false, nil
}
