// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"

	"mustang/internal/bench/cnibench"
	"mustang/internal/bench/evidence"
	"mustang/internal/bench/stats"
	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/load/clock"
	"mustang/internal/result"
)

// rowSpec says what a row measures: a path of a suite under a workload.
type rowSpec struct {
	suite    suites.Suite
	path     suites.Path
	workload suites.Workload
}

// name names the row in messages, and for [Options.Only].
func (s rowSpec) name() string { return s.path.ID + " " + s.workload.String() }

type measuredRow struct {
	spec      rowSpec
	row       result.Row
	byRound   map[int]int      // index of a round's sample
	positions []stats.Position // of the samples of a row that takes turns
	offered   []float64
	callRates []float64 // calls a second, of concurrent calls
	// sent and received count datagrams, transactions or connections.
	sent, received uint64
	histogram      *hdrhistogram.Histogram
	proof          result.Evidence // of the first small run over the path, which ran alone
	// machine is the machine's time in all samples, and units what they transferred.
	machine clock.MachineTime
	units   float64
	slice   time.Duration // length of its turns, 0 until the first instance
	every   int           // the row takes part in one of so many rounds; 0 means 1
}

// cpuMB is the unit of the CPU time of streams, 1e6 bytes.
const cpuMB = "MB"

func newRow(spec rowSpec) *measuredRow {
	return &measuredRow{spec: spec, row: spec.path.Row(spec.suite.Name, spec.workload), byRound: map[int]int{}}
}

// sample is one run of a row that takes no turns.
type sample struct {
	measurement load.Measurement
	evidence    result.Evidence
	lab         *lab.Lab // nil if there is none
}

func (r *measuredRow) add(s sample, round int) {
	m := s.measurement
	r.row.Unit, r.row.CPUUnit = m.Unit, m.CPUUnit
	r.byRound[round] = len(r.row.Samples)
	r.row.Samples = append(r.row.Samples, m.Rate)
	if m.Offered > 0 {
		r.offered = append(r.offered, m.Offered)
	}
	if m.CPUUnit == cnibench.CallUnit && m.Flows > 1 {
		r.callRates = append(r.callRates, float64(m.Count)/m.Seconds)
	}
	r.machine.Add(m.Machine)
	r.units += m.Units
	r.sent += m.Sent
	r.received += m.Received
	r.row.OutOfOrder += m.OutOfOrder
	r.setVariant(s.lab)
	r.addEpoch(m, s.evidence, false)
}

// setVariant completes the row's variant with properties of its lab that are known once it is up.
func (r *measuredRow) setVariant(l *lab.Lab) {
	if l != nil {
		r.row.Variant = suites.Variant(r.spec.path.Variant, l.OVSDatapath(), l.Acceleration())
	}
}

// addTurns adds the sample of a round: the rate over all its turns.
func (r *measuredRow) addTurns(at stats.Position, round int, turns ...load.SliceResult) {
	var sum load.SliceResult
	for _, t := range turns {
		seconds := sum.Seconds + t.Seconds
		sum.AddFlow(t)
		sum.Seconds = seconds
		r.machine.Add(t.Machine)
	}
	value, units := float64(sum.Count)/sum.Seconds, float64(sum.Count)
	r.row.Unit, r.row.CPUUnit = result.UnitTransactions, "transaction"
	switch name := r.spec.workload.Name; {
	case r.spec.workload.Setup.Paced():
		r.row.Unit = result.UnitMicroseconds
		r.offered = append(r.offered, float64(sum.Sent)/sum.Seconds)
		value = sum.LatencySeconds * 1e6 / float64(sum.Count)
		units = 0 // the client is busy while it waits
	case name == load.TCPStream || name == load.UDPStream:
		r.row.Unit, r.row.CPUUnit = result.UnitGbit, cpuMB
		value, units = value*8/1e9, units/1e6
		if sum.Received > 0 {
			r.offered = append(r.offered, value*float64(sum.Sent)/float64(sum.Received))
		}
	}
	r.units += units
	r.byRound[round] = len(r.row.Samples)
	r.row.Samples = append(r.row.Samples, rounded(value))
	r.place(at)
	r.sent += sum.Sent
	r.received += sum.Received
	r.row.OutOfOrder += sum.OutOfOrder
}

// place appends the position of a sample. In the file a run of neighbouring rounds is one position with a count.
func (r *measuredRow) place(at stats.Position) {
	r.positions = append(r.positions, at)
	next := result.Position{Lab: at.Lab, Process: at.Process, Connection: at.Connection, Round: at.Round, Count: 1}
	if n := len(r.row.Positions); n > 0 {
		last := &r.row.Positions[n-1]
		following := *last
		following.Round, following.Count = last.Round+last.Count, 1
		if following == next {
			last.Count++
			return
		}
	}
	r.row.Positions = append(r.row.Positions, next)
}

// rounded returns a figure with six digits: turns are not more exact.
func rounded(figure float64) float64 {
	figure, _ = strconv.ParseFloat(strconv.FormatFloat(figure, 'g', 6, 64), 64)
	return figure
}

// addEpoch adds what was counted in the life of a connection. The counters of flows that shared a lab are those of all
// of them, so the evidence of the row's own proof is kept in their place.
func (r *measuredRow) addEpoch(m load.Measurement, e result.Evidence, shared bool) {
	if shared {
		e.Devices, e.ProgramRuns = r.proof.Devices, r.proof.ProgramRuns
		r.proof.Devices, r.proof.ProgramRuns = nil, nil
	}
	evidence.Merge(&r.row.Evidence, e)
	if r.histogram == nil {
		r.histogram = m.Histogram
	} else if m.Histogram != nil {
		r.histogram.Merge(m.Histogram)
	}
}

func (r *measuredRow) class() string {
	p := r.spec.path
	switch {
	case p.Lab.Guests:
		return result.ClassGuests
	case p.ForwardsInUserSpace() || strings.Contains(r.row.Variant, suites.UserSpace):
		return result.ClassUserSpace
	case p.TwoCPUs:
		return result.ClassTwoCPUs
	}
	return result.ClassKernel
}

// position returns the position of a round's sample, that of the round alone if it has none.
func (r *measuredRow) position(round int) stats.Position {
	if i := r.byRound[round]; i < len(r.positions) {
		return r.positions[i]
	}
	return stats.Position{Round: round}
}

func (r *measuredRow) samples() []stats.Sample {
	var out []stats.Sample
	for i, value := range r.row.Samples {
		out = append(out, stats.Sample{Position: r.positions[i], Value: value})
	}
	return out
}

// addNote appends a remark to the row's note; an empty one changes nothing.
func (r *measuredRow) addNote(text string) { r.row.Note = joined(r.row.Note, text) }

// joined joins remarks, of which either may be empty.
func joined(note, further string) string {
	if note == "" || further == "" {
		return note + further
	}
	return note + "; " + further
}

// emptyNote is a remark on samples in which nothing arrived; empty if there are none.
func emptyNote(samples []float64) string {
	empty := 0
	for _, s := range samples {
		if s <= 0 {
			empty++
		}
	}
	if empty == 0 {
		return ""
	}
	return fmt.Sprintf("nothing arrived in %d of %d rounds: they are in neither figure nor ratios", empty, len(samples))
}

// skip marks the row as one that this machine cannot measure.
func (r *measuredRow) skip(reason error) {
	if lacking := (*lab.UnsupportedError)(nil); errors.As(reason, &lacking) {
		reason = lacking // without the lab's name
	}
	r.row.Status, r.row.Reason = result.StatusSkipped, oneLine(reason)
}

func (r *measuredRow) fail(reason error) {
	r.row.Status, r.row.Reason = result.StatusFailed, oneLine(reason)
}

func oneLine(err error) string {
	lines := strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Join(lines, "; ")
}

// done reports whether the row takes no more samples.
func (r *measuredRow) done() bool { return r.row.Status != "" }

// result returns the row as measured so far; false if it has neither samples nor a reason for having none.
func (r *measuredRow) result() (result.Row, bool) {
	row := r.row
	row.Label = r.spec.suite.Label(row)
	if len(row.Samples) == 0 {
		return row, row.Status != ""
	}
	if row.Status == "" {
		row.Status = result.StatusOK
	}
	if len(row.Positions) > 0 {
		estimate := stats.Summarize(r.samples())
		row.Median, row.CI95 = estimate.Value, ofEnough(estimate.Interval, len(row.Samples))
		row.Note = joined(row.Note, emptyNote(row.Samples))
	} else {
		row.Median, row.CI95 = summarize(row.Samples)
	}
	if m := r.machine; r.units > 0 {
		us := func(seconds float64) float64 { return max(seconds, 0) * 1e6 / r.units }
		row.CPUUSPerUnit = us(m.BusySeconds)
		row.Evidence.SoftirqsPerUnit = float64(m.NetRX+m.NetTX) / r.units
		if len(row.Positions) > 0 {
			row.CPUSplit = &result.CPUSplit{UserUS: us(m.UserSeconds), SystemUS: us(m.SystemSeconds),
				SoftirqUS: us(m.SoftirqSeconds)}
		}
	}
	row.Offered, row.CallsPerSecond = median(r.offered), median(r.callRates)
	if r.sent > r.received {
		row.Lost = r.sent - r.received
		row.LostShare = float64(row.Lost) / float64(r.sent)
	}
	if h := r.histogram; h != nil && h.TotalCount() > 0 {
		us := func(percentile float64) float64 { return float64(h.ValueAtPercentile(percentile)) / 1e3 }
		row.LatencyUS = &result.Latency{P50: us(50), P90: us(90), P99: us(99), P999: us(99.9)}
	}
	return row, true
}
