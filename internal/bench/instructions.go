// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"slices"

	"mustang/internal/bench/suites"
	"mustang/internal/load"
)

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

// Real-time priorities of agents where instructions are counted. A client that its
// server never preempts sends a whole window before the server runs, so that each
// sample is the same sequence of events. Otherwise scheduling varies, and samples
// differ by some per cent.
const (
	clientPriority = 2
	serverPriority = 1
	// relayPriority is that of programs that forward packets, such as the relay of a
	// TUN device: each stage of the path processes the output of the one before.
	relayPriority = serverPriority
)

// countedWorkloads returns the workloads of a suite where instructions are counted. Network policies of a suite allow TCP alone.
func countedWorkloads(s suites.Suite) []suites.Workload {
	all := []suites.Workload{{Name: load.UDPStream, Flows: 1}, {Name: load.TCPRR, Flows: 1}}
	if slices.ContainsFunc(s.Paths, func(p suites.Path) bool { return p.Lab.Policy != "" }) {
		return all[1:]
	}
	return all
}

// countedSpec returns the load of one sample.
func countedSpec(p suites.Path, w suites.Workload) load.Spec {
	spec := load.Spec{
		Workload: w.Name, Target: p.Connect, Exact: true, Settle: settlePackets, Limit: countedTransactions,
	}
	if w.Name == load.UDPStream {
		spec.Size, spec.Window, spec.Limit = countedSize, countedWindow, countedPackets
	}
	return spec
}
