// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"mustang/internal/bench/host"
	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/result"
	"mustang/internal/suggest"
)

// Options configures a run.
type Options struct {
	Suites []suites.Suite // the suites to run, one after the other
	// Rounds is the number of samples of each row, at most [result.MaxSamples]; 0 means as many as Time allows, or 10
	// where rows do not take turns in slices.
	Rounds int
	// Time is the time for a suite whose rows take turns, with the building of its
	// networks; 0 means 170 s, 30 s with Quick, or 10 minutes with Until. Rounds replaces it.
	Time time.Duration
	// Until, if not 0, ends a suite early when no interval of a ratio extends further than this share: 0.005 is 0.5 %.
	Until float64
	// Slice is the length of a turn. Each sample has two turns. 0 means 1 ms, and longer where a path needs it.
	Slice time.Duration
	// Duration is the measured time of one sample of a path to a peer, at
	// most an hour; 0 means 300 ms. It is whole seconds where a suite's paths are measured
	// by further engines ([suites.Beside]), where 0 means 1 s. A third of it comes before, and is not counted.
	Duration time.Duration
	batch    int // the number of calls of plugins in a sample; 0 means the usual one
	// WireRate and WireDelay set the wire between two hosts, in bits per second and for each direction; 0 is unlimited.
	WireRate  uint64
	WireDelay time.Duration
	// Peer, if not nil, is another machine that replaces the second host of a lab.
	Peer *PeerOptions
	// Cluster, if not nil, has the pods that are the ends of all paths. The suites are of that cluster.
	Cluster Cluster
	// Only selects rows whose ID, or "ID workload", matches one of these patterns (path.Match, where * stops at a
	// slash) or begins with one. Empty selects the usual rows. The ID of a row selects that row, its repetition, and
	// the same row by further engines.
	Only []string
	All  bool // selects all rows of suites, also rows with [suites.Path.Extra]
	// Seed determines the order of rows; 0 means a random one, and always the same where instructions are counted.
	Seed uint64
	// Count, if it is [result.ClockInstructions], counts the instructions of each packet and transaction, not time. It
	// requires an emulated machine with one CPU whose clock counts instructions, see [clock.CheckCounting].
	Count string
	// Quick has fewer rows and workloads, for 30 s a suite whose rows take turns; it sets Time and Duration if they are 0.
	Quick    bool
	CPUs     host.CPUPair // the CPUs of clients and servers
	Out      *result.Dir  // the run's directory, which gets the result
	Store    lab.Store    // where labs are recorded
	Progress *Progress    // receives the progress of the run
}

func (o Options) suiteName() string {
	if len(o.Suites) == len(suites.List()) {
		return suites.All
	}
	return strings.Join(convert(o.Suites, func(s suites.Suite) string { return s.Name }), " ")
}

func (o Options) counting() bool { return o.Count == result.ClockInstructions }

// sliced reports whether the rows of a suite take turns in slices. Calls of plugins, counted instructions and paths
// that further engines measure do not. Nor do paths to a peer, since labs connect to its network one at a time.
func (o Options) sliced(s suites.Suite) bool {
	return !s.CallsPlugins() && !o.counting() && o.Peer == nil && !s.BesideEngines()
}

func (o Options) anySliced() bool { return slices.ContainsFunc(o.Suites, o.sliced) }

func (o Options) anyEngine() bool { return slices.ContainsFunc(o.Suites, suites.Suite.BesideEngines) }

// disk returns the run's directory as an absolute path, "" without a run's directory or a working directory.
func (o Options) disk() string {
	if o.Out == nil {
		return ""
	}
	path, _ := filepath.Abs(o.Out.Path)
	return path
}

func convert[T, U any](all []T, to func(T) U) (out []U) {
	for _, item := range all {
		out = append(out, to(item))
	}
	return out
}

// Cluster is a Kubernetes cluster that replaces labs: clients and servers run in its pods.
type Cluster interface {
	// Agent returns how to start an agent in a pod.
	Agent(pod string) load.AgentOptions
	// Describe replaces the description of this machine in the head of a result file with the description of the nodes.
	Describe(head *result.Run)
}

// ClusterSlice is the length of turns in a cluster. Most rounds change between the agents of several pods, which takes
// milliseconds: the way of a message through the API server. Labs that are compared with a cluster take equal turns.
const ClusterSlice = 20 * time.Millisecond

// clusterLead is the part of a stream's turn that comes before it and is not counted. In pods, TCP begins slowly after
// each pause (net.ipv4.tcp_slow_start_after_idle).
const clusterLead = 4

// Validate returns an error that names the first invalid option. It changes nothing on the machine.
func (o Options) Validate() error {
	_, err := o.withDefaults()
	return err
}

func (o Options) withDefaults() (Options, error) {
	switch {
	case o.Count != "" && !o.counting():
		return o, fmt.Errorf("--count %q: want %q", o.Count, result.ClockInstructions)
	case o.counting() && o.Duration > 0:
		return o, fmt.Errorf("--duration %v: where instructions are counted, a sample is a number of packets", o.Duration)
	case o.counting() && o.Peer != nil:
		return o, errors.New("--peer: instructions of two machines cannot be counted")
	case o.Rounds < 0 || o.Rounds > result.MaxSamples:
		return o, fmt.Errorf("--rounds %d: want 1 to %d", o.Rounds, result.MaxSamples)
	case o.Duration != 0 && (o.Duration < 10*time.Millisecond || o.Duration > time.Hour):
		return o, fmt.Errorf("--duration %v: want 10ms to 1h", o.Duration)
	case o.Duration > 0 && o.Peer == nil && !o.counting() && !o.anyEngine():
		return o, fmt.Errorf(
			"--duration %v: it is for --peer and --engine; elsewhere rows take turns, see --slice and --time", o.Duration)
	case o.anyEngine() && o.checkEngines() != nil:
		return o, o.checkEngines()
	case o.Slice < 0 || (o.Slice > 0 && o.Slice < time.Millisecond) || o.Slice > maxSlice:
		return o, fmt.Errorf("--slice %v: want 1ms to %v", o.Slice, maxSlice)
	case o.Time < 0 || o.Time > maxTime:
		return o, fmt.Errorf("--time %v: want more than 0 and at most %v", o.Time, maxTime)
	case o.Until < 0 || o.Until >= 1:
		return o, fmt.Errorf("--until %g%%: want more than 0%% and less than 100%%", o.Until*100)
	case o.Until > 0 && o.Rounds > 0:
		return o, errors.New("--rounds and --until exclude each other")
	case o.Seed > 1<<53-1:
		return o, fmt.Errorf("--seed %d: want less than 2^53", o.Seed)
	}
	if o.anyEngine() {
		o.Duration = cmp.Or(o.Duration, engineTurn)
		if o.Time == 0 && o.Rounds == 0 {
			o.Rounds = minInterval
		}
	}
	if o.Cluster != nil {
		o.Slice = cmp.Or(o.Slice, ClusterSlice)
	}
	switch {
	case o.Until > 0:
		o.Time, o.Duration = cmp.Or(o.Time, 10*time.Minute), cmp.Or(o.Duration, 300*time.Millisecond)
	case o.Quick:
		o.Time, o.Duration = cmp.Or(o.Time, 30*time.Second), cmp.Or(o.Duration, 60*time.Millisecond)
	default:
		o.Time, o.Duration = cmp.Or(o.Time, 170*time.Second), cmp.Or(o.Duration, 300*time.Millisecond)
	}
	if o.Seed == 0 && o.counting() {
		o.Seed = 1 // runs are repeatable
	}
	for o.Seed == 0 {
		o.Seed = rand.Uint64N(1 << 32) // short enough to type
	}
	if _, err := o.CPUs.Resolve(); err != nil {
		return o, fmt.Errorf("--cpus: %w", err)
	}
	if o.Peer != nil {
		if err := o.Peer.check(); err != nil {
			return o, err
		}
	}
	specs, err := o.selected()
	if err != nil {
		return o, err
	}
	for _, s := range specs {
		setup := s.workload.Setup
		if (setup.Reverse || setup.Paced()) && !o.sliced(s.suite) || setup != (result.Setup{}) && o.anyEngine() {
			return o, fmt.Errorf("workload %q: not with --peer or --engine", s.workload)
		}
		if o.Slice > 0 && setup.Rate > 0 && o.Slice < time.Second/time.Duration(setup.Rate) {
			return o, fmt.Errorf("--slice %v: at %d requests per second some turns have none", o.Slice, setup.Rate)
		}
	}
	return o, o.checkWire(specs)
}

const maxSlice = time.Second // the greatest length of a turn: compared turns must lie close together

const maxTime = 24 * time.Hour

const engineTurn = time.Second // the default time of an engine's sample: the least that iperf3 takes

func (o Options) rounds() int {
	switch {
	case o.Rounds > 0:
		return o.Rounds
	case o.Quick || o.counting(): // counted samples differ by less than 0.1 %
		return minInterval
	}
	return 10
}

func (o Options) checkEngines() error {
	switch {
	case o.Peer != nil:
		return errors.New("--engine: with --peer only the native one runs")
	case o.counting():
		return errors.New("--engine: instructions are counted with the native one only")
	case o.Until > 0:
		return errors.New("--until: engines are compared for a number of rounds or a time")
	case o.Duration%time.Second != 0:
		return fmt.Errorf("--duration %v: engines take whole seconds", o.Duration)
	}
	return nil
}

func (o Options) checkWire(specs []rowSpec) error {
	if o.WireRate == 0 && o.WireDelay == 0 {
		return nil
	}
	if !slices.ContainsFunc(specs, func(s rowSpec) bool { return s.path.TwoHosts() }) {
		return fmt.Errorf("--wire-rate, --wire-delay: no selected row of %s crosses a wire, as in suites overlay and switching",
			o.suiteName())
	}
	return lab.CheckWire(o.WireRate, o.WireDelay)
}

func (o Options) selected() ([]rowSpec, error) {
	all, used := o.rowSpecs(), make([]bool, len(o.Only))
	var known []string
	ids := map[[2]string]bool{} // suites and paths
	for _, s := range all {
		link, _, _ := strings.Cut(s.path.ID, "/")
		for _, name := range []string{link, s.path.ID} {
			if !slices.Contains(known, name) {
				known = append(known, name)
			}
		}
		ids[[2]string{s.suite.Name, s.path.ID}] = true
	}
	var specs []rowSpec
	for _, s := range all {
		keep := len(o.Only) == 0 && o.usual(s.suite, s.path)
		for i, pattern := range o.Only {
			ok, err := matches(pattern, s.path.ID, s.name(), s.path.ID+" "+s.workload.Name, cmp.Or(s.path.Label, s.path.ID))
			if err != nil {
				return nil, fmt.Errorf("--only %q: %w", pattern, err)
			}
			ok = ok && (!ids[[2]string{s.suite.Name, pattern}] || s.path.IsRow(pattern))
			keep, used[i] = keep || ok, used[i] || ok
		}
		if keep {
			specs = append(specs, s)
		}
	}
	if i := slices.Index(used, false); i >= 0 {
		hint := fmt.Sprintf(" (see mustang bench --list %s)", o.suiteName())
		if o.suiteName() == suites.ClusterName {
			hint = ": want " + strings.Join(known, ", ")
		}
		return nil, fmt.Errorf("--only %q: no such row in %s%s%s", o.Only[i], o.suiteName(), hint,
			suggest.Text(o.Only[i], known))
	}
	return specs, nil
}

// Rows returns the rows that the run has, in the order of the suites. The error names a pattern in Only without rows.
func (o Options) Rows() ([]result.Row, error) {
	specs, err := o.selected()
	return convert(specs, func(s rowSpec) result.Row { return s.path.Row(s.suite.Name, s.workload) }), err
}

func (o Options) rowSpecs() (specs []rowSpec) {
	for _, suite := range o.Suites {
		for _, w := range o.workloads(suite) {
			for _, p := range suite.Paths {
				if !suite.Has(p, w) || p.Long && o.Quick {
					continue
				}
				if p.Plugin != nil {
					p.Lab.Disk = o.disk()
				}
				if p.TwoHosts() {
					p.Lab.WireRate, p.Lab.WireDelay = cmp.Or(o.WireRate, p.Lab.WireRate), cmp.Or(o.WireDelay, p.Lab.WireDelay)
				}
				if o.Peer != nil {
					p = p.ToPeer(o.Peer.Uplink)
				}
				specs = append(specs, rowSpec{suite, p, w})
			}
		}
	}
	return specs
}

// matches reports whether a pattern matches one of the names, or their beginning up to a slash or a space.
func matches(pattern string, names ...string) (bool, error) {
	for _, name := range names {
		if ok, err := path.Match(pattern, name); err != nil || ok {
			return ok, err
		}
		if rest, found := strings.CutPrefix(name, pattern); found && rest != "" && (rest[0] == '/' || rest[0] == ' ') {
			return true, nil
		}
	}
	return false, nil
}
