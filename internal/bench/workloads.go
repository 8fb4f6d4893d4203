// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
)

// proofDuration is the measured time of a sample that only proves its path. proofRate is the rate of its UDP streams
// in bits per second, which any path carries.
const (
	proofDuration = 10 * time.Millisecond
	proofRate     = 20e6
)

// Number of calls of a CNI plugin in one sample.
const (
	sequentialCalls      = 20
	quickSequentialCalls = 10
	quickConcurrentCalls = 20
)

// Estimated time of a sample, for the display of the time left.
const (
	overhead  = 25 * time.Millisecond // beyond the duration and warm-up of traffic
	callsTime = time.Second           // ADD or DEL of one batch of calls
)

func (o Options) workloads(s suites.Suite) []suites.Workload {
	switch {
	case o.counting() && !s.CallsPlugins():
		return countedWorkloads(s)
	case !o.Quick:
		return s.Workloads
	}
	var quick []suites.Workload
	for _, w := range s.Workloads {
		if s.CallsPlugins() && w.Flows > 1 {
			w.Flows = cmp.Or(o.batch, quickConcurrentCalls)
		}
		if len(s.QuickWorkloads) == 0 || slices.Contains(s.QuickWorkloads, w.Name) {
			quick = append(quick, w)
		}
	}
	if len(quick) == 0 {
		return s.Workloads
	}
	return quick
}

func (o Options) usual(s suites.Suite, p suites.Path) bool {
	switch {
	case o.All:
		return true
	case o.Quick && len(s.QuickPaths) > 0:
		return slices.Contains(s.QuickPaths, p.ID)
	}
	return !p.Extra
}

func (o Options) calls(w suites.Workload) int {
	switch {
	case w.Flows > 1:
		return w.Flows
	case o.Quick:
		return cmp.Or(o.batch, quickSequentialCalls)
	}
	return sequentialCalls
}

func (o Options) spec(p suites.Path, w suites.Workload) load.Spec {
	if o.counting() {
		return countedSpec(p, w)
	}
	spec := w.Spec(p)
	spec.Duration, spec.Warmup = o.Duration, o.Duration/3
	return spec
}

func (o Options) proofSpec(p suites.Path, w suites.Workload) load.Spec {
	spec := o.spec(p, w)
	if o.counting() {
		spec.Settle, spec.Limit = 0, proofPackets
		return spec
	}
	spec.Duration, spec.Warmup = proofDuration, proofDuration/2
	spec.Reverse, spec.Pace, spec.LoadShare = false, 0, 0
	if spec.Rate > proofRate {
		spec.Rate, spec.Duration = proofRate, 5*proofDuration
	}
	return spec
}

func (o Options) sampleTime(p suites.Path) time.Duration {
	if p.Plugin != nil {
		return callsTime
	}
	return o.Duration + o.Duration/3 + overhead
}

// Reasons to skip a row.
var (
	errCallsNotCounted = errors.New("calls of plugins are timed, their instructions are not counted")
	errOneCPU          = errors.New("instructions are counted on one CPU")
	errNestedVM        = errors.New("instructions of a virtual machine within a virtual machine cannot be counted")
	errNotToPeer       = errors.New("with --peer only paths from this machine itself are measured, " +
		"and with --uplink and --uplink-addresses those from a pod to another host (suite latency)")
)

// unsupported returns the reason why a path cannot be measured, nil if it can.
func (o Options) unsupported(p suites.Path) error {
	switch {
	case o.Cluster != nil && p.Skip == "":
		return nil
	case o.counting() && p.Plugin != nil:
		return errCallsNotCounted
	case o.counting() && p.Lab.Guests:
		return errNestedVM
	case p.TwoCPUs && o.counting():
		return errOneCPU
	case p.TwoCPUs:
		cpus, err := o.CPUs.Resolve()
		if err == nil {
			_, err = cpus.Other()
		}
		return err
	case o.Peer != nil && p.HostToHost():
		return nil
	case o.Peer != nil && p.Lab.Topology != lab.TopologyPodToNetwork:
		return errNotToPeer
	}
	return p.Probe()
}

// Size of a sample where instructions are counted: few enough packets to be fast in an
// emulated machine, and enough to make its start and end negligible.
const (
	countedSize         = 200  // bytes of a datagram: small, so that the path dominates
	countedWindow       = 32   // datagrams in flight: any queue holds them, so none is lost
	countedPackets      = 1024 // a multiple of countedWindow
	countedTransactions = 512
	settlePackets       = 256 // before either: caches, connection entries, slow start
	proofPackets        = 64  // of a sample that only proves its path
)

// Real-time priorities of agents where instructions are counted. A client that its server never preempts sends a whole
// window before the server runs, so that each sample is the same sequence of events. Otherwise scheduling varies, and
// samples differ by some per cent.
const (
	clientPriority = 2
	serverPriority = 1
	// relayPriority is the priority of programs that forward packets, such as the relay of a TUN device. Each stage of
	// the path processes the output of the one before.
	relayPriority = serverPriority
)

// countedWorkloads are a suite's workloads where instructions are counted. Network policies of a suite allow TCP alone.
func countedWorkloads(s suites.Suite) []suites.Workload {
	all := []suites.Workload{{Name: load.UDPStream, Flows: 1}, {Name: load.TCPRR, Flows: 1}}
	if slices.ContainsFunc(s.Paths, func(p suites.Path) bool { return p.Lab.Policy != "" }) {
		return all[1:]
	}
	return all
}

func countedSpec(p suites.Path, w suites.Workload) load.Spec {
	spec := load.Spec{
		Workload: w.Name, Target: p.Connect, Exact: true, Settle: settlePackets, Limit: countedTransactions,
	}
	if w.Name == load.UDPStream {
		spec.Size, spec.Window, spec.Limit = countedSize, countedWindow, countedPackets
	}
	return spec
}
