// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"mustang/internal/lab"
	"mustang/internal/result"
	"mustang/internal/traffic"
)

// What is counted in one sample: few enough to be quick in an emulated machine,
// and so many that what begins and ends a sample is lost in them.
const (
	countSize         = 200  // bytes of a datagram: small, so that the path is what costs
	countWindow       = 32   // datagrams in flight: they fit any queue, so none is lost
	countPackets      = 1024 // a multiple of the window
	countTransactions = 512
	countSettle       = 256 // before either: caches, connection entries, slow start
	countProof        = 64  // of a sample that only proves the path
)

// Real-time priorities of the agents where instructions are counted. A client
// that is never interrupted by its server sends a whole window before the server
// runs, so that each sample is the same sequence of events. Otherwise the
// scheduler decides anew each time, and samples differ by some per cent.
const (
	clientPriority = 2
	serverPriority = 1
)

// counts reports whether instructions are counted in the place of time.
func (o Options) counts() bool { return o.Count == result.ClockInstructions }

// clock is what figures are made of.
func (o Options) clock() string {
	if o.counts() {
		return result.ClockInstructions
	}
	return result.ClockTime
}

// workloads are what every path of a suite is measured with.
func (o Options) workloads(s Suite) []workload {
	if s.calls() {
		return o.callWorkloads(s)
	}
	if o.counts() {
		return []workload{{name: traffic.UDPStream, flows: 1}, tcpRR()}
	}
	return s.workloads
}

// missing returns why a path can't be measured here, nil if nothing is known to
// be in the way.
func (o Options) missing(p path) error {
	if o.counts() && p.plugin != nil {
		return errNotCounted
	}
	if o.counts() && p.lab.Guests {
		return errors.New("instructions of a virtual machine inside of a virtual machine can't be told")
	}
	if o.Peer != nil && p.fromHost() {
		return nil
	}
	if o.Peer != nil && p.lab.Topology != podToNetwork {
		return errNotFromHere
	}
	return p.probe()
}

// spec is what a client runs for one sample of a cell.
func (o Options) spec(c cell) traffic.Spec {
	if c.path.plugin != nil {
		return o.callSpec(c)
	}
	spec := traffic.Spec{Workload: c.workload.name, Target: c.path.connect}
	if !o.counts() {
		spec.Duration, spec.Warmup = o.Duration, o.Warmup
		spec.Flows, spec.Rate = c.workload.flows, c.workload.rate
		return spec
	}
	spec.Exact, spec.Settle, spec.Limit = true, countSettle, countTransactions
	if c.workload.name == traffic.UDPStream {
		spec.Size, spec.Window, spec.Limit = countSize, countWindow, countPackets
	}
	return spec
}

// proof is what a client runs to show that its path is what it claims.
func (o Options) proof(c cell) traffic.Spec {
	spec := o.spec(c)
	if c.path.plugin != nil {
		spec.Limit = 1
		return spec
	}
	if o.counts() {
		spec.Settle, spec.Limit = 0, countProof
		return spec
	}
	spec.Duration, spec.Warmup = proofDuration, proofDuration/2
	if spec.Rate > proofRate {
		spec.Rate, spec.Duration = proofRate, 5*proofDuration
	}
	return spec
}

// figure is what a sample says of its row.
type figure struct {
	value         float64
	unit, cpuUnit string
	cpu, softirqs float64 // per cpuUnit
}

// timed reports whether the sample's clock shows time.
func (f figure) timed() bool {
	return f.unit != result.UnitPerPacket && f.unit != result.UnitPerTransaction
}

// figure makes of a measurement what its row holds.
func (o Options) figure(m traffic.Measurement) (figure, error) {
	if !o.counts() {
		return figure{m.Rate, m.Unit, m.CPUUnit, m.CPUMicrosPerUnit(), m.SoftirqsPerUnit()}, nil
	}
	f := figure{unit: result.UnitPerTransaction, cpuUnit: "transaction"}
	count := m.Count
	if m.Workload == traffic.UDPStream {
		f.unit, f.cpuUnit, count = result.UnitPerPacket, "packet", m.Received
		if m.Received < m.Sent {
			return figure{}, fmt.Errorf("%d of %d packets were lost, their cost can't be told", m.Sent-m.Received, m.Sent)
		}
	}
	if count == 0 || m.BusyNanos == 0 {
		return figure{}, errors.New("nothing was counted")
	}
	f.value = float64(m.BusyNanos) / float64(count)
	f.softirqs = float64(m.Machine.NetRX+m.Machine.NetTX) / float64(count)
	return f, nil
}

// groups are the rows that stand side by side: all of a suite, so that their
// rounds can be interleaved, or, where instructions are counted and no machine has
// moods, those of one lab after those of another, so that none adds to the work of
// others.
func (r *run) groups() [][]*tally {
	type together struct {
		suite string
		lab   lab.Options
	}
	var keys []together
	groups := map[together][]*tally{}
	for _, row := range r.rows {
		key := together{suite: row.cell.suite}
		if r.options.counts() {
			key.lab = row.cell.path.lab
		}
		if groups[key] == nil {
			keys = append(keys, key)
		}
		groups[key] = append(groups[key], row)
	}
	var out [][]*tally
	for _, key := range keys {
		out = append(out, groups[key])
	}
	return out
}

// release ends the agents and the labs of rows that are done.
func (s *stand) release(rows []*tally) error {
	var errs []error
	if s.peer != nil {
		errs = append(errs, s.peer.leave())
	}
	s.endPlugins()
	for _, row := range rows {
		o := row.cell.path.lab
		for key, agent := range s.agents {
			if key.lab == o {
				errs = append(errs, agent.Close())
				delete(s.agents, key)
			}
		}
		if l := s.labs[o]; l != nil {
			errs = append(errs, l.Close())
			delete(s.labs, o)
		}
	}
	return errors.Join(errs...)
}

// priority is that of the agent of a key, 0 where time is measured.
func (s *stand) priority(key agentKey) int {
	switch {
	case !s.counting:
		return 0
	case key.listen.IsValid():
		return serverPriority
	}
	return clientPriority
}

// describeGroup names rows, of which there may be many.
func describeGroup(rows []*tally) string {
	var ids []string
	for _, row := range rows {
		if id := row.row.ID; !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	if len(ids) <= 3 {
		return strings.Join(ids, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(ids[:2], ", "), len(ids)-2)
}
