// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"math"
	"slices"
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

// rowSpec identifies the subject of a row: a path of a suite under a workload.
type rowSpec struct {
	suite    suites.Suite
	path     suites.Path
	workload suites.Workload
}

func (s rowSpec) name() string { return s.path.ID + " " + s.workload.String() }

type measuredRow struct {
	spec           rowSpec
	row            result.Row
	byRound        map[int]int // index of a round's sample
	positions      []stats.Position
	cpu            []float64
	offered        []float64
	softirqs       []float64
	callsPerSecond []float64
	sent, received uint64 // datagrams, transactions or connections
	histogram      *hdrhistogram.Histogram
	proof          result.Evidence // the evidence of the proof of the path, in which the row ran alone
	// machine is the machine's time in the slices of all samples, and units is their transfer.
	machine  clock.MachineTime
	units    float64
	slice    time.Duration // the length of its turns, 0 until the first instance
	answered bool          // true once all questions that the row is part of are answered: it takes no more turns
	every    int           // the row takes part in one of this many rounds; 0 means 1
}

const cpuMB = "MB" // the unit of the CPU time of streams, 1e6 bytes

func newRow(spec rowSpec) *measuredRow {
	return &measuredRow{spec: spec, row: spec.path.Row(spec.suite.Name, spec.workload), byRound: map[int]int{}}
}

type sample struct {
	measurement load.Measurement
	figure      figure
	evidence    result.Evidence
	lab         *lab.Lab // nil if there is none
}

type figure struct {
	value         float64
	unit, cpuUnit string
	cpu, softirqs float64 // per cpuUnit
}

// timed reports whether the figure is based on time, not on instructions.
func (f figure) timed() bool {
	return f.unit != result.UnitPerPacket && f.unit != result.UnitPerTransaction
}

func (r *measuredRow) add(s sample, round int) {
	m, f := s.measurement, s.figure
	r.row.Unit, r.row.CPUUnit = f.unit, f.cpuUnit
	r.byRound[round] = len(r.row.Samples)
	r.row.Samples = append(r.row.Samples, f.value)
	r.cpu = append(r.cpu, f.cpu)
	r.softirqs = append(r.softirqs, f.softirqs)
	if m.Offered > 0 && f.timed() {
		r.offered = append(r.offered, m.Offered)
	}
	if f.cpuUnit == cnibench.CallUnit && m.Flows > 1 {
		r.callsPerSecond = append(r.callsPerSecond, float64(m.Count)/m.Seconds)
	}
	r.sent += m.Sent
	r.received += m.Received
	r.row.OutOfOrder += m.OutOfOrder
	evidence.Merge(&r.row.Evidence, s.evidence)
	r.setVariant(s.lab)
	if f.timed() {
		r.mergeHistogram(m.Histogram)
	}
}

func (r *measuredRow) setVariant(l *lab.Lab) {
	if l != nil {
		r.row.Variant = suites.Variant(r.spec.path.Variant, l.OVSDatapath(), l.Acceleration())
	}
}

func (r *measuredRow) mergeHistogram(h *hdrhistogram.Histogram) {
	if r.histogram == nil {
		r.histogram = h
	} else if h != nil {
		r.histogram.Merge(h)
	}
}

func (r *measuredRow) addTurns(at stats.Position, round int, turns ...load.SliceResult) {
	var sum load.SliceResult
	seconds := 0.0 // one turn after the other
	for _, t := range turns {
		sum.AddFlow(t)
		seconds += t.Seconds
		r.machine.Add(t.Machine)
	}
	value, units := float64(sum.Count)/seconds, float64(sum.Count)
	switch name := r.spec.workload.Name; {
	case r.spec.workload.Setup.Paced():
		r.row.Unit, r.row.CPUUnit = result.UnitMicroseconds, "transaction"
		r.offered = append(r.offered, float64(sum.Sent)/seconds)
		value = sum.LatencySeconds * 1e6 / float64(sum.Count)
		units = 0 // the client is busy while it waits
	case name == load.TCPStream || name == load.UDPStream:
		r.row.Unit, r.row.CPUUnit = result.UnitGbit, cpuMB
		value, units = value*8/1e9, units/1e6
	default:
		r.row.Unit, r.row.CPUUnit = result.UnitTransactions, "transaction"
	}
	r.units += units
	r.byRound[round] = len(r.row.Samples)
	r.row.Samples = append(r.row.Samples, rounded(value))
	r.place(at)
	if r.spec.workload.Name == load.UDPStream && sum.Received > 0 {
		r.offered = append(r.offered, value*float64(sum.Sent)/float64(sum.Received))
	}
	r.sent += sum.Sent
	r.received += sum.Received
	r.row.OutOfOrder += sum.OutOfOrder
}

func (r *measuredRow) place(at stats.Position) {
	r.positions = append(r.positions, at)
	if n := len(r.row.Positions); n > 0 {
		last := &r.row.Positions[n-1]
		if at == (stats.Position{
			Lab: last.Lab, Process: last.Process, Connection: last.Connection, Round: last.Round + last.Count,
		}) {
			last.Count++
			return
		}
	}
	r.row.Positions = append(r.row.Positions, result.Position{Lab: at.Lab, Process: at.Process, Connection: at.Connection,
		Round: at.Round, Count: 1})
}

// rounded returns a figure with six digits: turns are not more exact.
func rounded(figure float64) float64 {
	figure, _ = strconv.ParseFloat(strconv.FormatFloat(figure, 'g', 6, 64), 64)
	return figure
}

// addEpoch adds the counts from the opening of a connection to its end. If flows shared a lab, its evidence has the
// counters of all of them. The row then keeps the counters of its proof, in which it ran alone.
func (r *measuredRow) addEpoch(m load.Measurement, e result.Evidence, shared bool) {
	if shared {
		e.Devices, e.ProgramRuns = r.proof.Devices, r.proof.ProgramRuns
		r.proof.Devices, r.proof.ProgramRuns = nil, nil
	}
	evidence.Merge(&r.row.Evidence, e)
	r.mergeHistogram(m.Histogram)
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

func (r *measuredRow) figure(round int) float64 { return r.row.Samples[r.byRound[round]] }

func (r *measuredRow) samples() (out []stats.Sample) {
	for i, value := range r.row.Samples {
		out = append(out, stats.Sample{Position: r.positions[i], Value: value})
	}
	return out
}

func (r *measuredRow) against(base *measuredRow) stats.Comparison {
	return stats.Compare(pairUp(r, base, commonRounds(r, base)))
}

// rescale gives a resting row the figure that it would have had over the whole run: the figure of base, which went
// on, times their ratio. The samples of the row stay as they are.
func (r *measuredRow) rescale(row *result.Row, base *measuredRow) {
	factor := stats.Summarize(base.samples()).Value * r.against(base).Value / row.Median
	if !(factor > 0) || math.IsInf(factor, 0) {
		return
	}
	row.Median *= factor
	if row.CI95 != nil {
		row.CI95 = &[2]float64{row.CI95[0] * factor, row.CI95[1] * factor}
	}
}

func (r *measuredRow) addNote(text string) { r.row.Note = joined(r.row.Note, text) }

// joined joins two remarks. Either may be empty.
func joined(note, further string) string { return strings.Trim(note+"; "+further, "; ") }

func emptyNote(samples []float64) string {
	empty := len(slices.DeleteFunc(slices.Clone(samples), func(s float64) bool { return !(s <= 0) }))
	if empty == 0 {
		return ""
	}
	return fmt.Sprintf("nothing arrived in %d of %d rounds: they are in neither figure nor ratios", empty, len(samples))
}

func (r *measuredRow) skip(reason error) {
	if lacking := (*lab.UnsupportedError)(nil); errors.As(reason, &lacking) {
		reason = lacking // whatever the lab's name is
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

func (r *measuredRow) done() bool { return r.row.Status != "" }

func unfinished(rows []*measuredRow) []*measuredRow {
	return slices.DeleteFunc(slices.Clone(rows), (*measuredRow).done)
}

func pending(rows []*measuredRow) int { return len(unfinished(rows)) }

// result returns the row as measured so far; false if it lacks both samples and a reason.
func (r *measuredRow) result() (result.Row, bool) {
	row := r.row
	if row.Status == "" && len(row.Samples) > 0 {
		row.Status = result.StatusOK
	}
	row.Label = r.spec.suite.Label(row)
	if len(row.Samples) == 0 {
		return row, row.Status != ""
	}
	if len(row.Positions) > 0 {
		estimate := stats.Summarize(r.samples())
		row.Median, row.CI95 = estimate.Value, ofEnough(estimate.Interval, len(row.Samples))
		row.Note = joined(row.Note, emptyNote(row.Samples))
		if r.units > 0 {
			row.CPUUSPerUnit = max(r.machine.BusySeconds, 0) * 1e6 / r.units
			row.CPUSplit = splitCPU(r.machine, r.units)
			row.Evidence.SoftirqsPerUnit = float64(r.machine.NetRX+r.machine.NetTX) / r.units
		}
	} else {
		row.Median, row.CI95 = summarize(row.Samples)
		row.CPUUSPerUnit = median(r.cpu)
		row.Evidence.SoftirqsPerUnit = median(r.softirqs)
	}
	row.Offered, row.CallsPerSecond = median(r.offered), median(r.callsPerSecond)
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
