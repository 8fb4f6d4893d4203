// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"strings"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"

	"mustang/internal/bench/cnibench"
	"mustang/internal/bench/evidence"
	"mustang/internal/bench/suites"
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

// measuredRow is a row with its samples so far.
type measuredRow struct {
	spec           rowSpec
	row            result.Row
	byRound        map[int]float64
	cpu            []float64
	offered        []float64
	softirqs       []float64
	callsPerSecond []float64
	sent, received uint64 // datagrams
	histogram      *hdrhistogram.Histogram
}

// newRow returns a row without samples.
func newRow(spec rowSpec) *measuredRow {
	return &measuredRow{spec: spec, row: spec.path.Row(spec.suite.Name, spec.workload), byRound: map[int]float64{}}
}

// add adds the sample of a round.
func (r *measuredRow) add(s sample, round int) {
	m, f := s.measurement, s.figure
	r.row.Unit, r.row.CPUUnit = f.unit, f.cpuUnit
	r.row.Samples = append(r.row.Samples, f.value)
	r.byRound[round] = f.value
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
	r.row.Variant = suites.Variant(r.spec.path.Variant, s.ovsDatapath, s.acceleration)
	if m.Histogram == nil || !f.timed() {
		return
	}
	if r.histogram == nil {
		r.histogram = m.Histogram
		return
	}
	r.histogram.Merge(m.Histogram)
}

// addNote appends a remark to the row's note; an empty one changes nothing.
func (r *measuredRow) addNote(text string) {
	switch {
	case text == "":
	case r.row.Note == "":
		r.row.Note = text
	default:
		r.row.Note += "; " + text
	}
}

// skip marks the row as one that this machine cannot measure.
func (r *measuredRow) skip(reason error) {
	r.row.Status, r.row.Reason = result.StatusSkipped, oneLine(reason)
}

// fail marks the row as failed.
func (r *measuredRow) fail(reason error) {
	r.row.Status, r.row.Reason = result.StatusFailed, oneLine(reason)
}

// oneLine returns the text of an error on one line.
func oneLine(err error) string {
	lines := strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Join(lines, "; ")
}

// done reports whether the row takes no more samples.
func (r *measuredRow) done() bool { return r.row.Status != "" }

// result returns the row as measured so far; false if it has neither samples nor a
// reason for having none.
func (r *measuredRow) result() (result.Row, bool) {
	row := r.row
	if row.Status == "" && len(row.Samples) > 0 {
		row.Status = result.StatusOK
	}
	row.Label = r.spec.suite.Label(row)
	if len(row.Samples) == 0 {
		return row, row.Status != ""
	}
	row.Median, row.CI95 = summarize(row.Samples)
	row.CPUUSPerUnit = median(r.cpu)
	row.Evidence.SoftirqsPerUnit = median(r.softirqs)
	row.Offered, row.CallsPerSecond = median(r.offered), median(r.callsPerSecond)
	if r.sent > r.received {
		row.LostShare = float64(r.sent-r.received) / float64(r.sent)
	}
	if h := r.histogram; h != nil && h.TotalCount() > 0 {
		us := func(percentile float64) float64 { return float64(h.ValueAtPercentile(percentile)) / 1e3 }
		row.LatencyUS = &result.Latency{P50: us(50), P90: us(90), P99: us(99), P999: us(99.9)}
	}
	return row, true
}
