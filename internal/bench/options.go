// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"mustang/internal/bench/host"
	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/result"
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
	// Count, if it is [result.ClockInstructions], counts the instructions of each packet and transaction , not time. It
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

// clusterSlice is the length of turns in a cluster. Most rounds change between the agents of several pods, which takes
// milliseconds: the way of a message through the API server.
const clusterSlice = 20 * time.Millisecond

// clusterLead is the part of a stream's turn that comes before it and is not counted. In pods, TCP begins slowly after
// each pause (net.ipv4.tcp_slow_start_after_idle).
const clusterLead = 4
