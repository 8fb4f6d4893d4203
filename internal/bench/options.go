// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"path/filepath"
	"slices"
	"time"

	"mustang/internal/bench/host"
	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/result"
)

// Options configures a run.
type Options struct {
	// Suites are the suites to run, one after the other.
	Suites []suites.Suite
	// Rounds is the number of samples of each row, at most [result.MaxSamples]; 0 means 10.
	Rounds int
	// Duration is the measured time of one sample, at most an hour; 0 means 300 ms.
	Duration time.Duration
	// Warmup is the time before it that is not counted; 0 means a third of
	// Duration.
	Warmup time.Duration
	// WireRate and WireDelay are those of the wire between two hosts, in bits per
	// second and for each direction; 0 is unlimited.
	WireRate  uint64
	WireDelay time.Duration
	// Peer, if not nil, is another machine that replaces the second host of a lab.
	Peer *PeerOptions
	// Only selects rows whose ID, or "ID workload", matches one of these patterns
	// (path.Match, where * stops at a slash) or begins with one; empty selects all.
	Only []string
	// Seed determines the order of rows and the bootstrap; 0 means a random one, and
	// always the same where instructions are counted.
	Seed uint64
	// Count, if it is [result.ClockInstructions], counts the instructions of each
	// packet and transaction instead of measuring time. It requires an emulated
	// machine with one CPU whose clock counts instructions, see [clock.CheckCounting].
	Count string
	// Quick makes the run take less than a minute; it sets Rounds and Duration
	// where they are 0.
	Quick bool
	// CPUs are those of clients and servers.
	CPUs host.CPUPair
	// Out is the directory for [ResultsName]. It is created if it does not exist.
	Out string
	// Store is where labs are recorded.
	Store lab.Store
	// Exe is the program to start as load agent; empty means this one.
	Exe string
	// Progress receives the progress of the run.
	Progress Reporter
}

// suiteName returns the name of the suite, or [suites.All] if there are several.
func (o Options) suiteName() string {
	if len(o.Suites) == 1 {
		return o.Suites[0].Name
	}
	return suites.All
}

// counting reports whether instructions are counted instead of time.
func (o Options) counting() bool { return o.Count == result.ClockInstructions }

// clock returns the clock of the run, as in a result file.
func (o Options) clock() string {
	if o.counting() {
		return result.ClockInstructions
	}
	return result.ClockTime
}

// timed reports whether any sample takes Duration.
func (o Options) timed() bool {
	traffic := func(s suites.Suite) bool { return !s.CallsPlugins() }
	return !o.counting() && slices.ContainsFunc(o.Suites, traffic)
}

// disk returns the output directory as an absolute path, "" if there is no working
// directory.
func (o Options) disk() string {
	path, err := filepath.Abs(o.Out)
	if err != nil {
		return ""
	}
	return path
}
